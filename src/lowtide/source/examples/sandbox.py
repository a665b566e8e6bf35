"""An environment for Jinja templates that reads nothing, ends, and makes nothing huge.

Jinja's immutable sandbox keeps a template away from Python's inside. What it lacks is added here: every round
of a loop is counted (a pass over the syntax tree puts the counting in), every call of a macro too, work on
long strings counts by their length, and whatever could grow a string or a number is measured before it is
made. Counted, not timed: the same row always fares the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2 import nodes, parser, runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lowtide.source.examples.marks import LEARNT_CLOSE, LEARNT_OPEN
from lowtide.units import format_count

EFFORT_LIMIT = 1_000_000
"""Rounds of loops that one rendering may take; a call counts as four, work on long text by its length."""
LONGEST_TEXT = 1 << 25
"""Characters of any one string that a template makes, its output among them."""

_CALL_EFFORT = 4
_MOST_BITS = 4096
_STEP, _JOIN = "lowtide_step", "lowtide_join"
_GROWING = frozenset(
    {"batch", "center", "expandtabs", "format", "format_map", "indent", "join", "ljust", "replace"}
    | {"rjust", "round", "slice", "tojson", "translate", "truncate", "wordwrap", "zfill"}
)
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{6})|:[^{}]*\d{6}")
_LEFT_OUT_FILTERS = ("random",)  # it would give other tokens every time
_LEFT_OUT_GLOBALS = ("lipsum",)


class TooMuchError(Exception):
    """A rendering that takes too long, or makes something too large."""


class RefusedNodeError(Exception):
    """Something in a template that is not allowed, found before it runs."""


class Meter:
    """What one rendering has used up so far."""

    def __init__(self) -> None:
        self.effort = 0

    def spend(self, amount: int) -> None:
        """Count some work; `TooMuchError` beyond the limit."""
        self.effort += amount
        if self.effort > EFFORT_LIMIT:
            raise TooMuchError(
                f"does not end: more than {format_count(EFFORT_LIMIT)} rounds of loops"
            )

    def sized(self, value: object) -> object:
        """The value, once it is known not to be too long."""
        if isinstance(value, (str, list, tuple)):
            length = len(value)
            if length > LONGEST_TEXT:
                raise TooMuchError(f"makes a text of {format_count(length)} characters")
            self.spend(length >> 10)
        return value

    def foresee(self, length: int) -> None:
        """Refuse to make something of that length."""
        if length > 2 * LONGEST_TEXT:
            raise TooMuchError(f"would make a text of up to {format_count(length)} characters")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` as transformers has it: what stands inside is learnt."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        text = caller()
        environment = self.environment
        assert isinstance(environment, TemplateEnvironment)
        return f"{LEARNT_OPEN}{text}{LEARNT_CLOSE}" if environment.marks_learnt else text


class _Namespace(jinja2.utils.Namespace):
    """A namespace that keeps no private names, as transformers has it."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"{name!r} cannot be stored in a namespace")
        super().__setitem__(name, value)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which templates are compiled and run."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        self.meter = Meter()
        self.marks_learnt = False
        self.concat = self._concat  # type: ignore[method-assign]
        for name in _LEFT_OUT_FILTERS:
            del self.filters[name]
        for name in _LEFT_OUT_GLOBALS:
            del self.globals[name]
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            self.filters[name] = self._metered(name, function)
        self.filters[_STEP] = self._step
        self.filters[_JOIN] = self._join
        self.globals["raise_exception"] = _raise_exception
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict
        self.globals["range"] = self._range

    def parse_counted(self, source: str) -> nodes.Template:
        """The syntax tree of a template with the counting put in; `RefusedNodeError`: what is not allowed."""
        tree = self.parse(source)
        for node in tree.find_all(nodes.Node):
            _refuse(node)
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, _count_statement(loop.lineno))
            if loop.test is not None:
                loop.test = nodes.And(_count_expression(loop.lineno), loop.test)
        for concat in list(tree.find_all(nodes.Concat)):
            joined = nodes.List(concat.nodes, lineno=concat.lineno)
            concat.nodes = [nodes.Filter(joined, _JOIN, [], [], None, None, lineno=concat.lineno)]
        tree.set_environment(self)
        return tree

    def call_binop(
        self,
        context: runtime.Context,  # noqa: ARG002
        operator: str,
        left: object,
        right: object,
    ) -> object:
        """The operators that can make much out of little, measured first."""
        if type(left) is str and type(right) is str and operator == "+":
            length = len(left) + len(right)
            if length < 1024:  # nearly every sum of a template
                return left + right
            self.meter.foresee(length)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "%" and isinstance(left, str):
            self._check_growth("format", (left, right))
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self.meter.foresee(len(left) + len(right))
        return self.meter.sized(self.binop_table[operator](left, right))

    def call(
        __self,  # noqa: N805 - a template's keyword arguments may have any name
        __context: runtime.Context,
        __function: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        name, owner = getattr(__function, "__name__", ""), getattr(__function, "__self__", None)
        length = len(owner) if isinstance(owner, (str, list, dict)) else 0
        __self.meter.spend(_CALL_EFFORT + (length >> 8))
        if name in _GROWING:
            known = getattr(__function, "__wrapped__", None)  # the sandbox's own str.format
            text = owner if known is None else getattr(known, "__self__", "")
            __self._check_growth(name, (text, *args, *kwargs.values()))
        return __self.meter.sized(super().call(__context, __function, *args, **kwargs))

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Jinja's own way prints an empty text; here it is an error at once."""
        raise jinja2.exceptions.SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe"
        )

    def _metered(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def metered(*args: object, **kwargs: object) -> object:
            for value in args[:2]:
                if isinstance(value, (str, list, dict)):
                    self.meter.spend(1 + (len(value) >> 8))
            if name in _GROWING:
                self._check_growth(name, (*args, *kwargs.values()))
            return self.meter.sized(function(*args, **kwargs))

        for attribute in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(function, attribute):
                setattr(metered, attribute, getattr(function, attribute))
        return metered

    @jinja2.pass_context
    def _step(self, context: runtime.Context, value: object) -> object:  # noqa: ARG002
        # pass_context also keeps the compiler from taking this call for a constant.
        self.meter.spend(1)
        return value

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self.meter.spend(len(numbers))
        return numbers

    def _join(self, values: list[object]) -> str:
        """What `~` does."""
        return self._concat(map(str, values))

    def _concat(self, parts: Iterable[str]) -> str:
        pieces: list[str] = []
        length = 0
        for part in parts:
            pieces.append(part)
            length += len(part)
            if length > LONGEST_TEXT:
                raise TooMuchError(
                    f"makes a text of more than {format_count(LONGEST_TEXT)} characters"
                )
        self.meter.spend(length >> 10)
        return "".join(pieces)

    def _check_product(self, left: object, right: object) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MOST_BITS:
                raise TooMuchError("makes a number of more than a thousand digits")
            return
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, bytes, list, tuple)) and isinstance(times, int):
                self.meter.foresee(len(value) * times)

    def _check_growth(self, name: str, values: tuple[object, ...]) -> None:
        """The two largest arguments multiplied bound what any of these functions makes."""
        if name == "format" and isinstance(values[0], str) and _WIDE_FORMAT.search(values[0]):
            raise TooMuchError("formats with a width that is too large")
        sizes = sorted((_extent(value, name) for value in values), reverse=True)
        self.meter.foresee(sizes[0] * sizes[1] if len(sizes) > 1 else sizes[0])
        if name == "round" and len(values) > 1 and isinstance(values[1], int):
            _check_power(10, values[1])


