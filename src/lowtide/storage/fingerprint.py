"""Tell whether a file has changed: cheaply by samples, or surely by every byte.

A fingerprint reads 1 MiB of a file of any size. It notices another size, another file, or an edit at
either end; it misses a changed byte between two samples. A digest reads everything.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from lowtide.errors import DataError, VerificationError
from lowtide.storage.publish import storage_errors
from lowtide.units import KIB, MIB

_SAMPLE_BYTES = 64 * KIB
_SAMPLE_COUNT = 16
_PIECE_BYTES = MIB


def fingerprint_file(path: Path) -> str:
    """Hash the size and 16 samples of 64 KiB, the first and last at the file's ends; 32 hex digits.

    A file of up to 1 MiB is read whole. Reads 1 MiB at most.
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
    """xxh3_128 (32 hex digits) of `length` bytes from `offset`, or of everything after it.

    Holds 1 MiB. A file that ends too early is a VerificationError, never a shorter digest.
    """
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_PIECE_BYTES))
    done_bytes = 0
    with storage_errors(path, doing="read"), path.open("rb", buffering=0) as file:
        file.seek(offset)
        while length is None or done_bytes < length:
            wanted = _PIECE_BYTES if length is None else min(_PIECE_BYTES, length - done_bytes)
            got = file.readinto(buffer[:wanted])
            if not got:
                break
            state.update(buffer[:got])
            done_bytes += got
    if length is not None and done_bytes < length:
        raise VerificationError(
            f"{path} is cut short: {done_bytes} of {length} bytes after byte {offset}",
            remedy=f"put {path.name} back from a copy, or run the same command with `--restart`",
        )
    return state.hexdigest()


def _samples(size_bytes: int) -> list[tuple[int, int]]:
    """Offset and length of each sample: evenly spread, from the first byte to the last."""
    if size_bytes <= _SAMPLE_COUNT * _SAMPLE_BYTES:
        return [(0, size_bytes)]
    last_offset = size_bytes - _SAMPLE_BYTES
    last = _SAMPLE_COUNT - 1
    return [(last_offset * k // last, _SAMPLE_BYTES) for k in range(_SAMPLE_COUNT)]
