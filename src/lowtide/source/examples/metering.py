"""What one rendering of a template uses up: rounds of loops, work on long text, and the size of what it makes.

Counted, not timed: the same row always fares the same. Whatever can grow is measured before it is made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from string import Formatter
from typing import TypeAlias

from jinja2.utils import Namespace

from lowtide.units import format_count

EFFORT_LIMIT = 1_000_000
"""Rounds of loops that one rendering may take; a call counts as four, work on long text by its length."""
LONGEST_TEXT = 1 << 23
"""Characters of any one string that a template makes, its output among them."""

LONGEST_SECONDS = 20.0
"""The second wall, for work that no count knows of. It ends the run: a clock never decides what a row gives."""

_MOST_BITS = 4096
_SHORT_TEXT = 256
_LONG_NEEDLE = 100
_WIDEST_INDENT = 64
_PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?[^%]")
_DIGITS = re.compile(r"\d+")
_EMPTY: dict[str, object] = {}
_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_CONTAINERS = (list, tuple, dict, bytes, Namespace, *_VIEWS)
_Sizes: TypeAlias = dict[int, int]


class TooMuchError(Exception):
    """A rendering that takes too long, or makes something too large."""


class Meter:
    """What one rendering has used up so far."""

    def __init__(self) -> None:
        self.effort = 0
        self._until = 0.0

    def begin(self) -> None:
        """Another rendering."""
        self.effort = 0
        self._until = time.monotonic() + LONGEST_SECONDS

    def spend(self, amount: int) -> None:
        """Count some work; `TooMuchError` beyond the limit."""
        self.effort += amount
        if self.effort > EFFORT_LIMIT:
            raise TooMuchError(
                f"does not end: more than {format_count(EFFORT_LIMIT)} rounds of loops"
            )
        if time.monotonic() > self._until:
            raise TooMuchError(f"takes more than {LONGEST_SECONDS:g} seconds for one example")

    def sized(self, value: object) -> object:
        """The value, once it is known not to be too long."""
        if isinstance(value, (str, bytes, list, tuple)):
            length = len(value)
            if length > LONGEST_TEXT:
                raise TooMuchError(f"makes a text of {format_count(length)} characters")
            self.spend(length >> (9 if isinstance(value, (str, bytes)) else 5))
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise TooMuchError("makes a number of more than a thousand digits")
        return value

    def foresee(self, length: int) -> None:
        """Refuse to make something of that length."""
        if length > 2 * LONGEST_TEXT:
            raise TooMuchError(f"would make a text of up to {format_count(length)} characters")

    def weighed(self, value: object) -> object:
        """The value, once looking at all of it is paid for."""
        if isinstance(value, str):
            if len(value) >= _SHORT_TEXT:
                self.spend(len(value) >> 8)
            return value
        if isinstance(value, _CONTAINERS):
            self.spend(self.extent(value) >> 8)
        return value

    def shown(self, value: object) -> object:
        """The value, once it is known that its text is not too long."""
        if isinstance(value, _CONTAINERS):
            length = self.extent(value)
            self.foresee(length)
            self.spend(length >> 6)
        return value

    def searched(self, text: str | bytes, needle: object, *, each: bool = False) -> None:
        """Pay for a search: worst at every place of the text for a part of the needle, or for `each` of it."""
        length = len(needle) if isinstance(needle, (str, bytes)) else 0
        if length > 1 or len(text) >= _SHORT_TEXT:
            self.spend(len(text) * (8 + (length if each else min(length, _LONG_NEEDLE))) >> 11)

    def extent(self, value: object) -> int:
        """Characters that a value's text has, about. What is in it many times counts every time."""
        return self._extent(value, {})

    def _extent(self, value: object, known: _Sizes) -> int:
        if isinstance(value, (str, bytes)):
            return len(value)
        if isinstance(value, int):
            return 1 + (value.bit_length() >> 1)
        if not isinstance(value, _CONTAINERS):
            return 8
        if id(value) not in known:
            known[id(value)] = 0  # what holds itself is printed as `...`
            items = _items(value)
            self.spend(1 + (len(items) >> 4))
            known[id(value)] = len(items) + sum(self._extent(item, known) for item in items)
        return known[id(value)]


def _items(value: object) -> list[object]:
    if isinstance(value, Namespace):
        value = getattr(value, "_Namespace__attrs")  # noqa: B009 - a plain dot is spelt otherwise here
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value)  # type: ignore[call-overload, no-any-return]


