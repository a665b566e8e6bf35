"""Documents out of Arrow files, as `datasets` writes them (stream format) or in the file format.

The file is mapped, not read: an uncompressed record batch costs no memory of our own, whatever its size,
and rows are taken out of it a block at a time. A compressed one is unpacked whole, once it is known that it
fits. Going on in the middle steps over the batches before it without reading their rows.

A mapped file that somebody cuts reads as zeros from there on (`native/watch_maps`). So offsets are copied
before they are checked and used, and the file's size is looked at before anything is given out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lowtide.errors import DataError
from lowtide.native import watch_map
from lowtide.source.arrow_messages import (
    Message,
    MessageStream,
    allocated_bytes,
    dictionary_id,
    dictionary_ids,
    is_native,
    own_shape_bytes,
    read_messages,
    schema_bytes,
)
from lowtide.source.blocks import Piece
from lowtide.source.byte_stream import became_shorter, explain_damage, explain_open_errors
from lowtide.source.columns import (
    check_column,
    checked,
    checked_indices,
    own_shape,
    pick_column,
    top_level_name,
)
from lowtide.source.find_inputs import InputFile
from lowtide.source.parts import Part
from lowtide.source.rows import RowBatch, column_pieces, shared_limit, too_large_together

_SLICE_ROWS = 65_536


def read_arrow(part: Part) -> Iterator[Piece]:
    """The documents of an Arrow file, as pieces of block text."""
    column = part.settings.column

    def columns(schema: pa.Schema) -> list[str]:
        check_column(schema, column, str(part.file.path))
        return [column]

    with map_file(part.file) as mapped:
        dictionary = _OwnDictionary()
        for batch in read_mapped(mapped, part, columns):
            for start in range(0, len(batch.rows), _SLICE_ROWS):
                with mapped.explain_damage():
                    values = pick_column(batch.rows, column).slice(start, _SLICE_ROWS)
                    values = dictionary.own_rows(values)
                first_row = batch.first_row + start
                for piece in column_pieces(
                    values, part, first_row=first_row, done_bytes=batch.done_bytes
                ):
                    mapped.check()
                    yield piece


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file in memory that may be cut at any time; then it reads as zeros."""

    data: pa.Buffer
    check: Callable[[], None]
    """A `DataError` once it was cut. What was read before counts only if this is asked afterwards."""
    file: InputFile

    @contextmanager
    def explain_damage(self) -> Iterator[None]:
        """Turn what Arrow says about the file into a `DataError`: it was cut, or else it is damaged."""
        try:
            with explain_damage(self.file.path):
                yield
        except DataError:
            self.check()
            raise


@contextmanager
def map_file(file: InputFile) -> Iterator[MappedFile]:
    """The file as far as it went when it was found. An empty one, which cannot be mapped, has no bytes."""
    if not file.size_bytes:
        yield MappedFile(data=pa.py_buffer(b""), check=lambda: None, file=file)
        return
    with explain_open_errors(file), pa.memory_map(str(file.path), "r") as source:
        data = source.read_buffer(file.size_bytes)
        if data.size < file.size_bytes:
            raise became_shorter(file)
        with watch_map(data.address, data.size) as is_broken:

            def check() -> None:
                # A cut inside a page leaves zeros without a fault: only the size tells.
                if is_broken() or os.fstat(source.fileno()).st_size < file.size_bytes:
                    raise became_shorter(file)

            yield MappedFile(data=data, check=check, file=file)


def read_mapped(
    mapped: MappedFile,
    part: Part,
    columns: Callable[[pa.Schema], Sequence[str]],
) -> Iterator[RowBatch]:
    """The rows of the part, of the columns that are picked from the schema, a record batch at a time."""
    if not mapped.data.size:
        return
    with mapped.explain_damage():
        reader = _BatchReader(mapped.data, part, columns)
    row = 0
    while part.end is None or row < part.end:
        with mapped.explain_damage():
            message = reader.next_records()
            if message is None:
                return
            wanted = part.wanted_rows(row, message.row_count)
            rows = reader.read(message) if wanted else None
        if rows is not None:
            yield RowBatch(
                rows=rows.slice(wanted.start, len(wanted)),
                first_row=row + wanted.start,
                done_bytes=message.end,
            )
        row += message.row_count


