"""While the disk is what one waits for, ask for the batches to come.

A shuffled order leaves the kernel nothing to guess, so every window that is not in the page cache waits for
its own read. The order is known, though: asking for eight batches ahead keeps the disk busy (6 × as many
batches a second from a cold file). Asking costs 20 µs a batch, so it stops when waiting does.
"""

from __future__ import annotations

from collections.abc import Callable

_BATCHES_AHEAD = 8
_BATCHES_PER_ALARM = 64
_SLOW_SECONDS_PER_WINDOW = 20e-6
_SLOW_SECONDS_PER_TOKEN = 20e-9


class ReadAhead:
    """Watches how long batches take. Holds four numbers."""

    def __init__(self, fetch: Callable[[int, int], None], *, context: int) -> None:
        self._fetch = fetch
        self._slow_seconds = _SLOW_SECONDS_PER_WINDOW + context * _SLOW_SECONDS_PER_TOKEN
        self._previous = 0
        self._asked_until = 0
        self._alarmed_batches = 0

    def after(self, first: int, count: int, seconds: float) -> None:
        """Windows `first` up to `first + count` were read, and it took so long."""
        stride = first - self._previous
        self._previous = first
        if seconds > count * self._slow_seconds:
            self._alarmed_batches = _BATCHES_PER_ALARM
        if not self._alarmed_batches:
            return
        self._alarmed_batches -= 1
        if count <= stride:  # a rank leaves out what the others read
            self._ask(first, count, stride)

    def _ask(self, first: int, count: int, stride: int) -> None:
        until = first + stride * _BATCHES_AHEAD
        if not first < self._asked_until <= until:  # the reader has leapt
            self._asked_until = first + stride
        while self._asked_until <= until:
            self._fetch(self._asked_until, count)
            self._asked_until += stride
