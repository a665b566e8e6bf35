"""One flat file, written, read and verified in bounded pieces: a header, then a digested payload.

The digest is xxh3_128 over the payload alone. The header follows from the count and is compared
with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash

from lowtide.errors import StorageError, VerificationError
from lowtide.storage.publish import storage_errors, sync_file
from lowtide.units import KIB, MIB

PIECE_BYTES = 8 * MIB
"""The largest piece that one read holds."""
INDEX_PIECE_BYTES = 256 * KIB
"""The largest piece of document ends: work on them holds several arrays of this size."""
BUFFER_BYTES = 1 * MIB
"""Bytes that a partial file buffers, so that the disk sees large writes."""
_WRITE_BACK_BYTES = 8 * MIB

RESTART = "run the same command with `--restart`"


class PartialFile:
    """A file that grows at its end, digested on the way. Holds `BUFFER_BYTES`; closing loses them.

    Only `sync` and `finish` guarantee that the bytes are on the disk.
    """

    __slots__ = ("_buffer", "_descriptor", "_filled", "_header_bytes", "_state", "_written", "path")

    def __init__(self, path: Path, header_bytes: int) -> None:
        self.path = path
        self._header_bytes = header_bytes
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._state = xxhash.xxh3_128()
        self._written = header_bytes
        flags = os.O_RDWR | os.O_CREAT
        for name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW"):  # a link would be written through
            flags |= getattr(os, name, 0)
        with storage_errors(path):
            self._descriptor = os.open(path, flags, 0o666)

    @classmethod
    def create(cls, path: Path, header_bytes: int) -> Self:
        """Start an empty payload behind a zeroed header; what the file held is lost."""
        file = cls(path, header_bytes)
        with storage_errors(path):
            os.ftruncate(file._descriptor, 0)
            os.ftruncate(file._descriptor, header_bytes)
            os.lseek(file._descriptor, header_bytes, os.SEEK_SET)
        return file

    @classmethod
    def reopen(cls, path: Path, header_bytes: int, *, payload_bytes: int, digest: str) -> Self:
        """Continue after the first `payload_bytes`: their digest is checked, the rest is cut off."""
        file = cls(path, header_bytes)
        try:
            for piece in read_pieces(path, header_bytes, payload_bytes, piece_bytes=BUFFER_BYTES):
                file._state.update(piece)
            if file.digest != digest:
                raise VerificationError(f"{path} is not what was written to it", remedy=RESTART)
            file._written = header_bytes + payload_bytes
            with storage_errors(path):
                os.ftruncate(file._descriptor, file._written)
                os.lseek(file._descriptor, file._written, os.SEEK_SET)
        except BaseException:
            file.close()
            raise
        return file

    @property
    def payload_bytes(self) -> int:
        """Payload bytes so far, written or still buffered."""
        return self._written - self._header_bytes + self._filled

    @property
    def digest(self) -> str:
        """xxh3_128 of the payload so far, as 32 hex digits."""
        return self._state.hexdigest()

    def write(self, values: npt.NDArray[np.generic]) -> None:
        """Add the array's bytes at the end."""
        view = np.ascontiguousarray(values).view(np.uint8).data
        self._state.update(view)
        if self._filled + len(view) > BUFFER_BYTES:
            self._flush()
        if len(view) >= BUFFER_BYTES:
            self._write_out(view)
            return
        self._buffer[self._filled : self._filled + len(view)] = view
        self._filled += len(view)

    def sync(self) -> None:
        """Put everything so far on the disk."""
        self._flush()
        with storage_errors(self.path):
            sync_file(self._descriptor)

    def finish(self, header: bytes) -> None:
        """Write the header, sync, close: the file is whole and may be published."""
        assert len(header) == self._header_bytes, "space was reserved for another header"
        self._flush()
        with storage_errors(self.path):
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            _write_all(self._descriptor, memoryview(header))
            sync_file(self._descriptor)  # the rename must not become durable before the bytes do
        _forget_pages(self._descriptor, 0, 0)
        self.close()

    def close(self) -> None:
        """Close the file unfinished. Buffered bytes are lost, as in a crash."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with storage_errors(self.path):
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    def _flush(self) -> None:
        if self._filled:
            self._write_out(memoryview(self._buffer)[: self._filled])
            self._filled = 0

    def _write_out(self, view: memoryview) -> None:
        before = self._written
        with storage_errors(self.path):
            _write_all(self._descriptor, view)
        self._written += len(view)
        if self._written // _WRITE_BACK_BYTES > before // _WRITE_BACK_BYTES:
            # The first call on a range starts its write-back, the second drops the clean pages.
            start = max(0, before - 2 * _WRITE_BACK_BYTES)
            _forget_pages(self._descriptor, start, self._written - start)


def read_pieces(
    path: Path, offset: int, length: int, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[memoryview]:
    """Read `length` bytes from `offset` in pieces of `piece_bytes`; the last may be short.

    Every piece lies in the same buffer: use it before asking for the next. A file that ends too
    early raises VerificationError, also if it shrinks during the read: nothing is mapped.
    """
    if not length:
        return
    buffer = memoryview(bytearray(min(piece_bytes, length)))
    with reading(path), path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = length
        while left:
            piece = buffer[: min(left, len(buffer))]
            filled = read_into(piece, file)
            if filled < len(piece):
                raise cut_short(path, offset + length, offset + length - left + filled)
            left -= len(piece)
            yield piece


def read_into(target: memoryview, file: RawIOBase) -> int:
    """Fill `target` from an unbuffered file; the bytes read, fewer only if the file ends first."""
    filled = 0
    while filled < len(target):
        got = file.readinto(target[filled:])
        if not got:
            break
        filled += got
    return filled


def read_exactly(path: Path, offset: int, length: int) -> bytes:
    """Read a few bytes from the middle of a file; VerificationError if it ends too early."""
    return b"".join(bytes(piece) for piece in read_pieces(path, offset, length))


def check_size(path: Path, wanted_bytes: int) -> None:
    """Raise VerificationError unless the file has exactly this size."""
    with reading(path):
        found_bytes = path.stat().st_size
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes instead of {wanted_bytes}", remedy=_mend(path)
        )


def payload_problems(
    path: Path,
    header: bytes,
    payload_bytes: int,
    *,
    digest: str,
    holds: str,
    look: Callable[[memoryview], None] | None = None,
) -> Iterator[str]:
    """Problems of a file that should consist of `header` and a payload with this digest; one pass.

    `holds` names the contents in the sentences; `look` is called with every piece of the payload. A file of
    another size raises VerificationError.
    """
    check_size(path, len(header) + payload_bytes)
    if read_exactly(path, 0, len(header)) != header:
        yield f"{path.name}: its header does not match the manifest"
    state = xxhash.xxh3_128()
    for piece in read_pieces(path, len(header), payload_bytes):
        state.update(piece)
        if look:
            look(piece)
    if state.hexdigest() != digest:
        yield f"{path.name}: its {holds} are not those that were written"


def cut_short(path: Path, wanted_bytes: int, found_bytes: int) -> VerificationError:
    """The error for a file that ends before its data does."""
    return VerificationError(
        f"{path} is cut short: {found_bytes} bytes instead of {wanted_bytes}", remedy=_mend(path)
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError while reading into a StorageError; a missing file fails verification."""
    try:
        yield
    except FileNotFoundError as error:
        raise VerificationError(f"{path} is missing", remedy=_mend(path)) from error
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}",
            remedy=f"make {path} readable, or check the disk that holds it",
        ) from error


def _mend(path: Path) -> str:
    return f"put {path.name} back from a copy, or make the dataset again"


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _forget_pages(descriptor: int, start: int, length: int) -> None:
    """Start write-back and release clean pages: long writing must not fill the page cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
