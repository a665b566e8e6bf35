"""How large the pages of a Parquet column really are, read from the pages' own headers.

A page must be held whole to be decoded, and the footer does not say how large it is (or says it wrongly).
The header in front of each page is a Thrift struct in compact encoding; walking from one to the next reads
a few hundred bytes per page:

    PageHeader  1 type   2 uncompressed size   3 compressed size   5 data page {1 values, 2 encoding}
                7 dictionary page {1 values}
                8 data page v2 {1 values, 4 encoding, 5 and 6 bytes of levels, 7 compressed}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lowtide.source.delta_lengths import DamagedLengthsError, value_lengths
from lowtide.source.thrift import EndlessNumberError, signed, take_varint
from lowtide.units import MIB

_FIRST_READ_BYTES = 512
_HEADER_LIMIT_BYTES = MIB
_DICTIONARY_PAGE = 2
_PLAIN_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_DELTA_LENGTHS, _DELTA_BYTES = 6, 7
"""Encodings: lengths first and then the values, or only where each differs from the one before."""
_CODECS = {"LZ4": "lz4_raw"}
"""Codecs that Arrow names otherwise where it unpacks bytes."""

_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12


class DamagedPageError(Exception):
    """The bytes where a page header should be are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a column chunk."""

    size_bytes: int
    """Uncompressed."""
    value_count: int
    is_dictionary: bool
    data_start: int
    """Where in the file the page's bytes begin, behind its header."""
    stored_bytes: int
    encoding: int
    levels_bytes: int | None
    """Of the levels in front of the values, which are not compressed; None: their lengths stand before them."""
    is_compressed: bool

    @property
    def holds_lengths(self) -> bool:
        """Whether Arrow unpacks a number for every value of the page at once."""
        return self.encoding in (_DELTA_LENGTHS, _DELTA_BYTES) and not self.is_dictionary

    @property
    def is_expanded(self) -> bool:
        """Whether the values are longer than the page that holds them."""
        return self.encoding == _DELTA_BYTES and not self.is_dictionary


def walk_pages(file: BinaryIO, start: int, end: int) -> Iterator[Page]:
    """The pages of the column chunk in `[start, end)` of the file."""
    while start < end:
        fields, header_bytes = _read_header(file, start)
        stored_bytes, size_bytes = fields.get((3,), -1), fields.get((2,), -1)
        kinds = [kind for kind in (_PLAIN_DATA, _DICTIONARY, _DATA_V2) if (kind, 1) in fields]
        if stored_bytes < 0 or size_bytes < 0 or not kinds or fields[kinds[0], 1] < 0:
            raise DamagedPageError(f"no page at byte {start}")
        is_v2 = kinds[0] == _DATA_V2
        levels_bytes = fields.get((_DATA_V2, 5), 0) + fields.get((_DATA_V2, 6), 0)
        if not 0 <= levels_bytes <= min(size_bytes, stored_bytes):
            raise DamagedPageError(f"the page at byte {start} is smaller than its levels")
        yield Page(
            size_bytes=size_bytes,
            value_count=fields[kinds[0], 1],
            is_dictionary=fields.get((1,)) == _DICTIONARY_PAGE,
            data_start=start + header_bytes,
            stored_bytes=stored_bytes,
            encoding=fields.get((kinds[0], 4 if is_v2 else 2), 0),
            levels_bytes=levels_bytes if is_v2 else None,
            is_compressed=fields.get((_DATA_V2, 7), 1) == 1,
        )
        start += header_bytes + stored_bytes


def longest_entry_bytes(file: BinaryIO, page: Page, compression: str) -> int:
    """The longest value of a dictionary page, at most the page itself.

    Rows point into the dictionary, so a page of a few bytes may stand for gigabytes: this times the number
    of rows is what they take at worst. Unpacks the page, and walks its values (`length, bytes, length, …`).
    """
    try:
        data = _unpacked(file, page, compression)
    except (OSError, ValueError, pa.ArrowException):
        return page.size_bytes  # a codec that is not at hand here: assume the worst
    longest = position = 0
    for _ in range(page.value_count):
        length = int.from_bytes(data[position : position + 4], "little")
        position += 4 + length
        if position > len(data):
            return page.size_bytes
        longest = max(longest, length)
    return longest


