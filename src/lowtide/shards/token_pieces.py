"""Pieces of a token stream, copied out of its files into one array: how training reads.

    pieces = Pieces(starts=[0, 5000], counts=[1025, 1025], places=[0, 1025])
    copier.copy(pieces, rows)         # rows[0:1025] and rows[1025:2050]

Files are mapped by the compiled part, which survives a file that is cut while it is read, and keeps no
descriptor. Where that part is missing, pieces are read one by one (`PlainCopier`): slower, with the
same tokens. After every copy the stamps of its files are compared: what is given out was read from
files that had not changed since the copier was made.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lowtide.errors import UsageError, VerificationError
from lowtide.native import load_native
from lowtide.shards.layout import EndArray, TokenArray, TokenFile
from lowtide.shards.payload import cut_short, read_into, reading
from lowtide.shards.read import ranges_in_files
from lowtide.shards.stamps import StampedFiles, changed

_MOST_MAPS = 1 << 14
"""A process may hold 65,530 maps, and others need some. More files than this are read one by one."""

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
        """Fill `x` with pieces of its width, `y` with the token after each; the largest id of all.

        A copier without a fast way does nothing and returns None: `copy` the pieces instead.
        """

    def fetch(self, pieces: Pieces) -> None:
        """Ask the kernel to read the pieces into the page cache; returns at once."""

    def file_times(self) -> list[tuple[int, int]]:
        """Size and time of change of each file, as they were when the copier was made."""

    def close(self) -> None:
        """Release the files."""


def make_copier(files: Sequence[TokenFile], *, scattered: bool) -> Copier:
    """The fastest copier that works here.

    `scattered` says that pieces will come from everywhere, so reading ahead around them is useless.
    """
    if len(files) > _MOST_MAPS:
        return PlainCopier(files)
    try:
        return MappedCopier(files, scattered=scattered)
    except (UsageError, NotImplementedError):  # no compiled part, or a system it does not serve
        return PlainCopier(files)


class _Files:
    """The files of a stream for both copiers: where each ends in the stream, and its stamp."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.files = tuple(files)
        self.stops = np.cumsum([file.tokens for file in files], dtype=np.int64)
        self.stamps = StampedFiles([file.path for file in files])
        for number, file in enumerate(self.files):
            if self.stamps.size_bytes(number) != file.file_bytes:
                raise changed(file.path)

    def locate(self, pieces: Pieces) -> tuple[EndArray, Pieces]:
        """The file number of each piece (one for all if there is one file), and the pieces.

        Pieces that lie in several files are cut.
        """
        numbers, crossing = self.first_files(pieces)
        if not crossing.size:
            return numbers, pieces
        columns = (pieces.starts.tolist(), pieces.counts.tolist(), pieces.places.tolist())
        rows = [
            (number, at, until - at, place + at - start)
            for start, count, place in zip(*columns, strict=True)
            for number, at, until in ranges_in_files(self.stops, start, start + count)
        ]
        numbers, starts, counts, places = np.array(rows, dtype=np.int64).reshape(-1, 4).T.copy()
        return numbers, Pieces(starts=starts, counts=counts, places=places)

    def first_files(self, pieces: Pieces) -> tuple[EndArray, EndArray]:
        """The file that each piece begins in, and which pieces continue in another."""
        if len(self.files) == 1:
            return _ONE_FILE, _NONE
        numbers = np.searchsorted(self.stops, pieces.starts, side="right")
        return numbers, np.flatnonzero(pieces.starts + pieces.counts > self.stops[numbers])

    def check_unchanged(self, numbers: EndArray) -> None:
        """Raise VerificationError if one of these files has changed."""
        self.stamps.check(list(set(numbers.tolist())))


class PlainCopier:
    """Opens a file, seeks and reads for every piece. Holds nothing."""

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
            wanted = target[place : place + count].view(np.uint8).data
            with reading(file.path), file.path.open("rb", buffering=0) as opened:
                self._files.stamps.check_opened(number, opened.fileno())
                opened.seek(offset)
                filled = read_into(wanted, opened)
            if filled < len(wanted):
                raise cut_short(file.path, offset + len(wanted), offset + filled)
        self._files.check_unchanged(numbers)

    def widen(self, pieces: Pieces, x: EndArray, y: EndArray) -> int | None:  # noqa: ARG002
        """Always None: it can only `copy`."""
        return None

    def fetch(self, pieces: Pieces) -> None:
        """Do nothing: it can only read."""

    def file_times(self) -> list[tuple[int, int]]:
        return self._files.stamps.times()

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class _Columns:
    """Arguments of the compiled part for each piece, in arrays whose addresses are known."""

    def __init__(self, capacity: int) -> None:
        self.sources = np.empty(capacity, dtype=np.int64)
        self.targets = np.empty(capacity, dtype=np.int64)
        self.sizes = np.empty(capacity, dtype=np.int64)
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
        """Per file, the address that token 0 of the stream would have in its map; 0 if it is not mapped."""
        self._maps: dict[int, tuple[int, int]] = {}
        self._columns = _Columns(64)

    def copy(self, pieces: Pieces, target: TokenArray) -> None:
        numbers, pieces = self._files.locate(pieces)
        count, width = len(pieces.starts), self._width
        columns = self._find_sources(numbers, pieces)
        np.multiply(pieces.places, width, out=columns.targets[:count])
        columns.targets[:count] += target.ctypes.data
        np.multiply(pieces.counts, width, out=columns.sizes[:count])
        self._check(self._native.lt_copy_pieces(count, *columns.addresses), count, numbers)

    def widen(self, pieces: Pieces, x: EndArray, y: EndArray) -> int | None:
        numbers, crossing = self._files.first_files(pieces)
        joined = self._join(pieces, crossing, x.shape[1] + 1) if crossing.size else None
        count, width = len(pieces.starts), self._width
        columns = self._find_sources(numbers, pieces)
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
        """The chosen pieces as rows, each out of its several files."""
        rows = np.empty((len(chosen), width), dtype=self._files.files[0].dtype)
        places = np.arange(len(chosen), dtype=np.int64) * width
        joined = Pieces(starts=pieces.starts[chosen], counts=pieces.counts[chosen], places=places)
        self.copy(joined, rows.reshape(-1))
        return rows

    def fetch(self, pieces: Pieces) -> None:
        numbers, pieces = self._files.locate(pieces)
        count = len(pieces.starts)
        columns = self._find_sources(numbers, pieces)
        np.multiply(pieces.counts, self._width, out=columns.sizes[:count])
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

    def _find_sources(self, numbers: EndArray, pieces: Pieces) -> _Columns:
        """Columns with the address of each piece; files that are touched for the first time are mapped."""
        count = len(pieces.starts)
        if len(self._columns.sources) < count:
            self._columns = _Columns(max(count, 2 * len(self._columns.sources)))
        one = len(self._files.files) == 1
        bases = self._bases if one else self._bases[numbers]
        if not bases.all():
            for number in sorted(set(numbers[bases == 0].tolist())):
                self._map(number)
            bases = self._bases if one else self._bases[numbers]
        sources = self._columns.sources[:count]
        np.multiply(pieces.starts, self._width, out=sources)
        sources += bases
        return self._columns

    def _map(self, number: int) -> None:
        file = self._files.files[number]
        check_header(file)
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
        self._maps[number] = (address.value, file.file_bytes)
        before = int(self._files.stops[number]) - file.tokens
        self._bases[number] = address.value + file.header_bytes - before * file.dtype.itemsize


def check_header(file: TokenFile) -> None:
    """Raise VerificationError if a file of ours does not begin with the header its manifest demands."""
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
