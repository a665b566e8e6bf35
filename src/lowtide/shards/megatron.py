"""Megatron's `.idx`: where sequences and documents lie in the `.bin` beside it.

    MMIDIDX\\0\\0 · u64 version 1 · u8 width code · u64 sequences · u64 documents + 1
    int32 lengths[sequences] · int64 byte offsets[sequences] · int64 first sequence[documents + 1]

A document is one sequence, unless it is longer than an int32 counts: then it is several.
The file is a pure function of the document ends, and is made from them without holding them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowtide.errors import DataError, VerificationError
from lowtide.shards.documents import StoredDocuments
from lowtide.shards.layout import EndArray, ShardLayout
from lowtide.shards.payload import PartialFile, cut_short, read_exactly, reading

MAGIC = b"MMIDIDX\0\0"
HEADER_BYTES = 34
LONGEST_SEQUENCE_TOKENS = (1 << 31) - 1
_CODE_OF_WIDTH = {2: 8, 4: 4}
_DTYPE_OF_CODE = {8: "<u2", 4: "<u4"}
_STEP = 1 << 17
_DOCUMENTS_AT_ONCE = 1 << 16


def write_index(path: Path, documents: StoredDocuments, layout: ShardLayout) -> None:
    """Write and sync the `.idx` that belongs to a file of document ends. Four passes over it."""
    file = PartialFile.create(path, 0)
    try:
        for piece in index_pieces(documents, layout):
            file.write(piece)
        file.finish(b"")
    finally:
        file.close()


def index_pieces(
    documents: StoredDocuments, layout: ShardLayout, *, longest: int = LONGEST_SEQUENCE_TOKENS
) -> Iterator[npt.NDArray[np.generic]]:
    """The bytes of the `.idx`, in order, as arrays of bounded size."""
    sequences = sum(len(lengths) for _, lengths in _sequences(documents, longest))
    header = struct.pack(
        "<9sQBQQ", MAGIC, 1, _CODE_OF_WIDTH[layout.token_bytes], sequences, documents.count + 1
    )
    yield np.frombuffer(header, dtype=np.uint8)
    for _, lengths in _sequences(documents, longest):
        yield lengths.astype("<i4")
    done = 0
    for _, lengths in _sequences(documents, longest):
        after = np.cumsum(lengths) + done
        yield ((after - lengths) * layout.token_bytes).astype("<i8")
        done = int(after[-1])
    yield np.zeros(1, dtype="<i8")
    done = 0
    for parts, _ in _sequences(documents, longest):
        after = np.cumsum(parts) + done
        yield after.astype("<i8")
        done = int(after[-1])


def _sequences(documents: StoredDocuments, longest: int) -> Iterator[tuple[EndArray, EndArray]]:
    """Per piece of the ends: sequences in each document, and the length of each sequence."""
    before = 0
    for ends in documents.ends():
        yield cut_documents(np.diff(ends, prepend=before), longest)
        before = int(ends[-1])


def cut_documents(lengths: EndArray, longest: int) -> tuple[EndArray, EndArray]:
    """Cut what is too long: lengths `[3, 7]` at `longest=3` are parts `[1, 3]`, `[3, 3, 3, 1]`."""
    parts = np.maximum(1, -(-lengths // longest))
    cut = np.full(int(parts.sum()), longest, dtype=np.int64)
    cut[np.cumsum(parts) - 1] = lengths - (parts - 1) * longest
    return parts, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronIndex:
    """A `DocumentIndex` read from an `.idx` whose size fits its header. Nothing is held or mapped."""

    path: Path
    dtype: str
    sequences: int
    count: int
    """Documents, as the header says."""
    tokens: int
    """Tokens in the `.bin`: there the last sequence ends (`problems` checks the others)."""

    @property
    def token_bytes(self) -> int:
        """Bytes per id in the `.bin`."""
        return np.dtype(self.dtype).itemsize

    def ends(self, first: int = 0) -> Iterator[EndArray]:
        """Follow documents to their sequences and those to their byte offsets."""
        for start in range(first, self.count, _DOCUMENTS_AT_ONCE):
            yield self.between(start, min(self.count, start + _DOCUMENTS_AT_ONCE))

    def end(self, number: int) -> int:
        """Two look-ups in the file."""
        return int(self.between(number, number + 1)[0])

    def between(self, first: int, stop: int) -> EndArray:
        """A document ends where the first sequence of the next one begins."""
        next_sequence = self._first_sequences(first + 1, stop + 1)
        if ((next_sequence < 0) | (next_sequence > self.sequences)).any():
            raise VerificationError(
                f"{self.path} names sequences it does not have",
                remedy=f"put {self.path.name} back from a copy, or write it again",
            )
        ends = np.full(len(next_sequence), self.tokens, dtype=np.int64)
        inside = next_sequence < self.sequences
        if inside.any():
            ends[inside] = self._scattered_offsets(next_sequence[inside]) // self.token_bytes
        return ends

    def bin_bytes(self) -> int:
        """Where the last sequence ends: the size that the `.bin` must have."""
        if not self.sequences:
            return 0
        last = self.sequences - 1
        length_bytes = int(self._lengths(last, last + 1)[0]) * self.token_bytes
        return int(self._offsets(last, last + 1)[0]) + length_bytes

    def problems(self) -> list[str]:
        """What in the index does not fit the `.bin`; reads all of it in bounded pieces."""
        name = self.path.name
        problems = []
        done = 0
        for start in range(0, self.sequences, _STEP):
            stop = min(self.sequences, start + _STEP)
            lengths = self._lengths(start, stop)
            after = np.cumsum(lengths) + done
            expected = (after - lengths) * self.token_bytes
            if (lengths < 0).any() or not np.array_equal(self._offsets(start, stop), expected):
                problems.append(
                    f"{name}: sequences after number {start} do not lie one behind another"
                )
                break
            done = int(after[-1])
        if not problems and done != self.tokens:
            problems.append(f"{name}: sequences hold {done} tokens, the .bin holds {self.tokens}")
        return problems + self._order_problems()

    def _order_problems(self) -> list[str]:
        """Documents begin at sequence 0, never go back, and end with the last sequence."""
        problems = []
        first = last = 0
        for start in range(0, self.count + 1, _STEP):
            firsts = self._first_sequences(start, min(self.count + 1, start + _STEP))
            first = int(firsts[0]) if start == 0 else first
            if (np.diff(firsts, prepend=last if start else first) < 0).any():
                problems.append(f"{self.path.name}: its documents are out of order")
                break
            last = int(firsts[-1])
        if first != 0 or (not problems and last != self.sequences):
            problems.append(f"{self.path.name}: its documents do not cover its sequences")
        return problems

    def _scattered_offsets(self, numbers: EndArray) -> EndArray:
        """First byte of each of these sequences: one read where they lie close together."""
        low, high = int(numbers.min()), int(numbers.max()) + 1
        if high - low <= 4 * len(numbers) + _DOCUMENTS_AT_ONCE:
            found: EndArray = self._offsets(low, high)[numbers - low]
            return found
        return np.concatenate([self._offsets(n, n + 1) for n in numbers.tolist()])

    def _lengths(self, first: int, stop: int) -> EndArray:
        """Tokens of sequences `first` up to `stop`."""
        return self._read("<i4", HEADER_BYTES, first, stop).astype(np.int64)

    def _offsets(self, first: int, stop: int) -> EndArray:
        """First byte of sequences `first` up to `stop`."""
        return self._read("<i8", HEADER_BYTES + 4 * self.sequences, first, stop)

    def _first_sequences(self, first: int, stop: int) -> EndArray:
        """First sequence of documents `first` up to `stop`; after the last document, all of them."""
        return self._read("<i8", HEADER_BYTES + 12 * self.sequences, first, stop)

    def _read(self, dtype: str, offset: int, first: int, stop: int) -> EndArray:
        width = np.dtype(dtype).itemsize
        found = read_exactly(self.path, offset + width * first, width * (stop - first))
        return np.frombuffer(found, dtype=dtype)


def open_index(bin_path: Path, bin_bytes: int) -> MegatronIndex:
    """The index beside a `.bin` of this size; VerificationError unless its counts fit both files."""
    path = bin_path.with_suffix(".idx")
    with reading(path):
        found_bytes = path.stat().st_size
    if found_bytes < HEADER_BYTES:
        raise cut_short(path, HEADER_BYTES, found_bytes)
    fields = struct.unpack("<9sQBQQ", read_exactly(path, 0, HEADER_BYTES))
    magic, version, code, sequences, documents_and_one = fields
    if magic != MAGIC or version != 1 or code not in _DTYPE_OF_CODE:
        raise DataError(
            f"{path} is not a Megatron index of version 1 with uint16 or int32 tokens",
            remedy="write it again with Megatron's preprocess_data.py, as uint16 or int32",
        )
    documents = max(0, documents_and_one - 1)
    wanted_bytes = HEADER_BYTES + 12 * sequences + 8 * (documents + 1)
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes, its counts demand {wanted_bytes}",
            remedy=f"put {path.name} back from a copy, or write it again",
        )
    dtype = _DTYPE_OF_CODE[code]
    width = np.dtype(dtype).itemsize
    index = MegatronIndex(
        path=path, dtype=dtype, sequences=sequences, count=documents, tokens=bin_bytes // width
    )
    demanded_bytes = index.bin_bytes()
    if demanded_bytes != bin_bytes:
        raise VerificationError(
            f"{bin_path} has {bin_bytes} bytes, {path.name} demands {demanded_bytes}",
            remedy=f"put {bin_path.name} and {path.name} back from a copy, or write them again",
        )
    return index
