"""Which document each position of a window belongs to, so that attention can stay inside it.

A row's first document is 0, the next one 1, and so on; padding is -1. Borders come from the document
index; where there is none, from the end-of-text token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lowtide.dataset.order import Numbers
from lowtide.dataset.windows import Rows
from lowtide.settings import Placement
from lowtide.shards.documents import DocumentIndex
from lowtide.shards.layout import TokenArray

PADDING = -1
_STRIDE = 1024


class Borders(Protocol):
    """Distinguishes the documents in a row."""

    def fill(self, ids: Numbers, rows: Rows, raw: TokenArray) -> None:
        """Number the documents of each row, from 0; `raw` holds the rows' tokens."""


class IndexedBorders:
    """Borders from an index. Holds one end in 1,024, read when the first is needed."""

    def __init__(self, documents: DocumentIndex) -> None:
        self._documents = documents
        self._marks: Numbers | None = None

    def between(self, start: int, stop: int) -> Numbers:
        """The document ends above `start` and below `stop`."""
        marks = self._known_marks()
        block = int(np.searchsorted(marks, start, side="right"))
        first = block * _STRIDE
        found = [np.empty(0, dtype=np.int64)]
        while first < self._documents.count:
            ends = self._documents.between(first, min(self._documents.count, first + _STRIDE))
            found.append(ends[(ends > start) & (ends < stop)])
            if ends[-1] >= stop:
                break
            first += _STRIDE
        return np.unique(np.concatenate(found))

    def _known_marks(self) -> Numbers:
        if self._marks is None:
            last = range(_STRIDE - 1, self._documents.count, _STRIDE)
            self._marks = np.array([self._documents.end(number) for number in last], dtype=np.int64)
        return self._marks

    def fill(self, ids: Numbers, rows: Rows, raw: TokenArray) -> None:  # noqa: ARG002
        """Number the documents of each row by the index."""
        context = ids.shape[1]
        ids[:] = 0
        pieces = rows.pieces
        previous = -1
        for at, row in enumerate(rows.piece_rows.tolist()):
            column = int(pieces.places[at]) - row * (context + 1)
            start, count = int(pieces.starts[at]), int(pieces.counts[at])
            if row == previous and column < context:
                ids[row, column] += 1
            for end in self.between(start, start + count).tolist():
                if column + end - start < context:
                    ids[row, column + end - start] += 1
            previous = row
        np.cumsum(ids, axis=1, out=ids)


class PieceBorders:
    """Borders between the pieces of a row: document windows are packed from documents, one per piece."""

    def fill(self, ids: Numbers, rows: Rows, raw: TokenArray) -> None:  # noqa: ARG002
        """Number the documents of each row, without reading index or tokens."""
        ids[:] = 0
        _mark_joints(ids, rows)
        np.cumsum(ids, axis=1, out=ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBorders:
    """Borders where the end-of-text token stands."""

    end_of_text: int
    placement: Placement

    def fill(self, ids: Numbers, rows: Rows, raw: TokenArray) -> None:
        """Number the documents of each row, from its own tokens."""
        stands = raw[:, :-1] == self.end_of_text
        ids[:, 0] = 0
        # After a document, the token closes it and the next position is the next document's.
        ids[:, 1:] = stands[:, 1:] if self.placement == "start" else stands[:, :-1]
        _mark_joints(ids, rows)
        np.cumsum(ids, axis=1, out=ids)


def _mark_joints(ids: Numbers, rows: Rows) -> None:
    """Set 1 where a row's second piece, or a later one, begins."""
    context = ids.shape[1]
    later = np.flatnonzero(np.diff(rows.piece_rows, prepend=-1) == 0)
    columns = rows.pieces.places[later] - rows.piece_rows[later] * (context + 1)
    inside = columns < context
    ids[rows.piece_rows[later[inside]], columns[inside]] = 1
