"""Counted words on disk: sorted files, called runs, written when a table is full and merged at the end.

    run     word, word, …     in the order of their bytes; each as length and count (varints) and its bytes

Runs are whole or absent, and have a digest. Merging maps them and holds one buffer: its memory does not
depend on the number of words.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from lowtide.errors import VerificationError
from lowtide.native import load_native, watch_map
from lowtide.storage.decode_json import FileName
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.publish import partial_path, publish, storage_errors, sync_file
from lowtide.units import MIB

BUFFER_BYTES = 2 * MIB
MOST_RUNS = 64
"""Beyond this number, runs are merged into one before the next is written: merging keeps each one open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run in the work folder, as progress records name it."""

    name: FileName
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTotals:
    """Totals over all words of a corpus."""

    distinct_words: int
    words: int
    text_bytes: int
    distinct_bytes: int
    longest_bytes: int


class RunWriter:
    """Writes a run under a temporary name; `finish` gives it its own.

    Used in a `with` statement, which removes the file if the block fails before `finish`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = partial_path(path)
        self._digest = xxhash.xxh3_128()
        self._size_bytes = 0
        with storage_errors(path):
            self._file: BinaryIO = self._partial.open("wb")

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        with suppress(OSError):  # a full disk refuses what is still buffered a second time
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, data: memoryview) -> None:
        """Append data to the run."""
        with storage_errors(self._path):
            self._file.write(data)
        self._digest.update(data)
        self._size_bytes += len(data)

    def finish(self) -> RunRecord:
        """Sync the run and give it its name; its record."""
        with storage_errors(self._path):
            self._file.flush()
            sync_file(self._file.fileno())
            self._file.close()
        publish(self._partial, self._path)
        return RunRecord(
            name=self._path.name,
            size_bytes=self._size_bytes,
            digest=str(self._digest.hexdigest()),
        )


@contextmanager
def map_run(folder: Path, record: RunRecord) -> Iterator[npt.NDArray[np.uint8]]:
    """Map the bytes of a run: they occupy page cache, not private memory.

    If the file is cut meanwhile, it reads as zeros, and leaving the block raises a VerificationError.
    """
    path = folder / record.name
    with storage_errors(path, doing="read"):
        file = path.open("rb")
    with file:

        def check_size() -> None:
            # A cut inside a page leaves zeros without a fault: only the size shows it.
            if os.fstat(file.fileno()).st_size != record.size_bytes:
                raise _not_as_written(path)

        check_size()
        is_empty = record.size_bytes == 0  # which cannot be mapped
        data = np.empty(0, np.uint8) if is_empty else np.memmap(file, np.uint8, "r")
        with watch_map(data.ctypes.data, data.size) as is_broken:
            yield data
            if is_broken():
                raise _not_as_written(path)
        check_size()


def check_run(folder: Path, record: RunRecord) -> None:
    """Raise VerificationError for a run whose size or digest is not that of its record."""
    path = folder / record.name
    has_size = path.exists() and path.stat().st_size == record.size_bytes
    if not has_size or digest_file(path) != record.digest:
        raise _not_as_written(path)


def _not_as_written(path: Path) -> VerificationError:
    return VerificationError(
        f"{path} is not as it was written",
        remedy="pass `--restart` to count the words again",
    )


def merge_runs(
    folder: Path,
    runs: Sequence[RunRecord],
    name: str,
    *,
    after_each: Callable[[], None] = lambda: None,
) -> tuple[RunRecord, WordTotals]:
    """Merge runs into one, adding up the counts of equal words; its record and totals.

    `after_each` is called after every 2 MiB written.
    """
    native = load_native()
    with RunWriter(folder / name) as writer:
        with ExitStack() as maps:  # its end checks for cut files, before the new run gets its name
            mapped = [maps.enter_context(map_run(folder, run)) for run in runs]
            addresses = np.array([data.ctypes.data for data in mapped], np.uint64)
            sizes = np.array([data.size for data in mapped], np.uint64)
            merger = native.lt_runs_open(addresses.ctypes.data, sizes.ctypes.data, len(mapped))
            if not merger:
                raise MemoryError("no memory for merging runs of words")
            try:
                for piece in _merged(native, merger):
                    writer.write(piece)
                    after_each()
                if native.lt_runs_damaged(merger):
                    raise VerificationError(
                        f"a run of words in {folder} is damaged",
                        remedy="pass `--restart` to count the words again",
                    )
                totals = np.zeros(5, np.uint64)
                native.lt_runs_totals(merger, totals.ctypes.data)
            finally:
                native.lt_runs_close(merger)
        record = writer.finish()
    distinct, words, text_bytes, distinct_bytes, longest = totals.tolist()
    return record, WordTotals(
        distinct_words=distinct,
        words=words,
        text_bytes=text_bytes,
        distinct_bytes=distinct_bytes,
        longest_bytes=longest,
    )


def _merged(native: ctypes.CDLL, merger: int) -> Iterator[memoryview]:
    buffer = np.empty(BUFFER_BYTES, np.uint8)
    needed = ctypes.c_uint64()
    while True:
        written = native.lt_runs_write(merger, buffer.ctypes.data, buffer.size, needed)
        if written:
            yield memoryview(buffer[:written])  # type: ignore[arg-type]
        elif needed.value:
            buffer = np.empty(needed.value, np.uint8)  # a word longer than the buffer
        else:
            return


def encode_run(word_counts: Mapping[bytes, int]) -> bytes:
    """Encode small tables as a run; the plain version of the format.

    >>> encode_run({b"the": 300})
    b'\\x03\\xac\\x02the'
    """
    return b"".join(
        _varint(len(word)) + _varint(count) + word for word, count in sorted(word_counts.items())
    )


def decode_run(data: bytes) -> dict[bytes, int]:
    """Decode the words of a small run."""
    words, at = {}, 0
    while at < len(data):
        length, at = _take_varint(data, at)
        count, at = _take_varint(data, at)
        words[data[at : at + length]] = count
        at += length
    return words


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] >= 0x80:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1
