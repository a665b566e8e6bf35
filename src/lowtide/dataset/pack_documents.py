"""Document windows: no target crosses a document, and no document that fits into a window is cut.

A document longer than the context fills whole windows first; its rest, and every shorter document, is
packed with others, longest first, each where it leaves the least space. That is done for 256 documents at a
time, from their ends alone: the windows of a block follow from its own documents, so finding a window means
packing no block but its own. One number per block is kept.

    context 8, documents of 14, 5, 3 and 2 tokens      8 of the first | 6 2 | 5 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowtide.dataset.order import Numbers
from lowtide.dataset.windows import Rows
from lowtide.errors import UsageError, VerificationError
from lowtide.native import load_native
from lowtide.shards.documents import DocumentIndex, documents_before
from lowtide.shards.token_pieces import Pieces

if TYPE_CHECKING:
    import ctypes

BLOCK_DOCUMENTS = 256
_MOST_BLOCKS = 1 << 17
_KEPT_DOCUMENTS = 320 * BLOCK_DOCUMENTS
"""Blocks for eight batches of 32 windows and a few: 3 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A few hundred documents and how they were packed."""

    edges: Numbers
    """Where the first document starts, then where each ends."""
    full_after: Numbers
    """Full windows of all documents up to each."""
    rests: Numbers
    """Tokens of each document that its full windows leave."""
    packed: Numbers
    """The documents with a rest, longest rest first."""
    rows: Numbers
    """The packed window of each document in `packed`."""
    count: int
    """Windows of the block, full and packed."""


class DocumentWindows:
    """Windows of whole documents. Holds 8 bytes per block and 3 MB; making it reads all document ends once."""

    def __init__(
        self,
        documents: DocumentIndex,
        *,
        start: int,
        tokens: int,
        context: int,
        block_documents: int = BLOCK_DOCUMENTS,
    ) -> None:
        self._documents = documents
        self._start = start
        self._stop = start + tokens
        self.tokens = tokens
        self.context = context
        self._packer = make_packer(context)
        self._kept: dict[int, _Block] = {}
        self._first_document = documents_before(documents, start)
        after = documents_before(documents, self._stop - 1) + 1 if tokens else self._first_document
        after = min(documents.count, after)
        self._document_count = after - self._first_document
        last_end = documents.end(after - 1) if self._document_count else start
        self._cuts_document = last_end > self._stop
        while self._document_count > block_documents * _MOST_BLOCKS:
            block_documents *= 2
        self._block_documents = block_documents
        self.long_documents = 0
        """Documents longer than a window, which are cut."""
        self._first_windows = self._count_windows()
        if not self.count:
            raise UsageError(
                "there are no documents to make windows of",
                remedy="pass `windows='contiguous'`, or another split",
            )

    @property
    def count(self) -> int:
        return int(self._first_windows[-1])

    def tokens_in(self, epochs: Numbers, numbers: Numbers) -> int:
        filled = self.look_up(epochs, numbers).rows(0, len(numbers)).filled
        assert filled is not None, "document windows always say how full they are"
        return int(filled.sum())

    def look_up(self, epochs: Numbers, numbers: Numbers) -> DocumentRun:  # noqa: ARG002
        return DocumentRun(windows=self, numbers=numbers)

    def rows(self, numbers: Numbers) -> Rows:
        """Where the tokens of these windows lie, in any epoch: the borders are the documents' own."""
        blocks = np.searchsorted(self._first_windows, numbers, side="right") - 1
        inside = numbers - self._first_windows[blocks]
        found = [
            _pieces_of(self._block(block), number, self.context)
            for block, number in zip(blocks.tolist(), inside.tolist(), strict=True)
        ]
        row_numbers = np.repeat(np.arange(len(found)), [len(one) for one in found])
        starts, stops, document_ends = np.concatenate(found).T
        counts = stops - starts
        whole = stops == document_ends
        filled = np.bincount(row_numbers, weights=counts).astype(np.int64)
        columns = np.cumsum(counts) - counts - (np.cumsum(filled) - filled)[row_numbers]
        last = row_numbers * self.context + columns + counts - 1
        # The split's border may cut a document: its piece does not end where the document does.
        cut = whole & (stops == self._stop) & self._cuts_document
        return Rows(
            # A window that ends inside its document reads on: the next token is its last target.
            pieces=Pieces(
                starts=starts,
                counts=counts + ~whole,
                places=row_numbers * (self.context + 1) + columns,
            ),
            piece_rows=row_numbers,
            filled=filled,
            silent=last[cut],
            closing=last[whole & ~cut],
        )

    def _count_windows(self) -> Numbers:
        blocks = -(-self._document_count // self._block_documents)
        counts = np.zeros(blocks + 1, dtype=np.int64)
        for number in range(blocks):
            block = self._pack(number)
            counts[number + 1] = block.count
            self.long_documents += int(np.count_nonzero(np.diff(block.edges) > self.context))
        after: Numbers = np.cumsum(counts)
        return after

    def _block(self, number: int) -> _Block:
        """A block's packing, cached: reading ahead asks twice for each."""
        found = self._kept.pop(number, None)
        if found is None:
            found = self._pack(number)
        self._kept[number] = found  # last in the dict: used last
        if len(self._kept) * self._block_documents > _KEPT_DOCUMENTS:
            del self._kept[next(iter(self._kept))]
        return found

    def _pack(self, number: int) -> _Block:
        edges = self._edges(number)
        lengths = np.diff(edges)
        full = lengths // self.context
        rests = lengths - full * self.context
        packed = np.argsort(-rests, kind="stable")[: np.count_nonzero(rests)]
        rows, made = self._packer.pack(rests[packed])
        return _Block(
            edges=edges,
            full_after=np.cumsum(full),
            rests=rests,
            packed=packed,
            rows=rows,
            count=int(full.sum()) + made,
        )

    def _edges(self, number: int) -> Numbers:
        """Where a block's documents begin and end, cut at the borders of the split."""
        first = self._first_document + number * self._block_documents
        stop = min(first + self._block_documents, self._first_document + self._document_count)
        ends = self._documents.between(max(0, first - 1), stop)
        edges = ends if first else np.concatenate([np.zeros(1, dtype=np.int64), ends])
        if (np.diff(edges) < 0).any() or edges[0] < 0:
            raise VerificationError(
                f"the index says that documents {first} to {stop} end before they start",
                remedy="put the index back from a copy, or make the dataset again",
            )
        return np.clip(edges, self._start, self._stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRun:
    """Document windows looked up by number; a block is packed when its window is needed."""

    windows: DocumentWindows
    numbers: Numbers

    def rows(self, start: int, stop: int) -> Rows:
        return self.windows.rows(self.numbers[start:stop])


def _pieces_of(block: _Block, number: int, context: int) -> Numbers:
    """The pieces in one window of a block, one row each: start, stop, and the end of its document."""
    full = int(block.full_after[-1])
    if number < full:
        document = int(np.searchsorted(block.full_after, number, side="right"))
        before = int(block.full_after[document - 1]) if document else 0
        start = int(block.edges[document]) + (number - before) * context
        return np.array([[start, start + context, block.edges[document + 1]]], dtype=np.int64)
    members = np.sort(block.packed[block.rows == number - full])
    ends = block.edges[members + 1]
    return np.stack([ends - block.rests[members], ends, ends], axis=1)


class PlainPacker:
    """Best fit in Python. Holds nothing."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity

    def pack(self, lengths: Numbers) -> tuple[Numbers, int]:
        """The row of each length (longest first), and the number of rows."""
        rows, made = best_fit_reference(lengths.tolist(), self._capacity)
        return np.array(rows, dtype=np.int64), made


class NativePacker:
    """Best fit in the compiled part. Holds 8 bytes of scratch memory for each token of the context."""

    def __init__(self, capacity: int, native: ctypes.CDLL) -> None:
        self._capacity = capacity
        self._native = native
        self._newest = np.empty(capacity + 1, dtype=np.int64)
        self._open = np.empty(capacity // 64 + 1, dtype=np.uint64)

    def pack(self, lengths: Numbers) -> tuple[Numbers, int]:
        """The row of each length (longest first), and the number of rows."""
        lengths = np.ascontiguousarray(lengths)
        rows, older = np.empty_like(lengths), np.empty_like(lengths)
        made = self._native.lt_best_fit(
            len(lengths),
            lengths.ctypes.data,
            self._capacity,
            rows.ctypes.data,
            self._newest.ctypes.data,
            older.ctypes.data,
            self._open.ctypes.data,
        )
        return rows, int(made)


def make_packer(capacity: int) -> PlainPacker | NativePacker:
    """The compiled packer if it is available, else the one in Python."""
    try:
        return NativePacker(capacity, load_native())
    except UsageError:
        return PlainPacker(capacity)


def best_fit_reference(lengths: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """Put each length into the row where it leaves the least space; of equal rows, the one touched last.

    >>> best_fit_reference([6, 5, 3, 2], 8)
    ([0, 1, 1, 0], 2)
    """
    left: list[tuple[int, int, int]] = []  # (space left, touched when, row)
    rows: list[int] = []
    for when, length in enumerate(lengths):
        fitting = [entry for entry in left if entry[0] >= length]
        if fitting:
            best = min(fitting, key=lambda entry: (entry[0], -entry[1]))
            left.remove(best)
        else:
            best = (capacity, when, len(left))
        left.append((best[0] - length, when, best[2]))
        rows.append(best[2])
    return rows, len(left)
