"""When a limit will be reached if a leak goes on: an eight-day leak is seen on the first day.

A `History` keeps how much was used when, in a fixed number of cells: a week costs as much as an hour.

A line is laid under the readings: through the lowest of each stretch of time, so that what a garbage collector
gives back is not growth, by the median of all slopes between two of them, so that noise and a few steps do not
move it. One step that stands out from all others, such as a model being loaded, is taken out first. How far
readings rise above the line is added before the line is followed to the limit.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.units import MIB, format_bytes, format_seconds

_MOST_CELLS = 512
_LEAST_SECONDS = 20.0
_LEAST_CELLS = 24
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


@dataclass(slots=True)
class Cell:
    """A stretch of time, and the least and the most that was used in it."""

    at: float
    """The mean time of its readings."""
    low: int
    high: int
    count: int


class History:
    """Use over time. When its cells are full, neighbours are joined, and new cells cover twice the readings."""

    def __init__(self, *, most_cells: int = _MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._cells: list[Cell] = []
        self._readings_a_cell = 1

    def add(self, at: float, used_bytes: int) -> None:
        """Take in a reading; they come in order of time."""
        last = self._cells[-1] if self._cells else None
        if last is not None and last.count < self._readings_a_cell:
            _join(last, Cell(at, used_bytes, used_bytes, 1))
            return
        if len(self._cells) == self._most_cells:
            halved = self._cells[::2]
            for cell, other in zip(halved, self._cells[1::2], strict=False):
                _join(cell, other)
            self._cells, self._readings_a_cell = halved, 2 * self._readings_a_cell
        self._cells.append(Cell(at, used_bytes, used_bytes, 1))

    @property
    def cells(self) -> list[Cell]:
        return self._cells

    @property
    def seconds(self) -> float:
        """The time from the first cell to the last."""
        return self._cells[-1].at - self._cells[0].at if self._cells else 0.0

    def last_of(self, count: int) -> Iterator[int]:
        """The most used in each of `count` equal stretches of the history, for a line of a picture."""
        cells = self._cells
        count = min(count, len(cells))
        for number in range(count):
            first, end = number * len(cells) // count, (number + 1) * len(cells) // count
            yield max(cell.high for cell in cells[first:end])


def _join(cell: Cell, other: Cell) -> None:
    total = cell.count + other.count
    cell.at = (cell.at * cell.count + other.at * other.count) / total
    cell.low, cell.high = min(cell.low, other.low), max(cell.high, other.high)
    cell.count = total


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


def forecast(history: History, limit_bytes: int) -> Forecast | None:
    """None while nothing grows beyond doubt, or the limit is passed already."""
    cells = history.cells
    if history.seconds < _LEAST_SECONDS or len(cells) < _LEAST_CELLS:
        return None
    line = _lay_line(cells)
    if line is None or line.slope * history.seconds < _LEAST_GROWTH_BYTES:
        return None
    now = cells[-1].at
    # Nearly all readings of the later half, whose one-time steps are behind it, stay below this above the line.
    rises = sorted(cell.high - line.at(cell.at) for cell in cells[len(cells) // 2 :])
    above = max(0.0, rises[int(0.95 * (len(rises) - 1))])
    left_bytes = limit_bytes - line.at(now) - above
    if left_bytes <= 0:
        return None
    return Forecast(
        seconds=left_bytes / line.slope, reaches_bytes=limit_bytes, bytes_per_second=line.slope
    )


def _lay_line(cells: list[Cell]) -> _Line | None:
    """The line of the finest cut that is beyond doubt and that another cut confirms."""
    lines = [_fit(_lows(cells, parts)) for parts in _STRETCHES]
    sure = [
        line for line in lines if line.lows >= 5 and line.slope > 0 and line.rising >= _RISING_SHARE
    ]
    if len(sure) < 2:
        return None
    slopes = [line.slope for line in sure]
    best = min(sure, key=lambda line: line.noise / line.slope)
    agreeing = [one for one in slopes if abs(one - best.slope) <= _SAME_SLOPE * best.slope]
    lately = _fit(_lows(cells[len(cells) // 2 :], _STRETCHES[1]))
    goes_on = lately.slope >= _STILL_GROWING * best.slope
    return best if len(agreeing) >= 2 and goes_on else None


def _lows(cells: list[Cell], parts: int) -> list[tuple[float, float]]:
    """Time and height of the lowest of each part; the first part, in which things are set up, is left out."""
    first, last = cells[0].at, cells[-1].at
    width = (last - first) / parts
    lowest: dict[int, Cell] = {}
    for cell in cells:
        part = min(parts - 1, int((cell.at - first) / width))
        if part not in lowest or cell.low < lowest[part].low:
            lowest[part] = cell
    return _without_one_step(
        [(cell.at, float(cell.low)) for part, cell in sorted(lowest.items()) if part > 0]
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
