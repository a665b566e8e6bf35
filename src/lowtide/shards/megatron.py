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
from lowtide.shards.layout import NPY_HEADER_BYTES, EndArray, ShardLayout
from lowtide.shards.payload import (
    INDEX_PIECE_BYTES,
    PartialFile,
    cut_short,
    read_exactly,
    read_pieces,
    reading,
)

MAGIC = b"MMIDIDX\0\0"
HEADER_BYTES = 34
LONGEST_SEQUENCE_TOKENS = (1 << 31) - 1
_CODE_OF_WIDTH = {2: 8, 4: 4}
_DTYPE_OF_CODE = {8: "<u2", 4: "<u4"}
_STEP = 1 << 17


def write_index(path: Path, ends_path: Path, documents: int, layout: ShardLayout) -> None:
    """Write and sync the `.idx` that belongs to a file of document ends. Four passes over it."""
    file = PartialFile.create(path, 0)
    try:
        for piece in index_pieces(ends_path, documents, layout):
            file.write(piece)
        file.finish(b"")
    finally:
        file.close()


def index_pieces(
    ends_path: Path,
    documents: int,
    layout: ShardLayout,
    *,
    longest: int = LONGEST_SEQUENCE_TOKENS,
) -> Iterator[npt.NDArray[np.generic]]:
    """The bytes of the `.idx`, in order, as arrays of bounded size."""
    passes = _Passes(ends_path=ends_path, documents=documents, longest=longest)
    sequences = sum(len(lengths) for _, lengths in passes.sequences())
    header = struct.pack(
        "<9sQBQQ", MAGIC, 1, _CODE_OF_WIDTH[layout.token_bytes], sequences, documents + 1
    )
    yield np.frombuffer(header, dtype=np.uint8)
    for _, lengths in passes.sequences():
        yield lengths.astype("<i4")
    done = 0
    for _, lengths in passes.sequences():
        after = np.cumsum(lengths) + done
        yield ((after - lengths) * layout.token_bytes).astype("<i8")
        done = int(after[-1])
    yield np.zeros(1, dtype="<i8")
    done = 0
    for parts, _ in passes.sequences():
        after = np.cumsum(parts) + done
        yield after.astype("<i8")
        done = int(after[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """The document ends, read again and again."""

    ends_path: Path
    documents: int
    longest: int

    def sequences(self) -> Iterator[tuple[EndArray, EndArray]]:
        """Per piece: how many sequences each document has, and how long each sequence is."""
        before = 0
        length = self.documents * 8
        for piece in read_pieces(
            self.ends_path, NPY_HEADER_BYTES, length, piece_bytes=INDEX_PIECE_BYTES
        ):
            ends = np.frombuffer(piece, dtype="<i8")
            yield cut_documents(np.diff(ends, prepend=before), self.longest)
            before = int(ends[-1])


def cut_documents(lengths: EndArray, longest: int) -> tuple[EndArray, EndArray]:
    """Cut what is too long: lengths `[3, 7]` at `longest=3` are parts `[1, 3]`, `[3, 3, 3, 1]`."""
    parts = np.maximum(1, -(-lengths // longest))
    cut = np.full(int(parts.sum()), longest, dtype=np.int64)
    cut[np.cumsum(parts) - 1] = lengths - (parts - 1) * longest
    return parts, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronIndex:
    """An `.idx` whose size fits its header. Nothing of it is held or mapped; parts are read."""

    path: Path
    dtype: str
    sequences: int
    documents: int

    @property
    def token_bytes(self) -> int:
        """Bytes one id takes in the `.bin`."""
        return np.dtype(self.dtype).itemsize

    def lengths(self, first: int, stop: int) -> EndArray:
        """Tokens of sequences `first` up to `stop`."""
        return self._read("<i4", HEADER_BYTES, first, stop).astype(np.int64)

    def offsets(self, first: int, stop: int) -> EndArray:
        """First byte of sequences `first` up to `stop`."""
        return self._read("<i8", HEADER_BYTES + 4 * self.sequences, first, stop)

    def first_sequences(self, first: int, stop: int) -> EndArray:
        """First sequence of documents `first` up to `stop`; the one behind the last is all of them."""
        return self._read("<i8", HEADER_BYTES + 12 * self.sequences, first, stop)

    def _read(self, dtype: str, offset: int, first: int, stop: int) -> EndArray:
        width = np.dtype(dtype).itemsize
        found = read_exactly(self.path, offset + width * first, width * (stop - first))
        return np.frombuffer(found, dtype=dtype)


def open_index(path: Path) -> MegatronIndex:
    """Read the header and compare the counts with the file's size."""
    with reading(path):
        if path.stat().st_size < HEADER_BYTES:
            raise cut_short(path, HEADER_BYTES, path.stat().st_size)
    fields = struct.unpack("<9sQBQQ", read_exactly(path, 0, HEADER_BYTES))
    magic, version, code, sequences, documents_and_one = fields
    if magic != MAGIC or version != 1 or code not in _DTYPE_OF_CODE:
        raise DataError(
            f"{path} is not a Megatron index of version 1 with uint16 or int32 tokens",
            remedy="write it again with Megatron's preprocess_data.py, as uint16 or int32",
        )
    documents = max(0, documents_and_one - 1)
    _check_size(path, sequences, documents)
    return MegatronIndex(
        path=path, dtype=_DTYPE_OF_CODE[code], sequences=sequences, documents=documents
    )


def index_problems(index: MegatronIndex, tokens: int) -> list[str]:
    """What in a peer's index does not fit the `.bin` of so many tokens; in bounded pieces."""
    name = index.path.name
    problems = []
    done = 0
    for start in range(0, index.sequences, _STEP):
        stop = min(index.sequences, start + _STEP)
        piece = index.lengths(start, stop)
        after = np.cumsum(piece) + done
        expected = (after - piece) * index.token_bytes
        if (piece < 0).any() or not np.array_equal(index.offsets(start, stop), expected):
            problems.append(f"{name}: sequences after number {start} do not lie one behind another")
            break
        done = int(after[-1])
    if not problems and done != tokens:
        problems.append(f"{name}: sequences hold {done} tokens, the .bin holds {tokens}")
    return problems + _order_problems(index)


def _order_problems(index: MegatronIndex) -> list[str]:
    """Documents begin at sequence 0, never go back, and end with the last sequence."""
    name = index.path.name
    problems = []
    first = last = 0
    for start in range(0, index.documents + 1, _STEP):
        firsts = index.first_sequences(start, min(index.documents + 1, start + _STEP))
        first = int(firsts[0]) if start == 0 else first
        if (np.diff(firsts, prepend=last if start else first) < 0).any():
            problems.append(f"{name}: its documents are out of order")
            break
        last = int(firsts[-1])
    if first != 0 or (not problems and last != index.sequences):
        problems.append(f"{name}: its documents do not cover its sequences")
    return problems


def _check_size(path: Path, sequences: int, documents: int) -> None:
    wanted_bytes = HEADER_BYTES + 12 * sequences + 8 * (documents + 1)
    found_bytes = path.stat().st_size
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes, its counts demand {wanted_bytes}",
            remedy=f"put {path.name} back from a copy, or write it again",
        )
