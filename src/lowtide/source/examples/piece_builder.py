"""Examples one behind the other, until they make a piece of block text.

Templates append parts (bytes) and say which of them are in the loss mask; positions are worked out for all at
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lowtide.errors import DataError
from lowtide.settings import Learn
from lowtide.source.blocks import LISTED_BAD_ROWS, NO_SPANS, BadRow, Cursor, Piece, Spans


@dataclass(slots=True, kw_only=True)
class PieceBuilder:
    """Examples that belong to one piece. The last one may still be open."""

    delimiter: bytes
    learn: Learn
    parts: list[bytes] = field(default_factory=list)
    learnt: list[int] = field(default_factory=list)
    """Indexes of the parts in the loss mask, in order; between two of them stands one that is not."""
    size_bytes: int = 0
    """Length of all whole examples with their delimiters."""
    bad: list[BadRow] = field(default_factory=list)
    bad_count: int = 0
    empty_count: int = 0
    _ends: list[int] = field(default_factory=list)
    """The number of parts up to the end of each whole example."""
    _whole_learnt: int = 0
    """How many of `learnt` belong to whole examples."""

    def open_bytes(self) -> int:
        """Length of the open example."""
        return sum(map(len, self.parts[self._ends[-1] if self._ends else 0 :]))

    def open_learns(self) -> bool:
        """Whether a part of the open example is in the loss mask."""
        return self.learn == "all" or len(self.learnt) > self._whole_learnt

    def close_example(self, size_bytes: int) -> None:
        """Put the delimiter behind the open example of that length. An empty one is only counted."""
        if not size_bytes:
            self.drop_example()
            self.empty_count += 1
            return
        self.parts.append(self.delimiter)
        self.size_bytes += size_bytes + len(self.delimiter)
        self._ends.append(len(self.parts))
        self._whole_learnt = len(self.learnt)

    def drop_example(self) -> None:
        """Remove the open example."""
        del self.parts[self._ends[-1] if self._ends else 0 :]
        del self.learnt[self._whole_learnt :]

    def note_bad(self, row: BadRow) -> None:
        """Count a bad row, and list it among the first."""
        self.bad_count += 1
        if len(self.bad) < LISTED_BAD_ROWS:
            self.bad.append(row)

    def take_piece(self, *, after: Cursor, done_bytes: int, name: str) -> Piece:
        """The piece that all examples so far make; another begins behind it."""
        text = b"".join(self.parts)
        if text.count(self.delimiter) != len(self._ends):
            raise DataError(
                f"{name}: an example contains {self.delimiter!r}, which lowtide puts between examples",
                remedy="take it out of the file",
            )
        piece = Piece(
            text=text,
            document_count=len(self._ends),
            after=after,
            done_bytes=done_bytes,
            bad=tuple(self.bad),
            bad_count=self.bad_count,
            empty_count=self.empty_count,
            learnt=self._spans(),
        )
        self.parts, self.learnt, self._ends, self.bad = [], [], [], []
        self.size_bytes = self.bad_count = self.empty_count = self._whole_learnt = 0
        return piece

    def _spans(self) -> Spans:
        if not self.parts:
            return NO_SPANS
        lengths = np.fromiter(map(len, self.parts), np.int64, len(self.parts))
        ends = np.cumsum(lengths)
        if self.learn == "all":
            closed = ends[np.array(self._ends) - 1]
            begins = np.concatenate(([0], closed[:-1]))
            return np.stack([begins, closed - len(self.delimiter)], axis=1)
        learnt = np.array(self.learnt, dtype=np.int64)
        learnt = learnt[lengths[learnt] > 0]
        return np.stack([ends[learnt] - lengths[learnt], ends[learnt]], axis=1)
