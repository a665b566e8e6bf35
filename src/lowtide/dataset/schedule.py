"""The endless row of windows, epoch after epoch, looked up a few thousand at a time."""

from __future__ import annotations

import numpy as np

from lowtide.dataset.order import Numbers, WindowOrder
from lowtide.dataset.windows import Rows, WindowRun, Windows

_AHEAD = 4096


class Schedule:
    """Position to window: epoch 0 in its order, then epoch 1 in another. Holds 4,096 windows' places.

    For one thread at a time.
    """

    def __init__(self, windows: Windows, *, seed: int, shuffled: bool) -> None:
        self._windows = windows
        self._order = WindowOrder(windows=windows.count, seed=seed) if shuffled else None
        self._ahead: tuple[int, int, WindowRun] | None = None
        """First and stop of what was looked up; one value, for a fork may come at any moment."""
        self._next = 0

    def rows(self, first: int, count: int) -> Rows:
        """The windows at positions `first` up to `first + count`.

        Who reads on where the last call ended gets what was looked up ahead.
        """
        follows, self._next = first == self._next, first + count
        if follows and not self._holds(first, count):
            ahead = max(count, _AHEAD)
            self._ahead = (first, first + ahead, self._look_up(first, ahead))
        return self.peek(first, count)  # after a leap, looking up more would be wasted

    def peek(self, first: int, count: int) -> Rows:
        """The same for who looks ahead and does not read there yet."""
        if self._ahead is not None and self._holds(first, count):
            start, _, run = self._ahead
            return run.rows(first - start, first - start + count)
        return self._look_up(first, count).rows(0, count)

    def numbers(self, first: int, count: int) -> tuple[Numbers, Numbers]:
        """Epoch and number of each of them."""
        positions = np.arange(first, first + count, dtype=np.int64)
        epochs, numbers = np.divmod(positions, self._windows.count)
        if self._order is not None:
            numbers = self._order.shuffled(epochs, numbers)
        return epochs, numbers

    def _holds(self, first: int, count: int) -> bool:
        return self._ahead is not None and self._ahead[0] <= first <= self._ahead[1] - count

    def _look_up(self, first: int, count: int) -> WindowRun:
        return self._windows.look_up(*self.numbers(first, count))
