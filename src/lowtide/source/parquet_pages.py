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

from lowtide.source import thrift
from lowtide.source.thrift import DamagedParquetError, ThriftReader
from lowtide.units import MIB

_FIRST_READ_BYTES = 512
_HEADER_LIMIT_BYTES = MIB
_DICTIONARY_PAGE = 2
_PLAIN_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_DELTA_LENGTHS, _DELTA_BYTES = 6, 7
"""Encodings that store lengths first, then the values, or only where each differs from the one before."""
_CODECS = {"LZ4": "lz4_raw"}
"""Codecs that `pa.decompress` knows by another name."""

_UNPACKED_VALUES = 4096
"""Packed numbers are unpacked so many at a time; a multiple of 8, for each part to begin with a whole byte."""
_WIDEST_BITS = 64
_LONGEST_BYTES = 2**31 - 1


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
    """Length of the levels in front of the values, which are not compressed; None: it stands before them."""
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
            raise DamagedParquetError(f"no page at byte {start}")
        is_v2 = kinds[0] == _DATA_V2
        levels_bytes = fields.get((_DATA_V2, 5), 0) + fields.get((_DATA_V2, 6), 0)
        if not 0 <= levels_bytes <= min(size_bytes, stored_bytes):
            raise DamagedParquetError(f"the page at byte {start} is smaller than its levels")
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
        return page.size_bytes  # a codec that is not available here: assume the worst
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
    except (DamagedParquetError, OSError, ValueError, pa.ArrowException) as error:
        problem = f"the page at byte {page.data_start}: {error}"
        raise DamagedParquetError(problem) from error


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
        reader = ThriftReader(data)
        try:
            return _integers(reader, ()), reader.place
        except IndexError:
            if len(data) < size or size >= _HEADER_LIMIT_BYTES:
                raise DamagedParquetError(f"no page header at byte {start}") from None
            size *= 8  # statistics may hold long values
        except DamagedParquetError as error:
            raise DamagedParquetError(f"the page header at byte {start}: {error}") from error


def _integers(reader: ThriftReader, path: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """The integer and Boolean fields of a struct by path; everything else is stepped over."""
    if len(path) > 4:
        raise DamagedParquetError("nested too deeply")
    found: dict[tuple[int, ...], int] = {}
    for field, kind in reader.fields():
        if kind in thrift.INTEGERS:
            found[*path, field] = reader.zigzag()
        elif kind in (thrift.TRUE, thrift.FALSE):
            found[*path, field] = int(kind == thrift.TRUE)
        elif kind == thrift.STRUCT:
            found |= _integers(reader, (*path, field))
        elif kind == thrift.BINARY:
            reader.binary()
        elif kind in (thrift.BYTE, thrift.DOUBLE):
            reader.skip(1 if kind == thrift.BYTE else 8)
        else:  # lists and maps: page headers hold none
            raise DamagedParquetError(f"a field of kind {kind}")
    return found


def value_lengths(data: memoryview, most_count: int) -> npt.NDArray[np.int64]:
    """Bytes of each value of a DELTA_BYTE_ARRAY page once it is expanded, from its lengths alone.

    Each value is stored as the number of bytes it shares with the one before it and as the rest, so a page of
    two kilobytes may stand for gigabytes. Both numbers lie at the front of the page, packed as differences:

        lengths of the shared bytes │ lengths of the rests │ the rests, one behind the other

    A page of more than `most_count` values is damaged.
    """
    shared, end = read_packed(data, most_count)
    rests, _ = read_packed(data[end:], most_count)
    if len(shared) != len(rests):
        raise DamagedParquetError("a page with lengths that do not belong together")
    for lengths in (shared, rests):
        if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= _LONGEST_BYTES:
            raise DamagedParquetError("a value of an impossible length")
    return shared + rests


def read_packed(data: memoryview, most_count: int) -> tuple[npt.NDArray[np.int64], int]:
    """Numbers in DELTA_BINARY_PACKED encoding, and where they end.

    Block size, miniblocks a block, count, first value, then blocks: least difference, a bit width for each
    miniblock, the miniblocks.
    """
    reader = ThriftReader(data)
    try:
        return _read_packed(reader, data, most_count), reader.place
    except IndexError:
        raise DamagedParquetError("packed numbers that break off") from None


def _read_packed(reader: ThriftReader, data: memoryview, most_count: int) -> npt.NDArray[np.int64]:
    block_values, miniblocks, count = reader.varint(), reader.varint(), reader.varint()
    first = reader.zigzag()
    if count > most_count:
        raise DamagedParquetError(f"{count} packed numbers, where there are {most_count} values")
    if not 0 < miniblocks <= block_values or block_values % (32 * miniblocks):
        raise DamagedParquetError(f"{miniblocks} miniblocks in a block of {block_values} numbers")
    values = np.zeros(count, dtype=np.int64)
    if count:
        values[0] = _wrapped(first)
    filled, each = 1, block_values // miniblocks
    while filled < count:
        least = _wrapped(reader.zigzag())
        widths = data[reader.place : reader.place + miniblocks]
        reader.skip(miniblocks)
        for width in widths:
            if filled >= count:
                break  # the widths of miniblocks that are not there may be anything
            taken = values[filled : filled + each]
            _unpack(data[reader.place :], width, taken)
            reader.place = min(reader.place + -(-each * width // 8), len(data))
            taken += least
            filled += len(taken)
    np.cumsum(values, out=values)  # wraps around as the encoding does
    return values


def _unpack(data: memoryview, width: int, out: npt.NDArray[np.int64]) -> None:
    """Fill in the first numbers of the miniblock that the data begin with."""
    if width > _WIDEST_BITS:
        raise DamagedParquetError(f"packed numbers of {width} bits")
    needed = -(-len(out) * width // 8)
    packed = np.frombuffer(data[:needed], dtype=np.uint8)
    if len(packed) < needed:
        raise IndexError
    places = np.left_shift(np.uint64(1), np.arange(width, dtype=np.uint64))
    for start in range(0, len(out) if width else 0, _UNPACKED_VALUES):  # a bit takes 9 bytes here
        part = out[start : start + _UNPACKED_VALUES]
        some = packed[start * width // 8 : -(-(start + len(part)) * width // 8)]
        bits = np.unpackbits(some, bitorder="little")[: len(part) * width]
        part[:] = (bits.reshape(-1, width).astype(np.uint64) @ places).view(np.int64)


def _wrapped(number: int) -> np.int64:
    """A number as 64 bits hold it."""
    return np.int64((number + 2**63) % 2**64 - 2**63)
