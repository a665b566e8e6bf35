"""Has this file changed? Cheaply by samples, or surely by every byte.

A fingerprint reads 1 MiB of a file of any size: it notices another size, another file, an edit at
either end; a changed byte between two samples it cannot see. A digest reads everything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import xxhash

from lowtide.errors import DataError, VerificationError
from lowtide.storage.publish import storage_errors
from lowtide.units import KIB, MIB

_SAMPLE_BYTES = 64 * KIB
_SAMPLE_COUNT = 16
_PIECE_BYTES = MIB


def fingerprint_file(path: Path) -> str:
    """32 hex digits of the size and 16 samples of 64 KiB, the first and last at the file's ends.

    A file of up to 1 MiB is taken whole. Costs 1 MiB of reading, whatever the size.
    """
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            state = xxhash.xxh3_128(size_bytes.to_bytes(8, "little"))
            for offset, length in _samples(size_bytes):
                file.seek(offset)
                state.update(file.read(length))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}",
            remedy=f"make {path} readable, or leave it out of the inputs",
        ) from error
    return state.hexdigest()


def digest_file(path: Path, offset: int = 0, length: int | None = None) -> str:
    """xxh3_128 (32 hex digits) of `length` bytes from `offset`, or of all that follows it.

    Holds 1 MiB. A file that ends too early is a VerificationError, never a shorter digest.
    """
    with storage_errors(path, doing="read"), path.open("rb", buffering=0) as file:
        file.seek(offset)
        state = xxhash.xxh3_128()
        done_bytes = _feed(state, file, length)
    if length is not None and done_bytes < length:
        raise VerificationError(
            f"{path} is cut short: {done_bytes} of {length} bytes after byte {offset}",
            remedy=f"put {path.name} back from a copy, or run the same command with `--restart`",
        )
    return state.hexdigest()


def _samples(size_bytes: int) -> list[tuple[int, int]]:
    """(offset, length) of what a fingerprint reads.

    `_samples(4 MiB)` starts at 0, ends at the last byte, and lies evenly between.
    """
    if size_bytes <= _SAMPLE_COUNT * _SAMPLE_BYTES:
        return [(0, size_bytes)]
    room = size_bytes - _SAMPLE_BYTES
    last = _SAMPLE_COUNT - 1
    return [(room * k // last, _SAMPLE_BYTES) for k in range(_SAMPLE_COUNT)]


def _feed(state: xxhash.xxh3_128, file: BinaryIO, length: int | None) -> int:
    """Feed up to `length` bytes through one reused buffer; how many there were."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    done_bytes = 0
    while length is None or done_bytes < length:
        wanted = _PIECE_BYTES if length is None else min(_PIECE_BYTES, length - done_bytes)
        got = file.readinto(buffer[:wanted])  # type: ignore[attr-defined]
        if not got:
            break
        state.update(buffer[:got])
        done_bytes += got
    return done_bytes