def check_product(meter: Meter, left: object, right: object) -> None:
    """Before `left * right`."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MOST_BITS:
            raise TooMuchError("makes a number of more than a thousand digits")
        return
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, bytes, list, tuple)) and isinstance(times, int):
            meter.foresee(len(value) * times)


def check_power(left: object, right: object) -> None:
    """Before `left ** right`."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS:
        raise TooMuchError("makes a number of more than a thousand digits")


def check_percent(meter: Meter, text: object, values: object) -> None:
    """Before `text % values`."""
    if isinstance(text, str):
        meter.weighed(text)
        fields = _PERCENT_FIELD.findall(text)
        if any("*" in field for field in fields):
            raise TooMuchError("formats with a width that is not written out")
        widths = [_number(digits) for field in fields for digits in field]
        _check_fields(meter, len(text) + sum(widths), len(fields), values)


def check_braces(meter: Meter, text: object, values: object) -> None:
    """Before `text.format(*values)`."""
    if isinstance(text, str):
        meter.weighed(text)
        fields = [
            (name, spec or "") for _, name, spec, _ in Formatter().parse(text) if name is not None
        ]
        if any("{" in spec for _, spec in fields):
            raise TooMuchError("formats with a width that is not written out")
        widths = [_number(digits) for _, spec in fields for digits in _DIGITS.findall(spec)]
        _check_fields(meter, len(text) + sum(widths), len(fields), values)


def _number(digits: str) -> int:
    """How many characters a width asks for; nobody reads a number of more digits than that."""
    return int(digits[:12] or 0)


def _check_fields(meter: Meter, length: int, count: int, values: object) -> None:
    """Every field may be the longest value."""
    items = list(values) if isinstance(values, (list, tuple)) else [values]
    meter.spend(count)
    meter.foresee(length + count * max(map(meter.extent, items), default=0))


def _size(value: object) -> int:
    """What an argument stands for: a number is a width or a count."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 1


def _check_join(meter: Meter, values: tuple[object, ...]) -> None:
    counts = [_size(value) for value in values[:2]]
    between = counts[0] * counts[1] if len(counts) > 1 else 0
    meter.foresee(between + sum(map(meter.extent, values)))


def _check_replace(meter: Meter, values: tuple[object, ...]) -> None:
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) >= 3:
        text, old, new = map(len, texts[:3])
        meter.foresee(text + (text // max(1, old) + 1) * new)


def _check_indent(meter: Meter, values: tuple[object, ...]) -> None:
    lines = 1 + (values[0].count("\n") if isinstance(values[0], str) else 0)
    meter.foresee(_size(values[0]) + lines * max(map(_size, values[1:]), default=4))


def _check_json(meter: Meter, values: tuple[object, ...]) -> None:
    meter.shown(values[0])
    if any(_size(value) > _WIDEST_INDENT for value in values[1:]):
        raise TooMuchError(f"indents by more than {_WIDEST_INDENT} characters")


def _check_sum(meter: Meter, values: tuple[object, ...]) -> None:
    """Lists are added up one by one, each time copying all before."""
    if any(isinstance(value, (list, tuple)) for value in values[1:]):
        meter.spend(_size(values[0]) * sum(map(meter.extent, values)) >> 8)


def _check_round(meter: Meter, values: tuple[object, ...]) -> None:
    meter.foresee(0)
    if len(values) > 1 and isinstance(values[1], int):
        check_power(10, values[1])


def _check_total(meter: Meter, values: tuple[object, ...]) -> None:
    meter.foresee(sum(map(_size, values)))


def _check_worst(meter: Meter, values: tuple[object, ...]) -> None:
    sizes = sorted(map(_size, values), reverse=True)
    meter.foresee(sizes[0] * sizes[1] if len(sizes) > 1 else sizes[0])


GROWTH: dict[str, Callable[[Meter, tuple[object, ...]], None]] = {
    **dict.fromkeys(
        ("batch", "center", "ljust", "rjust", "slice", "to_bytes", "zfill"), _check_total
    ),
    **dict.fromkeys(("expandtabs", "translate", "truncate"), _check_worst),
    "indent": _check_indent,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_round,
    "sum": _check_sum,
    "tojson": _check_json,
}
"""What has to be asked before a filter or a method of that name is called, with all its arguments."""
