"""Windows into `x` and `y`: read raw, widen, silence what has no target.

Arrays are handed out again and again: fresh memory would cost more than filling it, for the kernel clears every
page of it first (175 µs against 12 for a batch of 32 × 1,024).
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from lowtide.dataset.find_tokens import FoundTokens
from lowtide.dataset.order import Numbers
from lowtide.dataset.settings import Settings
from lowtide.dataset.windows import Rows
from lowtide.errors import DoesNotFitError, UsageError, VerificationError
from lowtide.shards.layout import LARGEST_VOCABULARY, TokenArray
from lowtide.shards.token_pieces import Copier
from lowtide.units import format_bytes


class Borders(Protocol):
    """Tells documents apart."""

    def fill(self, ids: Numbers, rows: Rows, raw: TokenArray) -> None:
        """Number the documents of each row, from 0."""


class ArrayPool:
    """int64 arrays whose memory comes back by itself when the last view of them is dropped."""

    def __init__(self) -> None:
        self._recent: deque[bytearray] = deque()
        """What was lent, in this order; free again once it is not in `_lent`."""
        self._lent: dict[int, weakref.ref[Numbers]] = {}

    def take(self, arrays: int, rows: int, columns: int) -> tuple[Numbers, ...]:
        """Some arrays of the same shape, of any content."""
        memory = self._take_memory(8 * arrays * rows * columns)
        flat: Numbers = np.frombuffer(memory, dtype=np.int64)
        key = id(memory)
        # Every view that numpy or torch makes of `flat` keeps `flat` itself alive, and so the memory.
        # The callback is C alone: Python swallows a Ctrl-C that comes while it runs Python code there.
        self._lent[key] = weakref.ref(flat, partial(self._lent.pop, key))
        self._recent.append(memory)
        return tuple(flat.reshape(arrays, rows, columns))

    def _take_memory(self, wanted_bytes: int) -> bytearray:
        for _ in range(len(self._recent)):
            try:
                memory = self._recent.popleft()
            except IndexError:  # another thread took the last one
                break
            if id(memory) in self._lent:
                self._recent.append(memory)
            elif len(memory) == wanted_bytes:
                return memory
        try:
            return bytearray(wanted_bytes)
        except (MemoryError, OverflowError) as cause:
            raise DoesNotFitError(
                f"a batch of {format_bytes(wanted_bytes)} cannot be had",
                remedy="ask for fewer windows at a time, or for shorter ones",
            ) from cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What stands where no token does."""

    ignore_index: int
    """The target of padding, and of a position that nothing follows."""
    closing: int
    """The target at a document's last token: `ignore_index`, or end-of-text where that comes first."""
    vocabulary_size: int
    """Every id must be smaller."""


def choose_targets(found: FoundTokens, settings: Settings) -> Targets:
    """Where end-of-text stands in front of documents, a document's last token still learns that it ends.

    Of an example, its own bits say what is learnt.
    """
    tokenizer = found.dataset.tokenizer
    end_of_text = tokenizer.end_of_text if tokenizer else None
    by_document = settings.windows == "document" and found.split.learnt is None
    learns_end = by_document and found.dataset.eot == "start"
    return Targets(
        ignore_index=settings.ignore_index,
        closing=end_of_text if learns_end and end_of_text is not None else settings.ignore_index,
        vocabulary_size=tokenizer.vocabulary_size if tokenizer else LARGEST_VOCABULARY,
    )


class BatchReader:
    """Reads rows of one stream, for one thread at a time. Holds the raw tokens of one batch."""

    def __init__(
        self, copier: Copier, *, dtype: np.dtype[np.unsignedinteger], context: int
    ) -> None:
        self._copier = copier
        self._context = context
        self._raw: TokenArray = np.zeros((0, context + 1), dtype=dtype)

    def fill(
        self,
        rows: Rows,
        targets: Targets,
        x: Numbers,
        y: Numbers,
        *,
        borders: Borders | None = None,
        ids: Numbers | None = None,
    ) -> None:
        """Fill `x` and `y` (and `ids`), each contiguous and as wide as the context."""
        largest = None
        if rows.filled is None and borders is None:
            largest = self._copier.widen(rows.pieces, x, y)
        if largest is None:
            largest = self._fill_plainly(rows, x, y, borders, ids)
        _check_id(largest, targets.vocabulary_size)
        if rows.closing.size:
            y.reshape(-1)[rows.closing] = targets.closing
        if rows.silent.size:
            y.reshape(-1)[rows.silent] = targets.ignore_index
        if rows.filled is not None:
            _pad(rows.filled, targets.ignore_index, x, y, ids)

    def _fill_plainly(
        self, rows: Rows, x: Numbers, y: Numbers, borders: Borders | None, ids: Numbers | None
    ) -> int:
        """By way of the raw tokens, for rows of any kind; the largest id."""
        raw = self._room(len(x))
        self._copier.copy(rows.pieces, raw.reshape(-1))
        np.copyto(x, raw[:, :-1])
        np.copyto(y, raw[:, 1:])
        if ids is not None and borders is not None:
            borders.fill(ids, rows, raw)
        return int(raw.max())

    def fetch(self, rows: Rows) -> None:
        """Ask for rows to be read ahead."""
        self._copier.fetch(rows.pieces)

    def file_times(self) -> list[tuple[int, int]]:
        """Size and time of change of each file, as they were when it was opened."""
        return self._copier.file_times()

    def close(self) -> None:
        """Let go of the files."""
        self._copier.close()

    def _room(self, count: int) -> TokenArray:
        """Zeros, not what the batch before left there: padding must not hold an id of it."""
        if len(self._raw) != count:
            self._raw = np.zeros((count, self._context + 1), dtype=self._raw.dtype)
        self._raw[:] = 0
        return self._raw


def _check_id(largest: int, vocabulary_size: int) -> None:
    if largest >= vocabulary_size:
        raise VerificationError(
            f"id {largest} is beyond the vocabulary of {vocabulary_size}",
            remedy="name the tokenizer that made the tokens, or see `lowtide verify`",
        )


def _pad(filled: Numbers, ignore_index: int, x: Numbers, y: Numbers, ids: Numbers | None) -> None:
    for row in np.flatnonzero(filled < x.shape[1]).tolist():
        at = int(filled[row])
        x[row, at:] = 0
        y[row, at:] = ignore_index
        if ids is not None:
            ids[row, at:] = -1


def check_arrays(arrays: tuple[Numbers, ...], context: int) -> None:
    """They are written to by address: another shape or kind would write beside them."""
    wanted = (len(arrays[0]), context)
    for one in arrays:
        plain = one.dtype == np.int64 and one.flags.c_contiguous and one.flags.writeable
        if not plain or one.shape != wanted:
            raise UsageError(
                f"an array of {one.dtype} and shape {one.shape} cannot be filled",
                remedy=f"pass writeable, contiguous int64 arrays of shape {wanted}",
            )
