"""Where documents lie in a token stream: read from our index, or found by a scan.

Both answer the same questions, as Megatron's index does (`megatron.MegatronIndex`), and none holds the
answers: an index of a billion documents stays on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lowtide.settings import Placement
from lowtide.shards.layout import NPY_HEADER_BYTES, EndArray, TokenArray
from lowtide.shards.payload import INDEX_PIECE_BYTES, read_exactly, read_pieces

_SCAN_TOKENS = 1 << 18
"""Where every token ends a document, their ends take 2 MiB, and a few copies of that."""


class DocumentIndex(Protocol):
    """Document `k` consists of the tokens from end `k - 1` (or 0) up to end `k`."""

    @property
    def path(self) -> Path | None:
        """The file that stores the ends; None where a scan finds them."""

    @property
    def count(self) -> int:
        """Number of documents that end in the stream."""

    def ends(self, first: int = 0) -> Iterator[EndArray]:
        """The ends from document `first` on, in pieces; use each before asking for the next."""

    def end(self, number: int) -> int:
        """The position after one document's last token."""

    def between(self, first: int, stop: int) -> EndArray:
        """The ends of documents `first` up to `stop`; meant for a few."""


def documents_before(documents: DocumentIndex, position: int) -> int:
    """Number of documents that end at or before a position; a few dozen look-ups in an index."""
    low, high = 0, documents.count
    while low < high:
        middle = (low + high) // 2
        if documents.end(middle) <= position:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocuments:
    """Our own index: a 1-D int64 npy of ends."""

    path: Path
    count: int

    def ends(self, first: int = 0) -> Iterator[EndArray]:
        """Read the file from document `first` on."""
        offset = NPY_HEADER_BYTES + 8 * first
        length = 8 * max(0, self.count - first)
        for piece in read_pieces(self.path, offset, length, piece_bytes=INDEX_PIECE_BYTES):
            yield np.frombuffer(piece, dtype="<i8")

    def end(self, number: int) -> int:
        """Read eight bytes."""
        return int(self.between(number, number + 1)[0])

    def between(self, first: int, stop: int) -> EndArray:
        """Read eight bytes per document, in one go."""
        found = read_exactly(self.path, NPY_HEADER_BYTES + 8 * first, 8 * (stop - first))
        return np.frombuffer(found, dtype="<i8")


class ScannedDocuments:
    """Documents of a stream without an index, found by their end-of-text token.

    The first question that needs it costs one pass over the tokens, of which one number is kept
    for every quarter of a million tokens.
    """

    path = None

    def __init__(
        self,
        stream: Callable[[int, int], Iterator[TokenArray]],
        *,
        tokens: int,
        end_of_text: int,
        placement: Placement,
    ) -> None:
        self._stream = stream
        self._tokens = tokens
        self._end_of_text = end_of_text
        self._shift = 0 if placement == "start" else 1
        self._counts: EndArray | None = None

    @property
    def count(self) -> int:
        """Number of documents; the first call costs one pass over the tokens."""
        counts = self._cumulative()
        return int(counts[-1]) if len(counts) else 0

    def ends(self, first: int = 0) -> Iterator[EndArray]:
        """One pass over the tokens."""
        done = 0
        for start in range(0, self._tokens, _SCAN_TOKENS):
            found = self._scan(start)
            skipped = min(len(found), max(0, first - done))
            done += len(found)
            if skipped < len(found):
                yield found[skipped:]

    def end(self, number: int) -> int:
        """Scan a quarter of a million tokens, once the counts are known."""
        counts = self._cumulative()
        block = int(np.searchsorted(counts, number, side="right"))
        before = int(counts[block - 1]) if block else 0
        return int(self._scan(block * _SCAN_TOKENS)[number - before])

    def between(self, first: int, stop: int) -> EndArray:
        """One scan per end: for many, write an index first (`dataset.find_tokens.stored_documents`)."""
        return np.array([self.end(number) for number in range(first, stop)], dtype=np.int64)

    def _cumulative(self) -> EndArray:
        """Per block of tokens: documents that end in it or before it."""
        if self._counts is None:
            starts = range(0, self._tokens, _SCAN_TOKENS)
            self._counts = np.cumsum([len(self._scan(start)) for start in starts], dtype=np.int64)
        return self._counts

    def _scan(self, start: int) -> EndArray:
        """The ends in the block of tokens from `start`; the stream's end always is one."""
        stop = min(self._tokens, start + _SCAN_TOKENS)
        found = [np.empty(0, dtype=np.int64)]
        at = start
        for piece in self._stream(start, stop):
            found.append(np.flatnonzero(piece == self._end_of_text) + (at + self._shift))
            at += len(piece)
        ends = np.concatenate(found)
        if stop == self._tokens and (not len(ends) or ends[-1] != self._tokens):
            ends = np.append(ends, self._tokens)
        return ends[ends > 0]  # an end-of-text in front of the first document ends nothing