def _extent(value: object, name: str) -> int:
    if isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return 1 if name in ("format", "replace", "join") else abs(value)
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum((len(item) if isinstance(item, str) else 1 for item in value), len(value))
    return len(value) if isinstance(value, dict) else 1


def _check_power(left: object, right: object) -> None:
    are_whole = isinstance(left, int) and isinstance(right, int)
    if are_whole and left.bit_length() * right > _MOST_BITS:  # type: ignore[attr-defined]
        raise TooMuchError("makes a number of more than a thousand digits")


def _count_expression(line: int) -> nodes.Expr:
    return nodes.Filter(nodes.Const(True), _STEP, [], [], None, None, lineno=line)


def _count_statement(line: int) -> nodes.Node:
    return nodes.ExprStmt(_count_expression(line), lineno=line)


def _make_dict(*args: Mapping[str, object], **kwargs: object) -> dict[str, object]:
    """What a template calls `dict`: the type itself would offer more than making one."""
    return dict(*args, **kwargs)


def _refuse(node: nodes.Node) -> None:
    """Refuse what reads another file, and names that only an attack would use."""
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        kind = type(node).__name__.lower().replace("fromimport", "import")
        raise RefusedNodeError(f"line {node.lineno}: `{kind}` would read another file")
    if isinstance(node, nodes.Getattr) and node.attr.startswith("__"):
        raise RefusedNodeError(f"line {node.lineno}: access to {node.attr!r} is unsafe")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: Jinja's own would escape characters of HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
