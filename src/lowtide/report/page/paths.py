"""Points into SVG paths: whole numbers from point to point, so that they are short.

page.js reads the values back out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Literal, TypeAlias

from lowtide.report.page.buckets import Point
from lowtide.report.page.scales import HEIGHT, TimeAxis, ValueAxis

Pick: TypeAlias = Literal["mean", "high", "last"]
"""What stands for a bucket: the mean for noise, the highest for memory, the last for counters."""
Place: TypeAlias = tuple[int, int]


def line_path(points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis) -> str:
    """A line, broken between sessions. A lonely point is a dot."""
    return "".join(_polyline(run) for run in _runs(points, _picker(pick), x, y))


def dots_path(points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis) -> str:
    """Every point as a dot: a line of no length with a round end."""
    return "".join(
        f"M{left} {top}h0" for run in _runs(points, _picker(pick), x, y) for left, top in run
    )


def area_path(points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis) -> str:
    """What lies under the line."""
    parts = []
    for run in _runs(points, _picker(pick), x, y):
        if len(run) > 1:
            parts.append(f"{_polyline([(run[0][0], HEIGHT), *run])}V{HEIGHT}z")
    return "".join(parts)


def band_path(points: Sequence[Point], x: TimeAxis, y: ValueAxis) -> str:
    """From the lowest to the highest of every bucket; empty where each has one value."""
    if all(point.low == point.high for point in points):
        return ""
    highs = _runs(points, lambda point: point.high, x, y)
    lows = _runs(points, lambda point: point.low, x, y)
    return "".join(
        f"{_polyline([*high, *reversed(low)])}z"
        for high, low in zip(highs, lows, strict=True)
        if len(high) > 1
    )


def level_path(levels: Iterable[tuple[int, int, int]]) -> str:
    """Flat pieces from one place to another at a height."""
    return "".join(f"M{left} {top}l{right - left} 0" for left, right, top in levels)


def picked(point: Point, pick: Pick) -> float:
    """The value that stands for the point."""
    return _picker(pick)(point)


def _picker(pick: Pick) -> Callable[[Point], float]:
    if pick == "high":
        return lambda point: point.high
    return (lambda point: point.last) if pick == "last" else (lambda point: point.mean)


def _runs(
    points: Sequence[Point], value: Callable[[Point], float], x: TimeAxis, y: ValueAxis
) -> Iterator[list[Place]]:
    for session, group in groupby(points, key=lambda point: point.session):
        yield [(x.place(point.seconds, session), y.place(value(point))) for point in group]


def _polyline(places: Sequence[Place]) -> str:
    left, top = places[0]
    if len(places) == 1:
        return f"M{left} {top}h0"
    moves = "".join(
        _pair(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(places)
    )
    return f"M{left} {top}l{moves.lstrip()}"


def _pair(right: int, down: int) -> str:
    """A minus parts numbers as well as a space does."""
    return f"{'' if right < 0 else ' '}{right}{'' if down < 0 else ' '}{down}"
