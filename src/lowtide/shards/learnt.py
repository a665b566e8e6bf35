"""Which tokens of a split of examples are learnt: one bit a token, beside the shards.

    learnt_TRAIN.npy    a plain 1-D uint8 npy; token i is bit i % 8 of byte i // 8, the lowest first
    np.unpackbits(np.load("learnt_TRAIN.npy"), bitorder="little")[:tokens]

Bits behind the last token are zero. They are made with the tokens and never guessed later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from lowtide.errors import UsageError, VerificationError
from lowtide.shards.layout import (
    NPY_HEADER_BYTES,
    EndArray,
    Split,
    learnt_bytes,
    learnt_header,
    learnt_name,
)
from lowtide.shards.manifest import LearntRecord
from lowtide.shards.mark import LearntMark
from lowtide.shards.payload import PartialFile, cut_short, read_exactly, read_pieces, reading

BitArray: TypeAlias = npt.NDArray[np.bool_]
"""A flag a token."""
PackedArray: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LearntBits:
    """The bits of a split. Holds nothing, and no file open, between two calls."""

    path: Path
    tokens: int
    """Tokens of the split, each with a bit."""

    def read(self, start: int, stop: int) -> BitArray:
        """A flag for each token from `start` up to `stop`."""
        self._check_range(start, stop)
        first = start // 8
        found = read_exactly(self.path, NPY_HEADER_BYTES + first, learnt_bytes(stop) - first)
        return _unpack(np.frombuffer(found, dtype=np.uint8))[start - 8 * first : stop - 8 * first]

    def read_pieces(self, starts: EndArray, counts: EndArray) -> BitArray:
        """The flags of many short stretches, one behind another; they may overlap, in any order.

        Opens the file once, reads a few bytes for each stretch, and unpacks all of them together. Nothing is
        mapped: a file that is cut meanwhile is an error, and no signal.
        """
        if not len(starts):
            return np.empty(0, dtype=np.bool_)
        self._check_range(int(starts.min()), int((starts + counts).max()))
        first = starts >> 3
        sizes = ((starts + counts + 7) >> 3) - first
        before = np.cumsum(sizes) - sizes
        flags = _unpack(self._read_bytes(first, sizes, before))
        shift = 8 * before + (starts & 7) - (np.cumsum(counts) - counts)
        found: BitArray = flags[np.arange(int(counts.sum())) + np.repeat(shift, counts)]
        return found

    def stream(self, start: int = 0, *, piece_tokens: int = 1 << 22) -> Iterator[BitArray]:
        """All flags from `start` on, in pieces of at most `piece_tokens`."""
        for at in range(start, self.tokens, piece_tokens):
            yield self.read(at, min(self.tokens, at + piece_tokens))

    def count(self) -> int:
        """How many tokens are learnt: one pass over the file, which has a bit a token."""
        length = learnt_bytes(self.tokens)
        pieces = read_pieces(self.path, NPY_HEADER_BYTES, length)
        return sum(count_set(np.frombuffer(piece, dtype=np.uint8)) for piece in pieces)

    def _read_bytes(self, first: EndArray, sizes: EndArray, places: EndArray) -> PackedArray:
        """So many bytes from each `first` one, laid at its place."""
        found = np.empty(int(sizes.sum()), dtype=np.uint8)
        room = found.data
        columns = (first.tolist(), sizes.tolist(), places.tolist())
        with reading(self.path), self.path.open("rb", buffering=0) as file:
            for byte, size, place in zip(*columns, strict=True):
                file.seek(NPY_HEADER_BYTES + byte)
                got = file.readinto(room[place : place + size])
                if got != size:
                    wanted = NPY_HEADER_BYTES + learnt_bytes(self.tokens)
                    raise cut_short(self.path, wanted, NPY_HEADER_BYTES + byte + (got or 0))
        return found

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.tokens:
            raise UsageError(
                f"tokens {start} to {stop} have no bits in {self.path}",
                remedy=f"stay between 0 and {self.tokens}",
            )


def check_learnt_size(path: Path, tokens: int) -> None:
    """VerificationError unless the file has a bit for each token and no byte more."""
    wanted_bytes = NPY_HEADER_BYTES + learnt_bytes(tokens)
    with reading(path):
        found_bytes = path.stat().st_size
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes instead of {wanted_bytes}, one bit for each of {tokens} tokens",
            remedy=f"put {path.name} back from a copy, or make the dataset again",
        )


def count_set(packed: PackedArray) -> int:
    """How many bits are set."""
    return int(np.bitwise_count(packed).sum(dtype=np.int64))


def learnt_problems(folder: Path, record: LearntRecord, tokens: int) -> Iterator[str]:
    """What is wrong with a split's bits: form, digest, padding, count. One pass over the file."""
    path = folder / record.name
    check_learnt_size(path, tokens)
    if read_exactly(path, 0, NPY_HEADER_BYTES) != learnt_header(tokens):
        yield f"{record.name}: its header is not that of a bit for each of {tokens} tokens"
    state, found, last = xxhash.xxh3_128(), 0, 0
    for piece in read_pieces(path, NPY_HEADER_BYTES, learnt_bytes(tokens)):
        state.update(piece)
        found += count_set(np.frombuffer(piece, dtype=np.uint8))
        last = piece[-1]
    if state.hexdigest() != record.digest:
        yield f"{record.name}: its bits are not those that were written"
    if tokens % 8 and last >> tokens % 8:
        yield f"{record.name}: bits are set behind the last of {tokens} tokens"
    if found != record.tokens:
        yield f"{record.name}: {found} tokens are learnt instead of {record.tokens}"


