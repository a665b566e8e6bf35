"""Where names stand: near their line's end, on no other name, on as little of any line as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_LETTER_WIDTH, _LINE_HEIGHT = 8.5, 18.0
_GAP = 11.0
_FARTHEST = 3
"""Lines of text above and below the end in which a place is looked for: a name farther off is nobody's."""
_END_TIMES = 12
"""The end of a line, where its cross is, counts so often."""
_NEAR = 6.0
_CROWD = 12.0
"""What a point of a line under the name is worth, in units of distance."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The rectangle that lines are drawn in, from zero to the most of both axes."""

    left: float
    right: float
    top: float
    floor: float
    most_seconds: float
    most_bytes: float

    def place(self, seconds: float, size_bytes: float) -> Point:
        """Where a sample lies in the picture."""
        across = seconds / self.most_seconds if self.most_seconds else 0.0
        x = self.left + (self.right - self.left) * across
        return x, self.floor - (self.floor - self.top) * size_bytes / self.most_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A name, the end of its line, and the line itself."""

    text: str
    at: Point
    kind: str
    avoids: Sequence[Point]


@dataclass(frozen=True, slots=True)
class _Spot:
    left: float
    base: float
    width: float

    def holds(self, point: Point) -> bool:
        x, y = point
        inside = self.base - _LINE_HEIGHT + 3 <= y <= self.base + 4
        return inside and self.left <= x <= self.left + self.width

    def touches(self, other: _Spot) -> bool:
        apart = self.left + self.width < other.left or other.left + other.width < self.left
        return not apart and abs(self.base - other.base) < _LINE_HEIGHT


def place_labels(
    plot: Plot, labels: Sequence[Label], limit_at: float, limit_text: str = ""
) -> tuple[list[tuple[float, float, str, str]], list[Label]]:
    """Left edge, base line, text and kind of each that found a place; and those that found none.

    The limit's own text stands at its left, just above it.
    """
    lines = [point for label in labels for point in _dense(label.avoids)]
    crowd = [*lines, *((plot.left + step * 10, limit_at) for step in range(200))]
    taken = [_Spot(plot.left, limit_at - 7, len(limit_text) * _LETTER_WIDTH)]
    crowd += [label.at for label in labels for _ in range(_END_TIMES)]
    placed, homeless = [], []
    for label in labels:
        spots = [
            spot for spot in _spots(plot, label) if not any(spot.touches(one) for one in taken)
        ]
        if not spots:
            homeless.append(label)
            continue
        best = min(spots, key=lambda spot: _cost(spot, label, crowd))
        taken.append(best)
        placed.append((best.left, best.base, label.text, label.kind))
    return placed, homeless


def _dense(points: Sequence[Point]) -> list[Point]:
    """The same line with points all along it: a steep fall has only two of its own."""
    found = list(points[:1])
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) / _NEAR))
        found += [
            (x0 + (x1 - x0) * n / steps, y0 + (y1 - y0) * n / steps) for n in range(1, steps + 1)
        ]
    return found


def _spots(plot: Plot, label: Label) -> list[_Spot]:
    """Behind the end, before it, and around it, at several heights, inside the plot."""
    x, y = label.at
    width = len(label.text) * _LETTER_WIDTH
    spots = []
    for left in (x + _GAP, x - _GAP - width, x - width / 2):
        for step in range(-2 * _FARTHEST, 2 * _FARTHEST + 1):
            base = y + 5 + step * _LINE_HEIGHT / 2
            across = left >= plot.left + 4 and left + width <= plot.right
            if across and plot.top + 2 <= base - _LINE_HEIGHT and base <= plot.floor - 5:
                spots.append(_Spot(left, base, width))
    return spots


def _cost(spot: _Spot, label: Label, crowd: Sequence[Point]) -> float:
    x, y = label.at
    nearest = min(max(x, spot.left), spot.left + spot.width)
    distance = abs(nearest - x) + abs(spot.base - 5 - y)
    return distance + _CROWD * sum(spot.holds(point) for point in crowd)
