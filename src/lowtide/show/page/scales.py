"""The axes of the page: time of work with gaps between sessions, and values; each with its ticks.

page.js does the same after a zoom, and so repeats the steps and words of `lowtide.svg`. Change both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowtide.show.page.facts import RunFacts
from lowtide.svg import Unit, time_step, time_words, value_step, value_words

WIDTH = 20_000
HEIGHT = 30_000
"""Size of a chart in its own units. Whole numbers are short, and precise enough for four digits."""
_GAP_WIDTH = 300
_MOST_GAPS_WIDTH = 4_000
_MOST_X_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The pause before a session, drawn narrow however long it was."""

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
        step = time_step(self.seconds, _MOST_X_TICKS)
        count = math.floor(self.seconds / step + 1e-9) + 1
        return [(self.place_tick(n * step), time_words(n * step)) for n in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueAxis:
    """Values from the bottom upwards."""

    bottom: float
    top: float
    unit: Unit

    def place(self, value: float) -> int:
        """Distance of a value from the top of the chart."""
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
        Gap(
            at_seconds=after.from_seconds,
            session=after.number,
            killed=before.outcome is None and before.at is not None,
        )
        for before, after in pairwise(sessions)
        # a kill before the first checkpoint leaves nothing
        if before.to_seconds > before.from_seconds
    )
    return TimeAxis(seconds=max(facts.seconds, 1e-3), gaps=gaps)


def make_value_axis(values: Sequence[float], unit: Unit, *, from_zero: bool) -> ValueAxis:
    """An axis that shows all the values, with a margin."""
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
        return ValueAxis(bottom=low, top=high + (high - low) * 0.08 or 1.0, unit=unit)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return ValueAxis(bottom=low - air, top=high + air, unit=unit)
