"""Pieces of a token stream, copied out of its files into one array: the way that training reads.

    pieces = Pieces(starts=[0, 5000], counts=[1025, 1025], places=[0, 1025])
    copier.copy(pieces, rows)         # rows[0:1025] and rows[1025:2050]

Files are mapped by the compiled part, which survives a file that is cut while it is read, and keeps no
descriptor. Where that part is missing, pieces are read one by one (`PlainCopier`): slower, and the
same tokens. After every copy the files it touched are looked at again: what is given out was read from
files that had not changed since the copier was made.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from lowtide.errors import UsageError, VerificationError
from lowtide.native import load_native
from lowtide.shards.layout import EndArray, TokenArray
from lowtide.shards.payload import cut_short, reading
from lowtide.shards.peers import TokenFile
from lowtide.shards.stamps import StampedFiles, changed

_MOST_MAPS = 1 << 14
"""A process may hold 65,530 maps, and others want some. More files than this are read one by one."""

_ONE_FILE: EndArray = np.zeros(1, dtype=np.int64)
_NONE: EndArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Columns: where each piece starts in the stream, its length, and its place in the target."""

    starts: EndArray
    counts: EndArray
    places: EndArray


class Copier(Protocol):
    """Copies pieces of one stream, for one thread at a time."""

    def copy(self, pieces: Pieces, target: TokenArray) -> None:
        """Fill `target` (one-dimensional, contiguous, of the files' width) with the pieces."""

    def widen(self, pieces: Pieces, x: EndArray, y: EndArray) -> int | None:
        """Pieces of `x`'s width and one more: tokens, what follows each, and the largest id of all.

        None where a copier has no fast way, and nothing is done: `copy` them.
        """

    def fetch(self, pieces: Pieces) -> None:
        """Ask for the pieces to be read into the page cache; returns at once."""

    def file_times(self) -> list[tuple[int, int]]:
        """Size and time of change of each file, as they were when the copier was made."""

    def close(self) -> None:
        """Let go of the files."""


def make_copier(files: Sequence[TokenFile], *, scattered: bool) -> Copier:
    """`scattered`: pieces will come from everywhere, so reading ahead around them is useless."""
    if len(files) > _MOST_MAPS:
        return PlainCopier(files)
    try:
        return MappedCopier(files, scattered=scattered)
    except (UsageError, NotImplementedError):  # no compiled part, or a system it does not serve
        return PlainCopier(files)


