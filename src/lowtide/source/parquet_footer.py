"""What a Parquet footer takes once it is unpacked, counted before Arrow unpacks it.

A footer is Thrift in compact encoding, in which a column chunk of three bytes becomes a kilobyte, and a list
may claim any length. An ordinary footer grows tenfold. It may also hold an Arrow schema, which Arrow unpacks
as well.

    FileMetaData  2 schema [SchemaElement]   3 rows   4 row groups [RowGroup]   5 metadata [KeyValue]
    RowGroup      1 columns [ColumnChunk]
    KeyValue      1 key   2 value
"""

from __future__ import annotations

import binascii
from typing import BinaryIO

from lowtide.errors import DataError
from lowtide.source.arrow_messages import read_message, schema_bytes
from lowtide.source.find_inputs import InputFile
from lowtide.source.thrift import EndlessNumberError, signed, take_varint
from lowtide.units import MIB

_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (
    1,
    2,
    3,
    (4, 5, 6),
    7,
    8,
    (9, 10),
    12,
)
_SCHEMA, _ROWS, _ROW_GROUPS, _METADATA = 2, 3, 4, 5
_COLUMNS = 1
_ARROW_SCHEMA = b"ARROW:schema"
_ELEMENT_BYTES, _CHUNK_BYTES, _STRUCT_BYTES = 1400, 750, 64
"""Measured: 745 bytes an empty column chunk, 1,070 an ordinary one; 1,250 a column of the schema."""
_ITEM_BYTES = 8
_STRING_COPIES = 2
_DEEPEST = 16
_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
_LONGEST_SCHEMA_BYTES = 64 * MIB


class DamagedFooterError(Exception):
    """The bytes of a footer are not Thrift."""


def footer_memory_bytes(data: bytes, most_bytes: int) -> int:
    """What a footer takes once it is unpacked. An Arrow schema in it is counted to about `most_bytes`."""
    walker = _Walker(data, most_bytes)
    try:
        walker.walk_file()
    except IndexError:
        raise DamagedFooterError("the footer ends too early") from None
    except EndlessNumberError as error:
        raise DamagedFooterError(f"the footer: {error}") from error
    return walker.memory_bytes


def promised_rows(data: bytes) -> int:
    """The rows of a file, by a footer or its beginning; IndexError where that is too short to say."""
    walker = _Walker(data, 0)
    walker.walk_file(only_rows=True)
    return walker.row_count


def count_rows(file: InputFile) -> int:
    """The rows that the footer of a Parquet file promises."""
    with file.path.open("rb") as stored:
        start, end = find_footer(stored, file)
        size_bytes = MIB
        while True:
            stored.seek(start)
            data = stored.read(min(size_bytes, end - start))
            try:
                return promised_rows(data)
            except IndexError:
                if len(data) == end - start or size_bytes >= _LONGEST_SCHEMA_BYTES:
                    raise DamagedFooterError("its footer does not say how many rows") from None
            size_bytes *= 8


def find_footer(stored: BinaryIO, file: InputFile) -> tuple[int, int]:
    """Where the footer begins and ends; a `DataError` if the file was cut off."""
    head = stored.read(len(_MAGIC))
    end = max(0, file.size_bytes - _TRAILER_BYTES)
    stored.seek(end)
    trailer = stored.read(_TRAILER_BYTES)
    footer_bytes = int.from_bytes(trailer[:4], "little")
    is_whole = head == _MAGIC and trailer[4:] == _MAGIC
    if not is_whole or footer_bytes > end - len(_MAGIC):
        raise DataError(
            f"{file.path} is not a whole Parquet file: it does not "
            + ("end" if head == _MAGIC else "begin")
            + " like one",
            remedy="the file was cut off or is of another kind; fetch or write it again",
        )
    return end - footer_bytes, end


