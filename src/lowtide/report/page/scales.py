"""Axes: where a moment and a value lie in a picture, where the ticks stand, and how they are written.

page.js does the same after a zoom. Change both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from lowtide.report.page.facts import RunFacts, Session
from lowtide.units import format_bytes, format_count

Unit: TypeAlias = Literal["bytes", "bytes/s", "count", "count/s", "number", "percent"]

WIDTH = 20_000
HEIGHT = 30_000
"""Of a picture in its own units. Whole numbers are short, and fine enough for four digits."""
_GAP_WIDTH = 300
_MOST_GAPS_WIDTH = 4_000
_UNDER_AN_HOUR = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
_TIME_STEPS = (*_UNDER_AN_HOUR, 3600, 7200, 10_800, 21_600, 43_200)
_DAY = 86_400
_MOST_X_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The pause in front of a session. Drawn narrow, however long it was."""

    at_seconds: float
    session: int
    killed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """Seconds of work from left to right, a narrow gap between sessions."""

    seconds: float
    gaps: tuple[Gap, ...]

    @property
    def gap_width(self) -> float:
        return min(_GAP_WIDTH, _MOST_GAPS_WIDTH / max(1, len(self.gaps)))

    @property
    def units_per_second(self) -> float:
        return (WIDTH - self.gap_width * len(self.gaps)) / self.seconds

    def place(self, seconds: float, session: int) -> int:
        """Where a moment of a session lies; the end of one and the start of the next are apart."""
        before = sum(gap.session <= session for gap in self.gaps)
        return round(seconds * self.units_per_second + before * self.gap_width)

    def place_tick(self, seconds: float) -> float:
        before = sum(gap.at_seconds <= seconds for gap in self.gaps)
        return seconds * self.units_per_second + before * self.gap_width

    def ticks(self) -> list[tuple[float, str]]:
        """Place and words of at most seven moments."""
        step = time_step(self.seconds)
        count = math.floor(self.seconds / step + 1e-9) + 1
        return [(self.place_tick(n * step), time_words(n * step)) for n in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueAxis:
    """Values from the bottom upwards."""

    bottom: float
    top: float
    unit: Unit

    def place(self, value: float) -> int:
        """Counted from above, as pictures do."""
        share = (value - self.bottom) / (self.top - self.bottom)
        return round(HEIGHT * (1 - min(max(share, -9.0), 9.0)))

    def ticks(self) -> list[tuple[int, str]]:
        step = value_step(self.top - self.bottom, self.unit)
        first = math.ceil(self.bottom / step - 1e-9)
        last = math.floor(self.top / step + 1e-9)
        values = [n * step for n in range(first, last + 1)]
        return [(self.place(value), value_words(value, self.unit, tick=True)) for value in values]


def make_time_axis(facts: RunFacts) -> TimeAxis:
    """The axis that all charts of a run share."""
    sessions = list(facts.sessions)
    gaps = tuple(
        _gap(before, after)
        for before, after in pairwise(sessions)
        if before.to_seconds
        > before.from_seconds  # a kill before the first checkpoint leaves nothing
    )
    return TimeAxis(seconds=max(facts.seconds, 1e-3), gaps=gaps)


def make_value_axis(values: Sequence[float], unit: Unit, *, from_zero: bool) -> ValueAxis:
    """An axis on which all the values lie, with some air."""
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
        return ValueAxis(bottom=low, top=high + (high - low) * 0.08 or 1.0, unit=unit)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return ValueAxis(bottom=low - air, top=high + air, unit=unit)


def time_step(seconds: float) -> float:
    """The distance of ticks: a round number of seconds, minutes, hours or days."""
    wanted = seconds / _MOST_X_TICKS
    for step in _TIME_STEPS:
        if step >= wanted:
            return step if seconds >= 2 else _round_step(wanted)
    return _round_step(wanted / _DAY) * _DAY if wanted > _DAY else _DAY


def time_words(seconds: float) -> str:
    """`0`, `0.25s`, `40s`, `5m`, `1h 30m`, `2d`, `2d 12h`: as short as an axis needs."""
    if seconds and seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = [
        (whole // _DAY, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "m"),
        (whole % 60, "s"),
    ]
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "0"


def value_step(span: float, unit: Unit) -> float:
    """The distance of ticks: 1, 2 or 5 times a power of ten, for sizes a power of two."""
    if unit.startswith("bytes"):
        return 2.0 ** max(0, math.ceil(math.log2(span / 5)) if span > 0 else 0)
    return _round_step(span / 6)


def value_words(value: float, unit: Unit, *, tick: bool = False) -> str:
    """A value with its unit; a tick without needless digits."""
    if unit.startswith("bytes"):
        words = format_bytes(round(value))
        words = words.replace(".0 ", " ") if tick else words
        return words + "/s" if unit == "bytes/s" else words
    if unit.startswith("count"):
        words = (
            format_count(round(value))
            if abs(value) >= 100 or value == round(value)
            else f"{value:.3g}"
        )
        words = words.replace(".0", "") if tick else words
        return words + "/s" if unit == "count/s" else words
    words = _digits(value, 6 if tick else 4)
    return f"{words} %" if unit == "percent" else words


def _digits(value: float, digits: int) -> str:
    """`3.142`, `0.0006`, and `6e-5` for what is smaller."""
    if value == 0 or abs(value) >= 1e-4:
        return f"{value:.{digits}g}"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"


def _gap(before: Session, after: Session) -> Gap:
    return Gap(
        at_seconds=after.from_seconds,
        session=after.number,
        killed=before.outcome is None and before.at is not None,
    )


def _round_step(wanted: float) -> float:
    if not wanted > 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= wanted * (1 - 1e-9))
