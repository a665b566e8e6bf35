"""Windows one by one, for tools with a loop of their own: DataLoader, and the Hugging Face Trainer.

Both take any object with a length and an index. Item i is the window at position i of the order, which is
shuffled already: the tool must not shuffle it again. No torch is needed here; their collators make the
tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from lowtide.dataset.order import Numbers
from lowtide.dataset.settings import whole
from lowtide.errors import UsageError

_HUGGING_FACE_IGNORES = -100


class Stream(Protocol):
    """An endless row of windows: a TokenDataset or a Mixture."""

    @property
    def context(self) -> int:
        """Tokens in a window."""

    def fill(self, first: int, arrays: tuple[Numbers, ...]) -> None:
        """Windows from position `first` on into x, y and, where there is a third array, documents."""

    def read(self, first: int, count: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """Windows from position `first` on, in new arrays."""

    def identity(self) -> dict[str, str | int | float | None]:
        """What must be unchanged when training resumes."""


class WindowItems:
    """Item i is `(x, y)` of the i-th window from `first` on."""

    def __init__(self, stream: Stream, *, first: int, stop: int) -> None:
        first = whole("start", first, at_least=0)
        if first >= stop:
            raise UsageError(
                f"from position {first} on there is nothing before position {stop}",
                remedy="start earlier, or ask for more",
            )
        self._stream = stream
        self._first = first
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._first

    def __getitem__(self, index: int) -> tuple[Numbers, Numbers]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Numbers, Numbers]]:
        """Several items at once, as newer DataLoaders ask; neighbours are read together."""
        x, y = _read_all(self._stream, [self._position(index) for index in indices])
        return list(zip(x, y, strict=True))

    def _position(self, index: int) -> int:
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(
                f"an item is an integer, not {index!r}; `read(first, count)` gives several windows"
            ) from None
        if not -len(self) <= number < len(self):
            raise IndexError(f"item {number} of {len(self)}")
        return self._first + number % len(self)


class TrainerItems:
    """Item i is `input_ids` and `labels`. The model shifts labels itself, so each stands at its own token.

    A window of n tokens gives n - 1 targets that way; positions without a target get -100.
    """

    def __init__(self, stream: Stream, *, first: int, stop: int) -> None:
        self._items = WindowItems(stream, first=first, stop=stop)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Numbers]:
        return _with_labels(*self._items[index])

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Numbers]]:
        """Several items at once."""
        return [_with_labels(x, y) for x, y in self._items.__getitems__(indices)]


def _with_labels(x: Numbers, y: Numbers) -> dict[str, Numbers]:
    labels = np.empty_like(x)
    labels[0] = _HUGGING_FACE_IGNORES
    labels[1:] = np.where(y[:-1] < 0, _HUGGING_FACE_IGNORES, y[:-1])
    return {"input_ids": x, "labels": labels}


def _read_all(stream: Stream, positions: list[int]) -> tuple[Numbers, Numbers]:
    """Windows at any positions; consecutive ones are read in one go."""
    x = np.empty((len(positions), stream.context), dtype=np.int64)
    y = np.empty_like(x)
    if not positions:
        return x, y
    breaks = [at for at, (a, b) in enumerate(pairwise(positions), start=1) if b != a + 1]
    for start, stop in pairwise([0, *breaks, len(positions)]):
        stream.fill(positions[start], (x[start:stop], y[start:stop]))
    return x, y