class LearntWriter:
    """Flags go in as they come, whole bytes go out; up to seven flags wait for their byte.

    After an error the object is spent, as the split's writer is.
    """

    __slots__ = ("_file", "_learnt_tokens", "_name", "_waiting")

    def __init__(self, file: PartialFile, split: Split) -> None:
        self._file = file
        self._name = learnt_name(split)
        self._waiting: BitArray = np.empty(0, dtype=np.bool_)
        self._learnt_tokens = 0

    def go_on(self, mark: LearntMark, tokens: int) -> None:
        """Take up what waited when the mark was made, behind the whole bytes of `tokens` bits."""
        assert self._file.payload_bytes == tokens // 8, "the file was reopened for another mark"
        self._waiting = _unpack(np.array([mark.waiting], dtype=np.uint8))[: tokens % 8]
        self._learnt_tokens = mark.learnt_tokens

    @property
    def tokens(self) -> int:
        """Flags so far."""
        return 8 * self._file.payload_bytes + len(self._waiting)

    @property
    def file(self) -> PartialFile:
        """What the bits go into."""
        return self._file

    def append(self, flags: BitArray) -> None:
        """Go on with the next tokens' flags."""
        self._learnt_tokens += int(np.count_nonzero(flags))
        bits = np.concatenate([self._waiting, flags]) if len(self._waiting) else flags
        whole = len(bits) // 8 * 8
        self._file.write(np.packbits(bits[:whole], bitorder="little"))
        self._waiting = bits[whole:].copy()  # a view would keep the caller's array alive

    def mark(self) -> LearntMark:
        """Where to go on from, once the file is synced."""
        return LearntMark(
            name=self._name,
            learnt_tokens=self._learnt_tokens,
            digest=self._file.digest,
            waiting=int.from_bytes(
                np.packbits(self._waiting, bitorder="little").tobytes(), "little"
            ),
        )

    def finish(self) -> LearntRecord:
        """Write the last byte, filled up with zeros, and the header; the file may be published."""
        tokens = self.tokens
        self._file.write(np.packbits(self._waiting, bitorder="little"))
        record = LearntRecord(name=self._name, tokens=self._learnt_tokens, digest=self._file.digest)
        self._file.finish(learnt_header(tokens))
        return record


def _unpack(packed: PackedArray) -> BitArray:
    """Eight flags a byte, the lowest bit first."""
    return np.unpackbits(packed, bitorder="little").view(np.bool_)