def expanded_lengths(
    file: BinaryIO, page: Page, compression: str, *, level_kinds: int
) -> npt.NDArray[np.int64]:
    """Bytes of each value of a page in DELTA_BYTE_ARRAY encoding, which is `is_expanded`.

    `level_kinds`: how many kinds of levels, for nulls and for lists, stand before the values.
    """
    try:
        data = _unpacked(file, page, compression)
        start = 0
        for _ in range(level_kinds if page.levels_bytes is None else 0):
            start += 4 + int.from_bytes(data[start : start + 4], "little")
        return value_lengths(data[start:], page.value_count)
    except (DamagedLengthsError, OSError, ValueError, pa.ArrowException) as error:
        problem = f"the page at byte {page.data_start}: {error}"
        raise DamagedPageError(problem) from error


def _unpacked(file: BinaryIO, page: Page, compression: str) -> memoryview:
    """The page's bytes as they were before compression; of a v2 page, those behind the levels."""
    levels_bytes = page.levels_bytes or 0
    file.seek(page.data_start + levels_bytes)
    data = file.read(page.stored_bytes - levels_bytes)
    if compression == "UNCOMPRESSED" or not page.is_compressed or not data:
        return memoryview(data)
    codec = _CODECS.get(compression, compression.lower())
    unpacked = pa.decompress(data, page.size_bytes - levels_bytes, codec=codec)
    return memoryview(unpacked).cast("B")  # Arrow's bytes have signs


def _read_header(file: BinaryIO, start: int) -> tuple[dict[tuple[int, ...], int], int]:
    """The integers of the header at `start` by their path of field numbers, and the header's length."""
    size = _FIRST_READ_BYTES
    while True:
        file.seek(start)
        data = file.read(size)
        reader = _Reader(data)
        try:
            fields = reader.read_struct(())
        except IndexError:
            if len(data) < size or size >= _HEADER_LIMIT_BYTES:
                raise DamagedPageError(f"no page header at byte {start}") from None
            size *= 8  # statistics may hold long values
            continue
        except EndlessNumberError as error:
            raise DamagedPageError(f"the page header at byte {start}: {error}") from error
        return fields, reader.position


class _Reader:
    """Reads Thrift's compact encoding as far as page headers need it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read_struct(self, path: tuple[int, ...]) -> dict[tuple[int, ...], int]:
        """Integer fields by path; everything else is stepped over."""
        if len(path) > 4:
            raise DamagedPageError("a page header nested too deeply")
        found: dict[tuple[int, ...], int] = {}
        field = 0
        while header := self._byte():
            kind, step = header & 0x0F, header >> 4
            field = field + step if step else self._zigzag()
            if kind in _INTEGERS:
                found[*path, field] = self._zigzag()
            elif kind in _BOOLEANS:
                found[*path, field] = int(kind == _BOOLEANS[0])
            elif kind == _STRUCT:
                found |= self.read_struct((*path, field))
            else:
                self._step_over(kind)
        return found

    def _step_over(self, kind: int) -> None:
        if kind == _BYTE:
            self._advance(1)
        elif kind == _DOUBLE:
            self._advance(8)
        elif kind == _BINARY:
            self._advance(self._varint())
        else:  # lists and maps: page headers hold none
            raise DamagedPageError(f"a field of kind {kind} in a page header")

    def _advance(self, count: int) -> None:
        self.position += count
        if self.position > len(self.data):
            raise IndexError

    def _byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        value, self.position = take_varint(self.data, self.position)
        return value

    def _zigzag(self) -> int:
        return signed(self._varint())
