"""Bytes out of a file, plain or compressed, through a window that moves over them.

Decompression is Arrow's: several gzip members or zstd frames in a row are one stream, a truncated stream is an
error, and no read gives more than was asked for, however well the bytes were packed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import zstandard

from lowtide.errors import DataError, UsageError
from lowtide.source.find_inputs import InputFile, Stream
from lowtide.source.thrift import DamagedParquetError
from lowtide.units import KIB, MIB, format_bytes, round_up_to_mib

_SKIPPED_BYTES = 256 * KIB
_ZSTD_HEADER_BYTES = 18
_ZSTD_USUAL_WINDOW_BYTES = 8 * MIB
"""What `zstd` uses up to level 19; larger ones are compared with the document limit."""


class _Stream(Protocol):
    """A file being read from front to back."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; none at the end."""

    def tell(self) -> int:
        """Stored bytes read so far."""


class _PlainStream:
    """An uncompressed file, read up to the size it had when it was found."""

    def __init__(self, descriptor: int, file: InputFile, position: int) -> None:
        self._descriptor = descriptor
        self._file = file
        self._position = position

    def read(self, size: int, /) -> bytes:
        size = min(size, self._file.size_bytes - self._position)
        if size <= 0:
            return b""
        data = os.read(self._descriptor, size)
        self._position += len(data)
        if not data:
            raise became_shorter(self._file)
        return data

    def tell(self) -> int:
        return self._position


class _PassingStream:
    """An input that comes once."""

    def __init__(self, stream: Stream) -> None:
        self._read = stream.read
        self._position = 0

    def read(self, size: int, /) -> bytes:
        data = self._read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position


class _PackedStream:
    """A gzip or zstd file."""

    def __init__(self, stored: pa.NativeFile, file: InputFile) -> None:
        self._stored = stored
        self._file = file
        codec = "gzip" if file.compression == "gz" else "zstd"
        self._unpacked = pa.CompressedInputStream(stored, codec)

    def read(self, size: int, /) -> bytes:
        try:
            data: bytes = self._unpacked.read(size)
        except (OSError, pa.ArrowException, MemoryError) as error:
            raise DataError(
                f"{self._file.path} cannot be decompressed: {error}",
                remedy="the file is damaged or was not copied whole; fetch it again",
            ) from error
        return data

    def tell(self) -> int:
        return min(int(self._stored.tell()), self._file.size_bytes)


class ByteWindow:
    """The part of a stream that is in memory: `data`, which starts at byte `position` of the content."""

    def __init__(self, stream: _Stream, *, position: int, end: int | None) -> None:
        self._stream = stream
        self._end = end
        self.data = b""
        self.position = position
        self.at_end = False

    def fill(self, want: int) -> None:
        """Make `data` at least `want` bytes long, or shorter and `at_end`."""
        left = None if self._end is None else self._end - self.position
        parts, held = [self.data], len(self.data)
        while held < want and not self.at_end:
            part = self._stream.read((want if left is None else min(want, left)) - held)
            parts.append(part)
            held += len(part)
            self.at_end = not part or held == left
        self.data = b"".join(part for part in parts if part)

    def grow(self, limit_bytes: int) -> bool:
        """Hold twice as much, up to the limit; False when nothing more may be held."""
        if len(self.data) >= limit_bytes:
            return False
        self.fill(min(2 * len(self.data) + 1, limit_bytes))
        return True

    def drop(self, count: int) -> None:
        """Move on by `count` bytes, no more than are held."""
        self.data = self.data[count:]
        self.position += count

    def skip_to(self, position: int) -> None:
        """Move on to a later byte, holding no more than before."""
        self.drop(min(position - self.position, len(self.data)))
        while self.position < position and not self.at_end:
            self.fill(min(position - self.position, _SKIPPED_BYTES))
            self.drop(len(self.data))

    def done_bytes(self) -> int:
        """Stored bytes read from the file so far."""
        return self._stream.tell()


@contextmanager
def open_window(
    file: InputFile, *, position: int = 0, end: int | None = None, limit_bytes: int
) -> Iterator[ByteWindow]:
    """An empty window at `position` of the file's content, which ends at `end` or where the file does.

    In a compressed file everything before `position` is unpacked and dropped. A zstd frame that looks back
    further than `limit_bytes` is refused.
    """
    if file.stream is not None:
        _refuse_middle(file.stream, position)
        yield ByteWindow(_PassingStream(file.stream), position=position, end=end)
    elif file.compression:
        _check_zstd_window(file, limit_bytes)
        with explain_open_errors(file), pa.OSFile(str(file.path), "rb") as stored:
            packed = _PackedStream(stored, file)
            _skip(packed, file, position)
            yield ByteWindow(packed, position=position, end=end)
    else:
        with explain_open_errors(file), file.path.open("rb", buffering=0) as plain:
            plain.seek(position)
            stream = _PlainStream(plain.fileno(), file, position)
            yield ByteWindow(stream, position=position, end=end)


def became_shorter(file: InputFile) -> DataError:
    """The error for a file that another program truncated."""
    return DataError(
        f"{file.path} became shorter while it was read",
        remedy="let the program that writes it finish, then run again with `--restart`",
    )


@contextmanager
def explain_open_errors(file: InputFile) -> Iterator[None]:
    """Turn the system's refusal to open or read a file into a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{file.path} cannot be read: {error.strerror or error}",
            remedy="check that the file still exists, that it is readable, and that its disk is healthy",
        ) from error


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn what Arrow says about a damaged or lying file into a `DataError`."""
    try:
        yield
    except MemoryError as error:  # pa.ArrowMemoryError is one
        raise DataError(
            f"{path} asks for more memory than there is: {error}",
            remedy="pass a larger `--memory`; if the file is small, it is damaged",
        ) from error
    except (
        OSError,
        pa.ArrowException,
        DamagedParquetError,
        ValueError,
        OverflowError,
    ) as error:
        raise DataError(
            f"{path} is damaged or not what its name says: {error}",
            remedy="fetch or write the file again, or leave it out",
        ) from error


def _refuse_middle(stream: Stream, position: int) -> None:
    if position:
        raise UsageError(
            f"{stream.name} cannot be read again from the middle",
            remedy=f"save it to a file and name that, or begin again with `{stream.restart}`",
        )


def _skip(stream: _Stream, file: InputFile, count: int) -> None:
    while count:
        dropped = len(stream.read(min(count, _SKIPPED_BYTES)))
        if not dropped:
            raise DataError(
                f"{file.path} is shorter than it was", remedy="begin again with `--restart`"
            )
        count -= dropped


def _check_zstd_window(file: InputFile, limit_bytes: int) -> None:
    """Refuse a frame that looks back further than memory allows, before the memory is allocated."""
    if file.compression != "zst" or not file.size_bytes:
        return
    with explain_open_errors(file), file.path.open("rb") as stored:
        header = stored.read(_ZSTD_HEADER_BYTES)
    try:
        window_bytes = zstandard.get_frame_parameters(header).window_size
    except zstandard.ZstdError as error:
        raise DataError(
            f"{file.path} is not a zstd file: {error}", remedy="check its name, or fetch it again"
        ) from error
    if window_bytes > max(limit_bytes, _ZSTD_USUAL_WINDOW_BYTES):
        raise DataError(
            f"{file.path} needs a zstd window of {format_bytes(window_bytes)}, "
            f"more than the {format_bytes(limit_bytes)} there is for one piece",
            remedy="raise `--memory`, or pack it again without `--long` and `--ultra` "
            f"(the window must fit {round_up_to_mib(max(limit_bytes, _ZSTD_USUAL_WINDOW_BYTES))})",
        )
