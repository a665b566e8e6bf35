"""How much was used when, in a fixed number of cells, whatever the time: a week costs as much as an hour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_CELLS = 512


@dataclass(slots=True)
class Cell:
    """A stretch of time: where it lies in the mean, and the least and the most that was used in it."""

    at: float
    low: int
    high: int
    count: int


class History:
    """When its cells are full, neighbours become one, and each new cell covers twice the readings."""

    def __init__(self, *, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._cells: list[Cell] = []
        self._readings_a_cell = 1

    def add(self, at: float, used_bytes: int) -> None:
        """Readings come in the order of their time."""
        last = self._cells[-1] if self._cells else None
        if last is not None and last.count < self._readings_a_cell:
            _join(last, Cell(at, used_bytes, used_bytes, 1))
            return
        if len(self._cells) == self._most_cells:
            self._halve()
        self._cells.append(Cell(at, used_bytes, used_bytes, 1))

    @property
    def cells(self) -> list[Cell]:
        return self._cells

    @property
    def seconds(self) -> float:
        """From the first cell to the last."""
        return self._cells[-1].at - self._cells[0].at if self._cells else 0.0

    def last_of(self, count: int) -> Iterator[int]:
        """The most used in each of so many equal stretches of the list, for a line of a picture."""
        cells = self._cells
        for number in range(min(count, len(cells))):
            first, end = (
                number * len(cells) // min(count, len(cells)),
                (number + 1) * len(cells) // min(count, len(cells)),
            )
            yield max(cell.high for cell in cells[first:end])

    def _halve(self) -> None:
        halved = self._cells[::2]
        for cell, other in zip(halved, self._cells[1::2], strict=False):
            _join(cell, other)
        self._cells = halved
        self._readings_a_cell *= 2


def _join(cell: Cell, other: Cell) -> None:
    total = cell.count + other.count
    cell.at = (cell.at * cell.count + other.at * other.count) / total
    cell.low, cell.high = min(cell.low, other.low), max(cell.high, other.high)
    cell.count = total
