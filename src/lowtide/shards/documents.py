"""Where documents lie in a token stream: read from our index, from Megatron's, or found by a scan.

All three answer the same questions and none holds the answers: an index of a billion documents
stays on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lowtide.errors import VerificationError
from lowtide.shards.layout import NPY_HEADER_BYTES, EndArray, Placement, TokenArray
from lowtide.shards.megatron import MegatronIndex
from lowtide.shards.payload import INDEX_PIECE_BYTES, PIECE_BYTES, read_exactly, read_pieces

_SCAN_TOKENS = PIECE_BYTES // 4
_DOCUMENTS_AT_ONCE = 1 << 16


class DocumentIndex(Protocol):
    """Document `k` is the tokens from end `k - 1` (or 0) up to end `k`."""

    @property
    def count(self) -> int:
        """How many documents end in the stream."""

    def ends(self, first: int = 0) -> Iterator[EndArray]:
        """The ends from document `first` on, in pieces; use each before asking for the next."""

    def end(self, number: int) -> int:
        """The position after one document's last token."""

    def between(self, first: int, stop: int) -> EndArray:
        """The ends of documents `first` up to `stop`, of which there should be few."""


def index_path(documents: DocumentIndex) -> Path | None:
    """The file that tells where documents end; None where a scan does."""
    if isinstance(documents, StoredDocuments):
        return documents.path
    return documents.index.path if isinstance(documents, MegatronDocuments) else None


def documents_before(documents: DocumentIndex, position: int) -> int:
    """How many documents end at or before a position; a few dozen look-ups in an index."""
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
        """Streams the file from there on."""
        offset = NPY_HEADER_BYTES + 8 * first
        length = 8 * max(0, self.count - first)
        for piece in read_pieces(self.path, offset, length, piece_bytes=INDEX_PIECE_BYTES):
            yield np.frombuffer(piece, dtype="<i8")

    def end(self, number: int) -> int:
        """Reads eight bytes."""
        return int(self.between(number, number + 1)[0])

    def between(self, first: int, stop: int) -> EndArray:
        """Reads so many times eight bytes."""
        found = read_exactly(self.path, NPY_HEADER_BYTES + 8 * first, 8 * (stop - first))
        return np.frombuffer(found, dtype="<i8")


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronDocuments:
    """A peer's `.idx`. Sequences lie one behind another (`index_problems` proves it)."""

    index: MegatronIndex
    tokens: int

    @property
    def count(self) -> int:
        """As the header says."""
        return self.index.documents

    def ends(self, first: int = 0) -> Iterator[EndArray]:
        """Follows documents to their sequences and those to their byte offsets."""
        for start in range(first, self.count, _DOCUMENTS_AT_ONCE):
            yield self.between(start, min(self.count, start + _DOCUMENTS_AT_ONCE))

    def end(self, number: int) -> int:
        """Two look-ups in the file."""
        return int(self.between(number, number + 1)[0])

    def between(self, first: int, stop: int) -> EndArray:
        """A document ends where the first sequence of the next one begins."""
        next_sequence = self.index.first_sequences(first + 1, stop + 1)
        sequences = self.index.sequences
        if ((next_sequence < 0) | (next_sequence > sequences)).any():
            raise VerificationError(
                f"{self.index.path} names sequences it does not have",
                remedy=f"put {self.index.path.name} back from a copy, or write it again",
            )
        ends = np.full(len(next_sequence), self.tokens, dtype=np.int64)
        inside = next_sequence < sequences
        if inside.any():
            ends[inside] = self._offsets(next_sequence[inside]) // self.index.token_bytes
        return ends

    def _offsets(self, numbers: EndArray) -> EndArray:
        """First byte of each of these sequences: read in one go where they lie close together."""
        low, high = int(numbers.min()), int(numbers.max()) + 1
        if high - low <= 4 * len(numbers) + _DOCUMENTS_AT_ONCE:
            found: EndArray = self.index.offsets(low, high)[numbers - low]
            return found
        return np.concatenate([self.index.offsets(n, n + 1) for n in numbers.tolist()])


class ScannedDocuments:
    """Documents of a stream without an index, found by their end-of-text token.

    The first question that needs it costs one pass over the tokens; what is kept of it is one
    number for every two million tokens.
    """

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
        """One pass over the tokens at the first call."""
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
        """Scans two million tokens, once the counts are known."""
        counts = self._cumulative()
        block = int(np.searchsorted(counts, number, side="right"))
        before = int(counts[block - 1]) if block else 0
        return int(self._scan(block * _SCAN_TOKENS)[number - before])

    def between(self, first: int, stop: int) -> EndArray:
        """As `end`, one by one: `stored_documents` makes an index for who needs many."""
        return np.array([self.end(number) for number in range(first, stop)], dtype=np.int64)

    def _cumulative(self) -> EndArray:
        """Documents that end in this block of tokens or an earlier one."""
        if self._counts is None:
            starts = range(0, self._tokens, _SCAN_TOKENS)
            self._counts = np.cumsum([len(self._scan(start)) for start in starts], dtype=np.int64)
        return self._counts

    def _scan(self, start: int) -> EndArray:
        """The ends that a block of tokens accounts for; the stream's end always is one."""
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
