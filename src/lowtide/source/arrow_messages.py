"""The messages of an Arrow file or stream, measured before Arrow reads them.

    stream   schema, dictionaries, record batches, end mark (none if its writer was not closed)
    file     "ARROW1", the same stream, a footer that says where each message lies

A message is a length, metadata (a flatbuffer) and a body. Metadata of a few kilobytes may stand for
gigabytes: entries of a flatbuffer may all point at one string, and a compressed buffer names the length it
unpacks to. So what Arrow would allocate is computed here from the metadata and those lengths alone, and
messages are handed over one by one, each after it was measured. Bodies are slices of the mapped file:
what is not compressed is never copied. (Arrow's own reader of the file format copies columns as soon as
only some are asked for.)
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

_FILE_MAGIC = b"ARROW1"
_FILE_START = 8
_END_OF_STREAM = b"\xff\xff\xff\xff" + bytes(4)
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
_TIMESTAMP, _UNION = 10, 14
"""Types with a string or a list of their own, which every field of the type gets a copy of."""
_FIELD_BYTES = 1024
"""Memory of a field in Arrow and Python, without its name."""
_ENTRY_BYTES = 128
_COPIES = 2
"""Arrow holds each name and each value of the metadata so many times."""
_DEEPEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the file: where it lies, and what its metadata says."""

    kind: int
    data: memoryview
    """The file."""
    start: int
    """Where its length prefix begins."""
    body_start: int
    end: int
    header: Table

    @property
    def is_schema(self) -> bool:
        return self.kind == _SCHEMA

    @property
    def is_dictionary(self) -> bool:
        return self.kind == _DICTIONARY

    @property
    def is_records(self) -> bool:
        return self.kind == _RECORDS

    @property
    def row_count(self) -> int:
        """Rows of a record batch."""
        return self.header.number(0, "q")

    @property
    def batch(self) -> Table:
        """The columns of a record batch, or of a dictionary."""
        batch = self.header.table(1) if self.is_dictionary else self.header
        if batch is None:
            raise pa.ArrowInvalid("a dictionary without values")
        return batch

    def unpacked_bytes(self, offset: int, length: int) -> int:
        """The size of a buffer once it is unpacked; in a packed batch 0 for one that is stored as it is."""
        if self.batch.table(3) is None:
            return length
        if not length:
            return 0
        place = self.body_start + offset
        if place + length > self.end:
            raise pa.ArrowInvalid("a buffer lies outside its message")
        return max(0, _read(self.data, place, "q"))  # -1 means stored as it is

    def check_lengths(self) -> None:
        """Refuse negative lengths: sums of rows would go backwards, and Arrow would believe them."""
        lengths = [self.batch.number(0, "q")]
        lengths += [length for length, _nulls in self.batch.structs(1, "qq")]
        for buffer in self.batch.structs(2, "qq"):
            lengths += buffer
        if min(lengths) < 0:
            raise pa.ArrowInvalid(f"the message at byte {self.start} has a negative length")


