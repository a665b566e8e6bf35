"""The loss mask of a split of examples: one bit per token, beside the shards.

    learnt_TRAIN.npy    a plain 1-D uint8 npy; token i is bit i % 8 of byte i // 8, the lowest first
    np.unpackbits(np.load("learnt_TRAIN.npy"), bitorder="little")[:tokens]

A token whose bit is 1 is a target of training. Bits after the last token are zero. The mask is made
together with the tokens and never guessed later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.errors import UsageError
from lowtide.shards.layout import (
    NPY_HEADER_BYTES,
    EndArray,
    Split,
    learnt_name,
    loss_mask_bytes,
    loss_mask_header,
)
from lowtide.shards.manifest import LossMaskRecord
from lowtide.shards.payload import (
    PartialFile,
    cut_short,
    payload_problems,
    read_exactly,
    read_into,
    reading,
)
from lowtide.storage.decode_json import Digest, FileName

BitArray: TypeAlias = npt.NDArray[np.bool_]
"""One flag per token."""
PackedArray: TypeAlias = npt.NDArray[np.uint8]
_COUNTED_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class LossMask:
    """Reads a split's loss mask. Holds nothing, and no file open, between two calls."""

    path: Path
    tokens: int
    """Tokens of the split, each with a bit."""

    def read(self, start: int, stop: int) -> BitArray:
        """The flags of the tokens from `start` up to `stop`."""
        self._check_range(start, stop)
        first = start // 8
        found = read_exactly(self.path, NPY_HEADER_BYTES + first, loss_mask_bytes(stop) - first)
        return _unpack(np.frombuffer(found, dtype=np.uint8))[start - 8 * first : stop - 8 * first]

    def read_pieces(self, starts: EndArray, counts: EndArray) -> BitArray:
        """The flags of many short ranges, one behind another; they may overlap, in any order.

        Opens the file once, reads a few bytes per range, and unpacks them all together. Nothing is
        mapped: a file that is cut during the read raises an error instead of SIGBUS.
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

    def count(self, start: int, stop: int) -> int:
        """Number of targets from token `start` up to `stop`; holds one flag for each of four million tokens."""
        steps = range(start, stop, _COUNTED_TOKENS)
        pieces = (self.read(at, min(stop, at + _COUNTED_TOKENS)) for at in steps)
        return sum(int(np.count_nonzero(piece)) for piece in pieces)

    def _read_bytes(self, first: EndArray, sizes: EndArray, places: EndArray) -> PackedArray:
        """Read `sizes` bytes from each `first` one into their places."""
        found = np.empty(int(sizes.sum()), dtype=np.uint8)
        target = found.data
        columns = (first.tolist(), sizes.tolist(), places.tolist())
        with reading(self.path), self.path.open("rb", buffering=0) as file:
            for byte, size, place in zip(*columns, strict=True):
                file.seek(NPY_HEADER_BYTES + byte)
                filled = read_into(target[place : place + size], file)
                if filled < size:
                    wanted = NPY_HEADER_BYTES + loss_mask_bytes(self.tokens)
                    raise cut_short(self.path, wanted, NPY_HEADER_BYTES + byte + filled)
        return found

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.tokens:
            raise UsageError(
                f"tokens {start} to {stop} have no bits in {self.path}",
                remedy=f"stay between 0 and {self.tokens}",
            )


def loss_mask_problems(folder: Path, record: LossMaskRecord, tokens: int) -> Iterator[str]:
    """What is wrong with a split's loss mask: form, digest, padding, count. One pass over the file."""
    found = last = 0

    def look(piece: memoryview) -> None:
        nonlocal found, last
        set_bits = np.bitwise_count(np.frombuffer(piece, dtype=np.uint8))
        found += int(set_bits.sum(dtype=np.int64))
        last = piece[-1]

    yield from payload_problems(
        folder / record.name,
        loss_mask_header(tokens),
        loss_mask_bytes(tokens),
        digest=record.digest,
        holds="bits",
        look=look,
    )
    if tokens % 8 and last >> tokens % 8:
        yield f"{record.name}: bits are set after the last of {tokens} tokens"
    if found != record.tokens:
        yield f"{record.name}: {found} tokens are learnt instead of {record.tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMaskMark:
    """How far a loss mask had been written: one bit for each token before the mark."""

    name: FileName
    learnt_tokens: int
    """Set bits, including those in `waiting`."""
    digest: Digest
    """xxh3_128 of the whole bytes, which are in the file."""
    waiting: int
    """The bits that do not fill a byte yet, the first of them the lowest."""


class LossMaskWriter:
    """Takes flags and writes whole bytes; up to seven flags wait for their byte to fill.

    After an error the object is unusable, as the split's writer is.
    """

    __slots__ = ("_learnt_tokens", "_name", "_waiting", "file")

    def __init__(self, file: PartialFile, split: Split) -> None:
        self.file = file
        self._name = learnt_name(split)
        self._waiting: BitArray = np.empty(0, dtype=np.bool_)
        self._learnt_tokens = 0

    def resume(self, mark: LossMaskMark, tokens: int) -> None:
        """Continue from a mark made after `tokens` tokens; the file holds their whole bytes."""
        assert self.file.payload_bytes == tokens // 8, "the file was reopened for another mark"
        self._waiting = _unpack(np.array([mark.waiting], dtype=np.uint8))[: tokens % 8]
        self._learnt_tokens = mark.learnt_tokens

    @property
    def tokens(self) -> int:
        """Flags so far."""
        return 8 * self.file.payload_bytes + len(self._waiting)

    def append(self, flags: BitArray) -> None:
        """Add the next tokens' flags."""
        self._learnt_tokens += int(np.count_nonzero(flags))
        bits = np.concatenate([self._waiting, flags]) if len(self._waiting) else flags
        whole = len(bits) // 8 * 8
        self.file.write(np.packbits(bits[:whole], bitorder="little"))
        self._waiting = bits[whole:].copy()  # a view would keep the caller's array alive

    def mark(self) -> LossMaskMark:
        """Where to resume, once the file is synced."""
        waiting = np.packbits(self._waiting, bitorder="little").tobytes()
        return LossMaskMark(
            name=self._name,
            learnt_tokens=self._learnt_tokens,
            digest=self.file.digest,
            waiting=int.from_bytes(waiting, "little"),
        )

    def finish(self) -> LossMaskRecord:
        """Write the last byte, padded with zeros, and the header; the file may be published then."""
        tokens = self.tokens
        self.file.write(np.packbits(self._waiting, bitorder="little"))
        record = LossMaskRecord(
            name=self._name, tokens=self._learnt_tokens, digest=self.file.digest
        )
        self.file.finish(loss_mask_header(tokens))
        return record


def _unpack(packed: PackedArray) -> BitArray:
    """Eight flags per byte, the lowest bit first."""
    return np.unpackbits(packed, bitorder="little").view(np.bool_)
