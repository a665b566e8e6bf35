"""When a limit will be reached if growth continues: an eight-day leak is seen on the first day.

A line is fitted below the readings: through the lowest of each stretch, so that what a garbage collector
gives back is not growth, by the median of all slopes between two of them, so that noise and a few steps do not
move it. One step that stands out from all others, such as a model being loaded, is taken out first. How far
readings rise above the line is added before the line is followed to the limit.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from lowtide.series import Point, Series
from lowtide.units import MIB, format_bytes, format_seconds

_LEAST_SECONDS = 20.0
_LEAST_POINTS = 24
_STRETCHES = (32, 16, 8)
"""How many parts the time is cut into. Teeth longer than a part are found with fewer parts."""
_LEAST_GROWTH_BYTES = 16 * MIB
_RISING_SHARE = 0.8
"""Share of all pairs of lows in which the later must be the higher."""
_STANDS_OUT = 4.0
"""Multiple of the next largest step: a step that happened once."""
_SAME_SLOPE = 0.25
_STILL_GROWING = 0.5
"""Share of the whole slope that the later half must have: what has come to rest is not a leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Where the growth so far leads: a prediction."""

    seconds: float
    """Seconds from now until the limit is reached."""
    reaches_bytes: int
    bytes_per_second: float

    @property
    def in_words(self) -> str:
        """`at this rate 57.0 GiB is reached in 31h`."""
        return (
            f"at this rate ({format_bytes(round(self.bytes_per_second * 3600))} an hour) "
            f"{format_bytes(self.reaches_bytes)} is reached in {format_seconds(self.seconds)}"
        )


@dataclass(frozen=True, slots=True)
class _Line:
    slope: float
    height: float
    """The line at time zero."""
    noise: float
    """Typical distance of the lows from the line."""
    rising: float
    lows: int

    def at(self, seconds: float) -> float:
        return self.height + self.slope * seconds


def forecast(history: Series, limit_bytes: int) -> Forecast | None:
    """None while growth is not certain, or if the limit is already passed."""
    points = history.points()
    passed = points[-1].seconds - points[0].seconds if points else 0.0
    if passed < _LEAST_SECONDS or len(points) < _LEAST_POINTS:
        return None
    line = _lay_line(points)
    if line is None or line.slope * passed < _LEAST_GROWTH_BYTES:
        return None
    now = points[-1].seconds
    # Nearly all readings of the later half, whose one-time steps are behind it, stay below this above the line.
    rises = sorted(one.high - line.at(one.seconds) for one in points[len(points) // 2 :])
    above = max(0.0, rises[int(0.95 * (len(rises) - 1))])
    left_bytes = limit_bytes - line.at(now) - above
    if left_bytes <= 0:
        return None
    return Forecast(
        seconds=left_bytes / line.slope, reaches_bytes=limit_bytes, bytes_per_second=line.slope
    )


def _lay_line(points: list[Point]) -> _Line | None:
    """The line of the finest division that is certain and that another division confirms."""
    lines = [_fit(_lows(points, parts)) for parts in _STRETCHES]
    sure = [
        line for line in lines if line.lows >= 5 and line.slope > 0 and line.rising >= _RISING_SHARE
    ]
    if len(sure) < 2:
        return None
    slopes = [line.slope for line in sure]
    best = min(sure, key=lambda line: line.noise / line.slope)
    agreeing = [one for one in slopes if abs(one - best.slope) <= _SAME_SLOPE * best.slope]
    lately = _fit(_lows(points[len(points) // 2 :], _STRETCHES[1]))
    goes_on = lately.slope >= _STILL_GROWING * best.slope
    return best if len(agreeing) >= 2 and goes_on else None


def _lows(points: list[Point], parts: int) -> list[tuple[float, float]]:
    """Time and height of the lowest of each part; the first part, in which things are set up, is left out."""
    first, last = points[0].seconds, points[-1].seconds
    width = (last - first) / parts
    lowest: dict[int, Point] = {}
    for point in points:
        part = min(parts - 1, int((point.seconds - first) / width))
        if part not in lowest or point.low < lowest[part].low:
            lowest[part] = point
    return _without_one_step(
        [(one.seconds, one.low) for part, one in sorted(lowest.items()) if part > 0]
    )


def _without_one_step(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Take out the largest change, if it stands out from all others: what follows it is moved back."""
    changes = [after[1] - before[1] for before, after in itertools.pairwise(points)]
    if len(changes) < 3:
        return points
    usual = statistics.median(changes)
    order = sorted(range(len(changes)), key=lambda one: -abs(changes[one] - usual))
    largest, next_largest = (abs(changes[one] - usual) for one in order[:2])
    if largest < _STANDS_OUT * max(next_largest, abs(usual)):
        return points
    step = changes[order[0]] - usual
    return [
        (at, low if number <= order[0] else low - step) for number, (at, low) in enumerate(points)
    ]


def _fit(points: list[tuple[float, float]]) -> _Line:
    """Theil and Sen's line: the median of the slopes between all pairs."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(points)
        for later in points[number + 1 :]
        if later[0] > earlier[0]
    ]
    if not slopes:
        return _Line(0.0, 0.0, 0.0, 0.0, 0)
    slope = statistics.median(slopes)
    height = statistics.median(low - slope * at for at, low in points)
    noise = statistics.median(abs(low - height - slope * at) for at, low in points)
    rising = sum(1 for one in slopes if one > 0) / len(slopes)
    return _Line(slope, height, noise, rising, len(points))