class _Files:
    """What both copiers know of the files: where each begins in the stream, and its stamp."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.files = tuple(files)
        self.stops = np.cumsum([file.tokens for file in files], dtype=np.int64)
        self.stamps = StampedFiles([file.path for file in files])
        for number, file in enumerate(self.files):
            if self.stamps.size_bytes(number) != file.file_bytes:
                raise changed(file.path)

    def locate(self, pieces: Pieces) -> tuple[EndArray, Pieces]:
        """Each piece with its file's number (one for all where there is one file).

        Pieces that lie in two files or more are cut.
        """
        numbers, crossing = self.first_files(pieces)
        return self._cut(pieces) if crossing.size else (numbers, pieces)

    def first_files(self, pieces: Pieces) -> tuple[EndArray, EndArray]:
        """The file that each piece begins in, and which pieces go on into another."""
        if len(self.files) == 1:
            return _ONE_FILE, _NONE
        numbers = np.searchsorted(self.stops, pieces.starts, side="right")
        return numbers, np.flatnonzero(pieces.starts + pieces.counts > self.stops[numbers])

    def check_unchanged(self, numbers: EndArray) -> None:
        """VerificationError if one of these files is no longer the one whose stamp was taken."""
        self.stamps.check(list(set(numbers.tolist())))

    def _cut(self, pieces: Pieces) -> tuple[EndArray, Pieces]:
        columns = (pieces.starts.tolist(), pieces.counts.tolist(), pieces.places.tolist())
        rows = [
            (number, at, until - at, place + at - start)
            for start, count, place in zip(*columns, strict=True)
            for number, at, until in self._parts(start, start + count)
        ]
        numbers, starts, counts, places = np.array(rows, dtype=np.int64).reshape(-1, 4).T.copy()
        return numbers, Pieces(starts=starts, counts=counts, places=places)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        number = int(np.searchsorted(self.stops, start, side="right"))
        while start < stop:
            until = min(stop, int(self.stops[number]))
            if until > start:
                yield number, start, until
            start = until
            number += 1


class PlainCopier:
    """Opens, seeks and reads for every piece. Holds nothing."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self._files = _Files(files)
        for file in files:
            check_header(file)

    def copy(self, pieces: Pieces, target: TokenArray) -> None:
        numbers, pieces = self._files.locate(pieces)
        for at, number in enumerate(np.broadcast_to(numbers, len(pieces.starts)).tolist()):
            file = self._files.files[number]
            before = int(self._files.stops[number]) - file.tokens
            offset = file.header_bytes + (int(pieces.starts[at]) - before) * file.dtype.itemsize
            place, count = int(pieces.places[at]), int(pieces.counts[at])
            room = target[place : place + count].view(np.uint8).data
            self._read_into(number, file.path, offset, room)
        self._files.check_unchanged(numbers)

    def _read_into(self, number: int, path: Path, offset: int, room: memoryview) -> None:
        with reading(path), path.open("rb", buffering=0) as file:
            self._files.stamps.check_opened(number, file.fileno())
            file.seek(offset)
            filled = 0
            while filled < len(room):
                got = file.readinto(room[filled:])
                if not got:
                    raise cut_short(path, offset + len(room), offset + filled)
                filled += got

    def widen(self, pieces: Pieces, x: EndArray, y: EndArray) -> int | None:  # noqa: ARG002
        """Never: `copy` does."""
        return None

    def fetch(self, pieces: Pieces) -> None:
        """Nothing: reading is all it can do."""

    def file_times(self) -> list[tuple[int, int]]:
        return self._files.stamps.times()

    def close(self) -> None:
        """Nothing is held."""


class _Columns:
    """What the compiled part is told of each piece, in arrays whose addresses are known."""

    def __init__(self, room: int) -> None:
        self.sources = np.empty(room, dtype=np.int64)
        self.targets = np.empty(room, dtype=np.int64)
        self.sizes = np.empty(room, dtype=np.int64)
        columns = (self.sources, self.targets, self.sizes)
        self.addresses = tuple(column.ctypes.data for column in columns)


