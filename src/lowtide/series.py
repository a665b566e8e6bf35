"""A series of any length in few points, built while it streams by. No peak is lost, and none is invented.

    Series(most=4): 1, 9, 2, 3, 5, 4, 1, 1   →   points of 1..9, 2..3, 4..5, 1..1

Neighbours share a bucket; when there are too many buckets, they become twice as wide. A point keeps the lowest,
the highest, the mean and the last value of what it stands for. A week costs no more than an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_NARROWEST_SECONDS = 2.0**-10


@dataclass(slots=True)
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

    def join(self, later: Point) -> None:
        """Take in the values of the next point."""
        self.last_seconds, self.last = later.last_seconds, later.last
        if later.low < self.low:  # faster than `min`, a million times
            self.low = later.low
        if later.high > self.high:
            self.high = later.high
        self.total += later.total
        self.count += later.count


class Series:
    """Takes values in the order of time; holds at most twice `most` points, and one more for each session."""

    def __init__(self, most: int = 800) -> None:
        self._most = most
        self._width_seconds = _NARROWEST_SECONDS
        self._points: list[Point] = []
        self._key = (-1, -1)

    def add(self, seconds: float, value: float, session: int = 0) -> None:
        """Add a value, no earlier than the one before."""
        new = Point(session, seconds, seconds, value, value, value, 1, value)
        key = (session, int(seconds / self._width_seconds))
        if key == self._key:
            self._points[-1].join(new)
            return
        self._key = key
        self._points.append(new)
        if len(self._points) > 2 * self._most + session:
            while len(self._points) > self._most + session:
                self._width_seconds *= 2
                self._points = _merge(self._points, self._width_seconds)
            self._key = (session, int(self._points[-1].first_seconds / self._width_seconds))

    def points(self, most: int | None = None) -> list[Point]:
        """At most `most` points in the order of time, and at least one for each session."""
        found, width = [replace(point) for point in self._points], self._width_seconds
        sessions = len({point.session for point in found})
        while len(found) > max(most or self._most, 2 * sessions):
            width *= 2
            found = _merge(found, width)
        return found

    def __bool__(self) -> bool:
        return bool(self._points)


def _merge(points: list[Point], width_seconds: float) -> list[Point]:
    """Join neighbours that begin in the same bucket of this width."""
    merged: list[Point] = []
    before = (-1, -1)
    for point in points:
        key = (point.session, int(point.first_seconds / width_seconds))
        if merged and key == before:
            merged[-1].join(point)
        else:
            merged.append(point)
        before = key
    return merged
