"""Contiguous windows: the whole stream, end joined to start, cut every `context` tokens.

    tokens 0 … 9, context 4, shift 1      [1 2 3 4] [5 6 7 8] [9 0]
                                 targets   2 3 4 5   6 7 8 9   · 1

Each epoch cuts at different places. The last window is short when the context does not divide the stream;
its rest is padding. A token's target is the one that follows it in the stream: the last token has none, and
the first token is nobody's target. So in every epoch each token is in one window, and each token except the
first is a target once.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from lowtide.dataset.order import Numbers, border_shifts
from lowtide.errors import UsageError
from lowtide.shards.token_pieces import Pieces

_NONE: Numbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Windows as rows of `context + 1` tokens: the window's own, then the token that follows it."""

    pieces: Pieces
    """Where the tokens lie in the stream; places count through all rows."""
    piece_rows: Numbers
    """The row of each piece, ascending."""
    filled: Numbers | None
    """Tokens in each row; None when all rows are full."""
    silent: Numbers
    """Positions that nothing follows, counted through rows of `context`; padding is not among them."""
    closing: Numbers
    """Positions of documents' last tokens, in document windows."""


class WindowRun(Protocol):
    """Consecutive windows that were looked up together."""

    def rows(self, start: int, stop: int) -> Rows:
        """Where the tokens of windows `start` up to `stop` of these lie."""


class Windows(Protocol):
    """How a stream is cut: windows by number, with the tokens in each."""

    @property
    def count(self) -> int:
        """Windows in an epoch, equal for all epochs."""

    @property
    def tokens(self) -> int:
        """Tokens in all windows of an epoch."""

    def tokens_in(self, epochs: Numbers, numbers: Numbers) -> int:
        """Tokens in these windows."""

    def look_up(self, epochs: Numbers, numbers: Numbers) -> WindowRun:
        """Look up thousands of windows at once: their common arithmetic is done in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousWindows:
    """Windows of the stream's tokens from `start` on."""

    start: int
    tokens: int
    context: int
    seed: int
    shifted: bool = True
    """False cuts every epoch at 0, `context`, 2 · `context`, …; for evaluation."""

    def __post_init__(self) -> None:
        if self.tokens <= self.context:
            raise UsageError(
                f"a context of {self.context} tokens and the one to predict are more than the "
                f"{self.tokens} tokens there are",
                remedy=f"pass a context of at most {self.tokens - 1}, or more data"
                if self.tokens > 1
                else "make the dataset from more text, or use a smaller validation split",
            )

    @property
    def count(self) -> int:
        return -(-self.tokens // self.context)

    def tokens_in(self, epochs: Numbers, numbers: Numbers) -> int:
        return int(self.look_up(epochs, numbers).filled.sum())

    def look_up(self, epochs: Numbers, numbers: Numbers) -> ContiguousRun:
        shifts = border_shifts(epochs, context=self.context, seed=self.seed) if self.shifted else 0
        starts = (numbers * self.context + shifts) % self.tokens
        last = self.tokens - (self.count - 1) * self.context
        filled = np.where(numbers == self.count - 1, last, self.context)
        odd = (filled < self.context) | (starts + filled >= self.tokens)
        return ContiguousRun(
            windows=self, starts=starts, filled=filled, odd=np.flatnonzero(odd).tolist()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousRun:
    """Contiguous windows that were looked up together."""

    windows: ContiguousWindows
    starts: Numbers
    filled: Numbers
    odd: list[int]
    """The windows that are short, or reach the end of the stream: one or two per epoch."""

    def rows(self, start: int, stop: int) -> Rows:
        if bisect_left(self.odd, start) == bisect_left(self.odd, stop):
            return _plain_rows(self.starts[start:stop] + self.windows.start, self.windows.context)
        return self._odd_rows(self.starts[start:stop], self.filled[start:stop])

    def _odd_rows(self, starts: Numbers, filled: Numbers) -> Rows:
        context, tokens = self.windows.context, self.windows.tokens
        row_numbers = np.arange(len(starts), dtype=np.int64)
        counts = filled + 1
        across = np.flatnonzero(starts + filled >= tokens)
        before = tokens - starts[across]
        rest = counts[across] - before
        counts[across] = before
        places = row_numbers * (context + 1)
        columns = (
            np.concatenate([row_numbers, across]),
            np.concatenate([starts, np.zeros_like(across)]) + self.windows.start,
            np.concatenate([counts, rest]),
            np.concatenate([places, places[across] + before]),
        )
        order = np.argsort(columns[0], kind="stable")
        piece_rows, starts, counts, places = (column[order] for column in columns)
        return Rows(
            pieces=Pieces(starts=starts, counts=counts, places=places),
            piece_rows=piece_rows,
            filled=filled,
            silent=across * context + before - 1,
            closing=_NONE,
        )


def _plain_rows(starts: Numbers, context: int) -> Rows:
    """Full windows in one piece each, as nearly all are."""
    row_numbers, counts, places = _plain_columns(len(starts), context)
    return Rows(
        pieces=Pieces(starts=starts, counts=counts, places=places),
        piece_rows=row_numbers,
        filled=None,
        silent=_NONE,
        closing=_NONE,
    )


@lru_cache(maxsize=16)
def _plain_columns(count: int, context: int) -> tuple[Numbers, Numbers, Numbers]:
    """Row number, length and place of each piece of full windows; kept, for batches are of one size."""
    row_numbers = np.arange(count, dtype=np.int64)
    counts = np.full(count, context + 1, dtype=np.int64)
    return row_numbers, counts, row_numbers * (context + 1)
