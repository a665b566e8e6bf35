"""The endless row of windows: looked up a few thousand at a time, and read ahead while the disk is slow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowtide.dataset.order import Numbers, WindowOrder
from lowtide.dataset.windows import Rows, WindowRun, Windows

_AHEAD = 4096
_BATCHES_AHEAD = 8
_BATCHES_PER_ALARM = 64
_SLOW_SECONDS_PER_WINDOW = 20e-6
_SLOW_SECONDS_PER_TOKEN = 20e-9


class Schedule:
    """Maps positions to windows: epoch 0 in its order, then epoch 1 in another. Holds 4,096 windows' places.

    For one thread at a time.
    """

    def __init__(self, windows: Windows, *, seed: int, shuffled: bool) -> None:
        self._windows = windows
        self._order = WindowOrder(windows=windows.count, seed=seed) if shuffled else None
        self._ahead: tuple[int, int, WindowRun] | None = None
        """First and stop of what was looked up; one value, because a fork may come at any moment."""
        self._next = 0

    def rows(self, first: int, count: int) -> Rows:
        """The windows at positions `first` up to `first + count`.

        A reader that continues where its last call ended gets what was looked up ahead.
        """
        follows, self._next = first == self._next, first + count
        if follows and not self._holds(first, count):
            ahead = max(count, _AHEAD)
            self._ahead = (first, first + ahead, self._look_up(first, ahead))
        return self.peek(first, count)  # after a jump, looking up more would be wasted

    def peek(self, first: int, count: int) -> Rows:
        """The windows at these positions, for reading ahead: it does not move the look-ahead."""
        if self._ahead is not None and self._holds(first, count):
            start, _, run = self._ahead
            return run.rows(first - start, first - start + count)
        return self._look_up(first, count).rows(0, count)

    def numbers(self, first: int, count: int) -> tuple[Numbers, Numbers]:
        """Epoch and number of each of these windows."""
        positions = np.arange(first, first + count, dtype=np.int64)
        epochs, numbers = np.divmod(positions, self._windows.count)
        if self._order is not None:
            numbers = self._order.shuffled(epochs, numbers)
        return epochs, numbers

    def _holds(self, first: int, count: int) -> bool:
        return self._ahead is not None and self._ahead[0] <= first <= self._ahead[1] - count

    def _look_up(self, first: int, count: int) -> WindowRun:
        return self._windows.look_up(*self.numbers(first, count))


class ReadAhead:
    """Asks for batches to come while batches are slow. Holds four numbers.

    A shuffled order leaves the kernel nothing to guess, so every window that is not in the page cache waits
    for its own read. The order is known, though: asking for eight batches ahead keeps the disk busy (6 × as
    many batches a second from a cold file). Asking costs 20 µs a batch, so it stops when waiting does.
    """

    def __init__(self, fetch: Callable[[int, int], None], *, context: int) -> None:
        self._fetch = fetch
        self._slow_seconds = _SLOW_SECONDS_PER_WINDOW + context * _SLOW_SECONDS_PER_TOKEN
        self._previous = 0
        self._asked_until = 0
        self._alarmed_batches = 0

    def after(self, first: int, count: int, seconds: float) -> None:
        """Take note that reading windows `first` up to `first + count` took `seconds`."""
        stride = first - self._previous
        self._previous = first
        if seconds > count * self._slow_seconds:
            self._alarmed_batches = _BATCHES_PER_ALARM
        if not self._alarmed_batches:
            return
        self._alarmed_batches -= 1
        # A step shorter than a batch is no step to the next one. A rank's is longer: others read the rest.
        if count > stride:
            return
        until = first + stride * _BATCHES_AHEAD
        if not first < self._asked_until <= until:  # the reader has jumped
            self._asked_until = first + stride
        while self._asked_until <= until:
            self._fetch(self._asked_until, count)
            self._asked_until += stride