def count_rows(file: InputFile) -> int:
    """Rows of an Arrow file, from the metadata of its record batches."""
    with map_file(file) as mapped:
        messages = read_messages(memoryview(mapped.data))
        count = sum(message.row_count for message in messages if message.is_records)
        mapped.check()
        return count


class _BatchReader:
    """Record batches with some columns; they point into the mapped file unless they are compressed.

    Nothing is handed to Arrow before it is known what that takes.
    """

    def __init__(
        self,
        data: pa.Buffer,
        part: Part,
        columns: Callable[[pa.Schema], Sequence[str]],
    ) -> None:
        self._name = str(part.file.path)
        self._limit_bytes = part.settings.document_limit_bytes
        self._messages = read_messages(memoryview(data))
        self._stream = MessageStream(data)
        first = next(self._messages, None)
        if first is None or not first.is_schema:
            raise pa.ArrowInvalid("no schema at its start")
        self._check("the schema", schema_bytes(first, shared_limit(self._limit_bytes)))
        self._is_native = is_native(first)
        self._schema = pa.ipc.read_schema(data.slice(first.start, first.end - first.start))
        names = {top_level_name(self._schema, column) for column in columns(self._schema)}
        self._fields = sorted(self._schema.get_field_index(name) for name in names)
        self._stream.add(first)
        options = pa.ipc.IpcReadOptions(included_fields=self._fields, use_threads=False)
        self._batches = pa.ipc.open_stream(pa.PythonFile(self._stream, mode="r"), options=options)
        self._dictionary_bytes: dict[int, int] = {}
        self._used_dictionaries = dictionary_ids(first, self._fields)

    def next_records(self) -> Message | None:
        """The next record batch, as a message; dictionaries before it are handed to Arrow."""
        for message in self._messages:
            if message.is_records:
                return message
            if message.is_dictionary:
                self._add_dictionary(message)
        return None

    def read(self, message: Message) -> pa.RecordBatch:
        """The rows of a record batch. Batches may be left out, never taken in another order."""
        held_bytes = sum(self._dictionary_bytes.values())
        self._check("a record batch", held_bytes + self._allocated_bytes(message))
        self._stream.add(message)
        batch = self._batches.read_next_batch()
        if len(batch) != message.row_count:
            raise pa.ArrowInvalid("a record batch holds other rows than its message says")
        return batch

    def _add_dictionary(self, message: Message) -> None:
        number, is_more = dictionary_id(message)
        size_bytes = self._allocated_bytes(message)
        if is_more:  # joined with what there is, in memory, even if neither is compressed
            size_bytes = self._dictionary_bytes.get(number, 0) + 2 * max(
                size_bytes, message.end - message.body_start
            )
        if number in self._used_dictionaries:
            size_bytes += own_shape_bytes(message)
        self._dictionary_bytes[number] = size_bytes
        self._check("a dictionary", sum(self._dictionary_bytes.values()))
        self._stream.add(message)

    def _allocated_bytes(self, message: Message) -> int:
        return allocated_bytes(message, self._schema, self._fields, is_native=self._is_native)

    def _check(self, what: str, size_bytes: int) -> None:
        if size_bytes > shared_limit(self._limit_bytes):
            raise too_large_together(f"{self._name}: {what}", size_bytes, self._limit_bytes)


class _OwnDictionary:
    """The dictionary of a column, copied and checked once for all rows that refer to it."""

    def __init__(self) -> None:
        self._source: pa.Array | None = None
        self._own: pa.Array | None = None

    def own_rows(self, values: pa.Array) -> pa.Array:
        """Rows of a column that a change of the file cannot lead astray, text as bytes."""
        if not pa.types.is_dictionary(values.type):
            return checked(own_shape(values))
        found = values.dictionary
        if self._source is None or _places(found) != _places(self._source):
            self._source = self._own = None  # before the next one is copied
            self._own = checked(own_shape(found))
            self._source = found  # while it is held, no other can lie at its addresses
        return checked_indices(own_shape(values, self._own))


def _places(values: pa.Array) -> list[int | None]:
    """Where an array lies in memory."""
    buffers = [buffer.address if buffer else None for buffer in values.buffers()]
    return [len(values), values.offset, *buffers]