class Table:
    """A table of a flatbuffer: fields by number. A place outside the file is an `ArrowInvalid`."""

    __slots__ = ("_data", "_place", "_vtable", "_vtable_bytes")

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._vtable = place - _read(data, place, "i")
        self._vtable_bytes = _read(data, self._vtable, "H")

    def number(self, field: int, kind: str) -> int:
        """An integer of a kind that `struct` knows; 0 where it is not stored."""
        place = self._find(field)
        return _read(self._data, place, kind) if place else 0

    def table(self, field: int) -> Table | None:
        """A table that the field points to."""
        place = self._target(field)
        return Table(self._data, place) if place else None

    def tables(self, field: int) -> Iterator[Table]:
        """A list of tables. Several entries may be the same one."""
        place = self._target(field)
        for number in range(self.length(field)):
            entry = place + 4 + 4 * number
            yield Table(self._data, entry + _read(self._data, entry, "I"))

    def length(self, field: int) -> int:
        """The length of a list or a string; 0 where it is not stored."""
        place = self._target(field)
        return _read(self._data, place, "I") if place else 0

    def structs(self, field: int, kind: str) -> Iterator[tuple[int, ...]]:
        """A list of structs of plain numbers."""
        place, size = self._target(field) + 4, struct.calcsize("<" + kind)
        stored = self._data[place : place + self.length(field) * size]
        if len(stored) != self.length(field) * size:
            raise pa.ArrowInvalid("a list lies outside the file")
        return struct.iter_unpack("<" + kind, stored)

    def _target(self, field: int) -> int:
        place = self._find(field)
        return place + _read(self._data, place, "I") if place else 0

    def _find(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot >= self._vtable_bytes:
            return 0
        offset = _read(self._data, self._vtable + slot, "H")
        return self._place + offset if offset else 0


def read_messages(data: memoryview) -> Iterator[Message]:
    """The messages of a file or stream in the order they are to be read, the schema first."""
    if bytes(data[: len(_FILE_MAGIC)]) == _FILE_MAGIC:
        return _file_messages(data)
    return _stream_messages(data)


def schema_bytes(schema: Message, most_bytes: int) -> int:
    """Memory that the schema takes once it is unpacked; the count ends soon after `most_bytes`."""
    total = 0
    for size_bytes in _schema_parts(schema.header, 0):
        total += size_bytes
        if total > most_bytes:
            break
    return total


def allocated_bytes(
    message: Message, schema: pa.Schema, fields: Iterable[int], *, is_native: bool
) -> int:
    """Memory that Arrow allocates for a dictionary, or for these fields of a record batch.

    Nothing for buffers that are stored as they are: those stay in the mapped file.
    """
    batch = message.batch
    if is_native and batch.table(3) is None:
        return 0
    chosen = _choose_buffers(batch, schema, set(fields)) if message.is_records else None
    return sum(
        message.unpacked_bytes(offset, length)
        for number, (offset, length) in enumerate(batch.structs(2, "qq"))
        if chosen is None or number in chosen
    )


def is_native(schema: Message) -> bool:
    """Whether numbers are stored as this machine has them; Arrow copies all others."""
    return schema.header.number(0, "h") == 0


def dictionary_id(message: Message) -> tuple[int, bool]:
    """Which dictionary, and whether the message adds to it instead of replacing it."""
    return message.header.number(0, "q"), bool(message.header.number(2, "B"))


def dictionary_ids(schema: Message, fields: Iterable[int]) -> set[int]:
    """The dictionaries that these fields of the schema refer to."""
    columns = list(schema.header.tables(1))
    return {number for field in fields for number in _ids_in(columns[field], 0)}


def own_shape_bytes(dictionary: Message) -> int:
    """Memory for copies of a text dictionary's offsets and of its null flags, briefly two bytes each."""
    first_buffers = itertools.islice(dictionary.batch.structs(2, "qq"), 2)
    lengths = [dictionary.unpacked_bytes(offset, length) for offset, length in first_buffers]
    return 2 * 8 * sum(lengths[:1]) + sum(lengths[1:])


class MessageStream:
    """A file object for Arrow's stream reader: the messages that were added, sliced out of the mapped file."""

    closed = False

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data
        self._waiting: deque[Message] = deque()
        self._place = self._end = 0

    def add(self, message: Message) -> None:
        """Let Arrow read a message behind those added before."""
        self._waiting.append(message)

    def read(self, size: int = -1) -> pa.Buffer | bytes:
        """Some bytes of the current message, or the first ones of the next; none at the end of all."""
        if self._place == self._end:
            if not self._waiting:
                return b""
            message = self._waiting.popleft()
            self._place, self._end = message.start, message.end
        size = self._end - self._place if size < 0 else min(size, self._end - self._place)
        found = self._data.slice(self._place, size)
        self._place += size
        return found

    def readable(self) -> bool:
        """True, as for any file open for reading."""
        return True

    def close(self) -> None:
        """Does nothing: no file is open here."""


def _read(data: memoryview, place: int, kind: str) -> int:
    if place < 0 or place + struct.calcsize("<" + kind) > len(data):
        raise pa.ArrowInvalid("its metadata points outside the file")
    return int(struct.unpack_from("<" + kind, data, place)[0])


def _stream_messages(data: memoryview) -> Iterator[Message]:
    """To the end mark, or to the end of the file between two messages, as Arrow itself reads a stream."""
    place = 0
    while place < len(data):
        message = read_message(data, place)
        if message is None:
            break
        yield message
        place = message.end
    else:
        return
    if place + len(_END_OF_STREAM) != len(data):
        raise pa.ArrowInvalid("the stream ends before the file does")


def _file_messages(data: memoryview) -> Iterator[Message]:
    """By the footer: the schema, every dictionary, every record batch."""
    trailer_bytes = 4 + len(_FILE_MAGIC)
    if len(data) < _FILE_START + trailer_bytes or bytes(data[-len(_FILE_MAGIC) :]) != _FILE_MAGIC:
        raise pa.ArrowInvalid("the file breaks off: it does not end like an Arrow file")
    footer_bytes = _read(data, len(data) - trailer_bytes, "i")
    start = len(data) - trailer_bytes - footer_bytes
    if footer_bytes <= 0 or start < _FILE_START:
        raise pa.ArrowInvalid("its footer lies outside the file")
    stored, footer_data = data[:start], data[start : len(data) - trailer_bytes]
    footer = Table(footer_data, _read(footer_data, 0, "I"))
    schema = read_message(stored, _FILE_START)
    if schema is None:
        raise pa.ArrowInvalid("no schema at its start")
    yield schema
    for field, kind in ((2, _DICTIONARY), (3, _RECORDS)):
        for place, _metadata_bytes, _body_bytes in footer.structs(field, "qi4xq"):
            message = read_message(stored, place)
            if message is None or message.kind != kind:
                raise pa.ArrowInvalid(
                    f"its footer names a message at byte {place} that is not there"
                )
            yield message


def read_message(data: memoryview, place: int = 0) -> Message | None:
    """The message that starts here; None at the end mark."""
    start = place
    size = _read(data, place, "i")
    place += 4
    if size == -1:  # files written before 2019 have no such mark
        size = _read(data, place, "i")
        place += 4
    if size == 0:
        return None
    if size < 0 or place + size > len(data):
        raise pa.ArrowInvalid(f"the message at byte {start} does not end inside the file")
    metadata = data[place : place + size]
    message = Table(metadata, _read(metadata, 0, "I"))
    header, body_bytes = message.table(2), message.number(3, "q")
    end = place + size + body_bytes
    if header is None or body_bytes < 0 or end > len(data):
        raise pa.ArrowInvalid(f"the message at byte {start} does not end inside the file")
    found = Message(
        kind=message.number(1, "B"),
        data=data,
        start=start,
        body_start=place + size,
        end=end,
        header=header,
    )
    if found.is_records or found.is_dictionary:
        found.check_lengths()
    return found


def _ids_in(field: Table, depth: int) -> Iterator[int]:
    if depth > _DEEPEST:
        raise pa.ArrowInvalid("its fields are nested too deeply")
    encoding = field.table(4)
    if encoding is not None:
        yield encoding.number(0, "q")
    for child in field.tables(5):
        yield from _ids_in(child, depth + 1)


def _schema_parts(fields: Table, depth: int) -> Iterator[int]:
    """Sizes of all that a schema, or a field, holds: what is pointed to twice counts twice."""
    if depth > _DEEPEST:
        raise pa.ArrowInvalid("its fields are nested too deeply")
    children, metadata = (1, 2) if depth == 0 else (5, 6)
    for entry in fields.tables(metadata):
        yield _ENTRY_BYTES + _COPIES * (entry.length(0) + entry.length(1))
    for field in fields.tables(children):
        yield _FIELD_BYTES + _COPIES * field.length(0)
        kind = field.number(2, "B")
        if kind in (_TIMESTAMP, _UNION):
            described = field.table(3)
            yield 8 * described.length(1) if described is not None else 0
        yield from _schema_parts(field, depth + 1)


def _choose_buffers(batch: Table, schema: pa.Schema, fields: set[int]) -> set[int] | None:
    """Numbers of the buffers of some fields; None, for all, where the schema does not fit the batch."""
    views = (count for (count,) in batch.structs(4, "q"))
    chosen: set[int] = set()
    place = 0
    for number, field in enumerate(schema):
        count = _buffer_count(field.type, views)
        if place + count > batch.length(2):
            return None
        if number in fields:
            chosen.update(range(place, place + count))
        place += count
    return chosen if place == batch.length(2) else None


def _buffer_count(kind: pa.DataType, views: Iterator[int]) -> int:
    """How many buffers a column of the type has, its children's among them."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if types.is_dictionary(kind):
        return 2
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return 2 + max(0, next(views, 0))
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        own = 0
    elif types.is_struct(kind) or types.is_fixed_size_list(kind):
        own = 1
    elif types.is_union(kind):
        own = 1 if kind.mode == "sparse" else 2
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        own = 3
    else:
        own = 3 if _has_offsets_and_data(kind) else 2
    children = (kind.field(number).type for number in range(kind.num_fields))
    return own + sum(_buffer_count(child, views) for child in children)


def _has_offsets_and_data(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in checks)
