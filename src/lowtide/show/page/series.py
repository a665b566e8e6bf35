"""A series of any length in few points, built while it streams by. No peak is lost, and none is invented.

    Series(most=4): 1, 9, 2, 3, 5, 4, 1, 1   →   points of 1..9, 2..3, 4..5, 1..1

Neighbours share a bucket; when there are too many buckets, they become twice as wide. A point keeps the lowest,
the highest, the mean and the last value of what it stands for. A million steps cost no more than a thousand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

MOST_POINTS = 800
_NARROWEST_SECONDS = 2.0**-10

Item = TypeVar("Item")


@dataclass(slots=True, kw_only=True)
class Point:
    """The values measured between `first_seconds` and `last_seconds`, in one session."""

    session: int
    first_seconds: float
    last_seconds: float
    low: float
    high: float
    total: float
    count: int
    last: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def seconds(self) -> float:
        return (self.first_seconds + self.last_seconds) / 2


class Series:
    """Takes values in the order of time; holds at most twice `most` points, and one more for each session."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._width_seconds = _NARROWEST_SECONDS
        self._points: list[Point] = []
        self._key = (-1, -1)

    def add(self, seconds: float, value: float, session: int) -> None:
        """Add a value, no earlier than the one before."""
        key = (session, int(seconds / self._width_seconds))
        if key == self._key:
            _widen(self._points[-1], seconds, value)
            return
        self._key = key
        self._points.append(
            Point(
                session=session,
                first_seconds=seconds,
                last_seconds=seconds,
                low=value,
                high=value,
                total=value,
                count=1,
                last=value,
            )
        )
        if len(self._points) > 2 * self._most + session:
            self._coarsen()

    def points(self, most: int | None = None) -> list[Point]:
        """At most `most` points in the order of time, and at least one for each session."""
        found, width = [replace(point) for point in self._points], self._width_seconds
        sessions = len({point.session for point in found})
        while len(found) > max(most or self._most, 2 * sessions):
            width *= 2
            found = _merge(found, width)
        return found

    def _coarsen(self) -> None:
        while len(self._points) > self._most + self._points[-1].session:
            self._width_seconds *= 2
            self._points = _merge(self._points, self._width_seconds)
        last = self._points[-1]
        self._key = (last.session, int(last.first_seconds / self._width_seconds))

    def __bool__(self) -> bool:
        return bool(self._points)


class FirstAndLast(Generic[Item]):
    """The first and the last items of a stream, and how many were left out between them."""

    def __init__(self, first: int, last: int) -> None:
        self._most_first = first
        self._first: list[Item] = []
        self._last: deque[Item] = deque(maxlen=last)
        self.count = 0

    def add(self, item: Item) -> None:
        self.count += 1
        if len(self._first) < self._most_first:
            self._first.append(item)
        else:
            self._last.append(item)

    @property
    def left_out(self) -> int:
        return self.count - len(self._first) - len(self._last)

    def __iter__(self) -> Iterator[Item]:
        yield from self._first
        yield from self._last


def _widen(point: Point, seconds: float, value: float) -> None:
    point.last_seconds = seconds
    point.low = min(point.low, value)
    point.high = max(point.high, value)
    point.total += value
    point.count += 1
    point.last = value


def _merge(points: list[Point], width_seconds: float) -> list[Point]:
    """Join neighbours that begin in the same bucket of this width."""
    merged: list[Point] = []
    key = (-1, -1)
    for point in points:
        own = (point.session, int(point.first_seconds / width_seconds))
        if own == key:
            _join(merged[-1], point)
        else:
            merged.append(point)
        key = own
    return merged


def _join(left: Point, right: Point) -> None:
    left.last_seconds = right.last_seconds
    left.low = min(left.low, right.low)
    left.high = max(left.high, right.high)
    left.total += right.total
    left.count += right.count
    left.last = right.last
