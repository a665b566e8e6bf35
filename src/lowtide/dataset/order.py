"""The order of windows: computed from (seed, epoch, index), never stored.

An epoch's windows are numbered 0 to n - 1 and laid out as a table of about √n by √n. Eight times, a row's or a
column's number is shifted by a hash of the other: each shift can be undone, so all of them together are a
bijection, whatever the hash. Numbers of the table that are not windows go through again until they are.
Any index costs the same, so training may resume anywhere.

    order = WindowOrder(windows=5, seed=0)
    order.shuffled(epochs=[0, 0, 0, 0, 0], indices=[0, 1, 2, 3, 4])     # each number once
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

ROUNDS = 4
"""Rounds of two shifts each. Three already pass the tests in tests/dataset/test_order.py; one is for safety."""
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class WindowOrder:
    """A permutation of the window numbers for every epoch. Holds four numbers."""

    __slots__ = ("_columns", "_rows", "_seed", "windows")

    def __init__(self, *, windows: int, seed: int) -> None:
        assert windows > 0, "an epoch has at least one window"
        self.windows = windows
        self._rows = math.isqrt(windows - 1) + 1
        self._columns = -(-windows // self._rows)
        self._seed = mix(seed & _MASK)

    def shuffled(self, epochs: Numbers, indices: Numbers) -> Numbers:
        """The window at each index of each epoch; one call for thousands costs 0.1 µs per window."""
        keys = _mixed(epochs.astype(np.uint64) ^ np.uint64(self._seed))
        numbers = self._once(keys, indices.astype(np.uint64))
        while (astray := np.flatnonzero(numbers >= self.windows)).size:
            numbers[astray] = self._once(keys[astray], numbers[astray])
        return numbers.astype(np.int64)

    def _once(self, keys: _Words, numbers: _Words) -> _Words:
        rows, columns = np.uint64(self._rows), np.uint64(self._columns)
        row, column = numbers // columns, numbers % columns
        for _ in range(ROUNDS):
            keys = keys + np.uint64(_GOLDEN)
            row = (row + _mixed(keys ^ column) % rows) % rows
            keys = keys + np.uint64(_GOLDEN)
            column = (column + _mixed(keys ^ row) % columns) % columns
        return row * columns + column


def shuffled_reference(*, windows: int, seed: int, epoch: int, index: int) -> int:
    """The window at one index, with Python's own numbers. `WindowOrder` must equal it."""
    rows = math.isqrt(windows - 1) + 1
    columns = -(-windows // rows)
    number = index
    while True:
        key = mix(epoch ^ mix(seed & _MASK))
        row, column = divmod(number, columns)
        for _ in range(ROUNDS):
            key = key + _GOLDEN & _MASK
            row = (row + mix(key ^ column) % rows) % rows
            key = key + _GOLDEN & _MASK
            column = (column + mix(key ^ row) % columns) % columns
        number = row * columns + column
        if number < windows:
            return number


def border_shifts(epochs: Numbers, *, context: int, seed: int) -> Numbers:
    """Tokens by which each epoch's borders are shifted: a different shift in each of `context` epochs.

    The step is near the golden section of the context and shares no divisor with it: the borders of
    a few epochs lie far apart, and every shift comes once before one repeats.
    """
    step = max(1, round(context * 0.618))
    while math.gcd(step, context) > 1:
        step += 1
    first = mix(mix(seed & _MASK) ^ _GOLDEN) % context
    return (first + epochs % context * step) % context


def mix(number: int) -> int:
    """splitmix64's finalizer: a bijection on 64 bits in which every bit affects every other."""
    number = (number ^ number >> 30) * _FIRST & _MASK
    number = (number ^ number >> 27) * _SECOND & _MASK
    return number ^ number >> 31


def _mixed(words: _Words) -> _Words:
    """Apply `mix` to a whole array."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(_FIRST)
    words = (words ^ words >> np.uint64(27)) * np.uint64(_SECOND)
    return words ^ words >> np.uint64(31)
