"""How large the pages of a Parquet column really are, read from the pages' own headers.

A page must be held whole to be decoded, and the footer does not say how large it is (or says it wrongly).
The header in front of each page is a Thrift struct in compact encoding; walking from one to the next reads
a few hundred bytes per page:

    PageHeader  1 type   2 uncompressed size   3 compressed size   5 data page {1 values}
                7 dictionary page {1 values}   8 data page v2 {1 values}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from lowtide.units import MIB

_FIRST_READ_BYTES = 512
_HEADER_LIMIT_BYTES = MIB
_DICTIONARY_PAGE = 2
_STRUCT_FIELDS = (5, 7, 8)

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


def walk_pages(file: BinaryIO, start: int, end: int) -> Iterator[Page]:
    """The pages of the column chunk in `[start, end)` of the file."""
    while start < end:
        fields, header_bytes = _read_header(file, start)
        stored_bytes, size_bytes = fields.get((3,), -1), fields.get((2,), -1)
        values = [fields[field, 1] for field in _STRUCT_FIELDS if (field, 1) in fields]
        if stored_bytes < 0 or size_bytes < 0 or not values or values[0] < 0:
            raise DamagedPageError(f"no page at byte {start}")
        yield Page(
            size_bytes=size_bytes,
            value_count=values[0],
            is_dictionary=fields.get((1,)) == _DICTIONARY_PAGE,
            data_start=start + header_bytes,
            stored_bytes=stored_bytes,
        )
        start += header_bytes + stored_bytes


def longest_entry_bytes(file: BinaryIO, page: Page, compression: str) -> int:
    """The longest value of a dictionary page, at most the page itself.

    Rows point into the dictionary, so a page of a few bytes may stand for gigabytes: this times the number
    of rows is what they take at worst. Unpacks the page, and walks its values (`length, bytes, length, …`).
    """
    file.seek(page.data_start)
    data = file.read(page.stored_bytes)
    if compression != "UNCOMPRESSED":
        try:
            data = pa.decompress(data, page.size_bytes, codec=compression.lower(), asbytes=True)
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
        elif kind not in _BOOLEANS:  # lists and maps: page headers hold none
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
        value = shift = 0
        while True:
            octet = self._byte()
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise DamagedPageError("a number without an end in a page header")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