class _Walker:
    """Steps through Thrift's compact encoding and adds up what it becomes."""

    def __init__(self, data: bytes, most_bytes: int) -> None:
        self.row_count = 0
        self.memory_bytes = 0
        self._data = data
        self._most_bytes = most_bytes
        self._place = 0

    def walk_file(self, *, only_rows: bool = False) -> None:
        """To the end of the footer, or only as far as the number of rows."""
        field = 0
        while header := self._byte():
            kind, field = self._field(header, field)
            if field == _ROWS and kind in _INTEGERS:
                self.row_count = self._zigzag()
                if only_rows:
                    return
            elif field == _SCHEMA and kind in _LISTS:
                for _ in range(self._struct_list(_ELEMENT_BYTES)):
                    self._struct(1)
            elif field == _ROW_GROUPS and kind in _LISTS:
                for _ in range(self._struct_list(_STRUCT_BYTES)):
                    self._row_group()
            elif field == _METADATA and kind in _LISTS:
                for _ in range(self._struct_list(_STRUCT_BYTES)):
                    self._key_value()
            else:
                self._value(kind, 1)

    def _row_group(self) -> None:
        field = 0
        while header := self._byte():
            kind, field = self._field(header, field)
            if field == _COLUMNS and kind in _LISTS:
                for _ in range(self._struct_list(_CHUNK_BYTES)):
                    self._struct(2)
            else:
                self._value(kind, 2)

    def _key_value(self) -> None:
        strings: dict[int, memoryview] = {}
        field = 0
        while header := self._byte():
            kind, field = self._field(header, field)
            if kind == _BINARY:
                strings[field] = self._string()
            else:
                self._value(kind, 2)
        if bytes(strings.get(1, b"")) == _ARROW_SCHEMA:
            self._arrow_schema(bytes(strings.get(2, b"")))

    def _arrow_schema(self, encoded: bytes) -> None:
        """A schema message in base64: entries in it may all point at one string."""
        try:
            message = read_message(memoryview(binascii.a2b_base64(encoded)))
        except binascii.Error:
            raise DamagedFooterError("its Arrow schema is not base64") from None
        if message is not None:
            self.memory_bytes += schema_bytes(message, self._most_bytes)

    def _struct(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise DamagedFooterError("a footer nested too deeply")
        field = 0
        while header := self._byte():
            kind, field = self._field(header, field)
            self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> None:
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self._string()
        elif kind == _STRUCT:
            self.memory_bytes += _STRUCT_BYTES
            self._struct(depth + 1)
        elif kind in _LISTS:
            self._list(depth + 1)
        elif kind == _BYTE:
            self._advance(1)
        elif kind == _DOUBLE:
            self._advance(8)
        elif kind not in (_TRUE, _FALSE):  # maps: a footer holds none
            raise DamagedFooterError(f"a field of kind {kind} in a footer")

    def _list(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise DamagedFooterError("a footer nested too deeply")
        kind, count = self._list_header()
        self.memory_bytes += count * (_STRUCT_BYTES if kind == _STRUCT else _ITEM_BYTES)
        for _ in range(count):
            if kind == _STRUCT:
                self._struct(depth)
            elif kind in (_TRUE, _FALSE):  # in a list each takes a byte
                self._advance(1)
            else:
                self._value(kind, depth)

    def _struct_list(self, item_bytes: int) -> int:
        """How many structs a list holds, once they are added."""
        kind, count = self._list_header()
        if kind != _STRUCT:
            raise DamagedFooterError(f"a list of kind {kind} where structs belong")
        self.memory_bytes += count * item_bytes
        return count

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        if count == 15:
            count = self._varint()
        if count > len(self._data) - self._place:  # an item takes a byte at least
            raise DamagedFooterError("a list that is longer than the footer")
        return header & 0x0F, count

    def _field(self, header: int, before: int) -> tuple[int, int]:
        step = header >> 4
        return header & 0x0F, before + step if step else self._zigzag()

    def _string(self) -> memoryview:
        length = self._varint()
        start = self._place
        self._advance(length)
        self.memory_bytes += _STRING_COPIES * length
        return memoryview(self._data)[
            start : start + length
        ]  # not a copy: it may be all of the footer

    def _advance(self, count: int) -> None:
        self._place += count
        if self._place > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        value = self._data[self._place]
        self._place += 1
        return value

    def _varint(self) -> int:
        value, self._place = take_varint(self._data, self._place)
        return value

    def _zigzag(self) -> int:
        return signed(self._varint())