class MappedCopier:
    """Maps each file when it is first touched. Holds addresses, no descriptors and no tokens."""

    def __init__(self, files: Sequence[TokenFile], *, scattered: bool) -> None:
        if os.name != "posix":
            raise NotImplementedError
        self._native = load_native()
        self._files = _Files(files)
        self._scattered = scattered
        self._width = files[0].dtype.itemsize
        self._bases = np.zeros(len(files), dtype=np.int64)
        """The address that token 0 of the whole stream would have, were it in this file; 0: not mapped."""
        self._maps: dict[int, tuple[int, int]] = {}
        self._columns = _Columns(64)

    def copy(self, pieces: Pieces, target: TokenArray) -> None:
        numbers, pieces = self._files.locate(pieces)
        count, width = len(pieces.starts), self._width
        columns = self._columns_for(count)
        self._find_sources(numbers, pieces, width, columns.sources[:count])
        np.multiply(pieces.places, width, out=columns.targets[:count])
        columns.targets[:count] += target.ctypes.data
        np.multiply(pieces.counts, width, out=columns.sizes[:count])
        self._check(self._native.lt_copy_pieces(count, *columns.addresses), count, numbers)

    def widen(self, pieces: Pieces, x: EndArray, y: EndArray) -> int | None:
        numbers, crossing = self._files.first_files(pieces)
        joined = self._join(pieces, crossing, x.shape[1] + 1) if crossing.size else None
        count, width = len(pieces.starts), self._width
        columns = self._columns_for(count)
        self._find_sources(numbers, pieces, width, columns.sources[:count])
        if joined is not None:
            columns.sources[crossing] = (
                joined.ctypes.data + np.arange(len(joined)) * joined.strides[0]
            )
        largest = ctypes.c_uint32()
        done = self._native.lt_widen_rows(
            count, x.shape[1], width, columns.addresses[0], x.ctypes.data, y.ctypes.data, largest
        )
        self._check(done, count, numbers)
        return largest.value

    def _join(self, pieces: Pieces, chosen: EndArray, width: int) -> TokenArray:
        """Some of the pieces, each out of its two files or more."""
        rows = np.empty((len(chosen), width), dtype=self._files.files[0].dtype)
        places = np.arange(len(chosen), dtype=np.int64) * width
        columns = (pieces.starts[chosen], pieces.counts[chosen])
        self.copy(Pieces(starts=columns[0], counts=columns[1], places=places), rows.reshape(-1))
        return rows

    def fetch(self, pieces: Pieces) -> None:
        numbers, pieces = self._files.locate(pieces)
        count, width = len(pieces.starts), self._width
        columns = self._columns_for(count)
        self._find_sources(numbers, pieces, width, columns.sources[:count])
        np.multiply(pieces.counts, width, out=columns.sizes[:count])
        self._native.lt_fetch_pieces(count, columns.addresses[0], columns.addresses[2])

    def file_times(self) -> list[tuple[int, int]]:
        return self._files.stamps.times()

    def close(self) -> None:
        for address, mapped_bytes in self._maps.values():
            self._native.lt_unmap_file(address, mapped_bytes)
        self._maps.clear()
        self._bases[:] = 0

    def __del__(self) -> None:
        if hasattr(self, "_columns"):
            self.close()

    def _check(self, done: int, count: int, numbers: EndArray) -> None:
        if done < count:
            number = 0 if numbers is _ONE_FILE else int(numbers[done])
            raise changed(self._files.files[number].path)
        self._files.check_unchanged(numbers)

    def _columns_for(self, count: int) -> _Columns:
        if len(self._columns.sources) < count:
            self._columns = _Columns(max(count, 2 * len(self._columns.sources)))
        return self._columns

    def _find_sources(
        self, numbers: EndArray, pieces: Pieces, width: int, sources: EndArray
    ) -> None:
        """The address of each piece; files that are touched for the first time are mapped."""
        one = len(self._files.files) == 1
        bases = self._bases if one else self._bases[numbers]
        if not bases.all():
            self._map(sorted(set(numbers[bases == 0].tolist())))
            bases = self._bases if one else self._bases[numbers]
        np.multiply(pieces.starts, width, out=sources)
        sources += bases

    def _map(self, numbers: list[int]) -> None:
        for number in numbers:
            file = self._files.files[number]
            check_header(file)
            address = self._map_one(number, file)
            self._maps[number] = (address, file.file_bytes)
            before = int(self._files.stops[number]) - file.tokens
            self._bases[number] = address + file.header_bytes - before * file.dtype.itemsize

    def _map_one(self, number: int, file: TokenFile) -> int:
        address = ctypes.c_void_p()
        with reading(file.path), file.path.open("rb") as opened:
            descriptor = opened.fileno()
            self._files.stamps.check_opened(number, descriptor)
            failed = self._native.lt_map_file(
                descriptor, file.file_bytes, int(self._scattered), ctypes.byref(address)
            )
            if failed:
                raise OSError(failed, os.strerror(failed))
        assert address.value, "a file with tokens has an address"
        return address.value


def check_header(file: TokenFile) -> None:
    """VerificationError if a file of ours does not begin as its manifest demands."""
    wanted = file.header
    if not wanted:
        return
    with reading(file.path), file.path.open("rb") as opened:
        found = opened.read(len(wanted))
    if found != wanted:
        raise VerificationError(
            f"{file.path} does not begin as a file of {file.tokens} {file.dtype} ids does",
            remedy=f"put {file.path.name} back from a copy, or make the dataset again",
        )
