"""Documents out of Arrow files, as `datasets` writes them (stream format) or in the file format.

The file is mapped, not read: an uncompressed record batch costs no memory of our own, whatever its size,
and rows are taken out of it a block at a time. Going on in the middle steps over the batches before it
without reading their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lowtide.source.blocks import Piece, ReadSettings
from lowtide.source.byte_stream import explain_open_errors
from lowtide.source.columns import check_column, pick_column, top_level_name
from lowtide.source.parts import Part
from lowtide.source.read_parquet import RowBatch, explain_damage
from lowtide.source.rows import column_pieces

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_SLICE_ROWS = 65_536


def read_arrow(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """The documents of an Arrow file, as pieces of block text."""

    def columns(schema: pa.Schema) -> list[str]:
        check_column(schema, settings.column, str(part.file.path))
        return [settings.column]

    for batch in read_mapped(part, columns):
        with explain_damage(part.file.path):
            values = checked(pick_column(batch.rows, settings.column))
        yield from _batch_pieces(batch, values, part, settings)


def read_mapped(part: Part, columns: Callable[[pa.Schema], Sequence[str]]) -> Iterator[RowBatch]:
    """The record batches that hold rows of the part, with the columns that are picked from the schema."""
    path = part.file.path
    if not part.file.size_bytes:
        return  # nothing can be mapped, and nothing is there
    with explain_open_errors(part.file), pa.memory_map(str(path), "r") as source:
        row = 0
        batches = _batches(source, columns)
        while True:
            with explain_damage(path):
                batch = next(batches, None)
            if batch is None or (part.end is not None and row >= part.end):
                return
            if row + len(batch) > part.position:
                done_bytes = min(source.tell(), part.file.size_bytes)
                yield RowBatch(rows=batch, first_row=row, done_bytes=done_bytes)
            row += len(batch)


def _batches(
    source: pa.MemoryMappedFile, columns: Callable[[pa.Schema], Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """Record batches with some columns; they point into the mapped file."""
    schema = _open(source, pa.ipc.IpcReadOptions()).schema
    names = {top_level_name(schema, column) for column in columns(schema)}
    fields = sorted(schema.get_field_index(name) for name in names)
    reader = _open(source, pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
    if isinstance(reader, pa.RecordBatchFileReader):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader


def _open(
    source: pa.MemoryMappedFile, options: pa.ipc.IpcReadOptions
) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    source.seek(0)
    is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    source.seek(0)
    if is_file:
        return pa.ipc.open_file(source, options=options)
    source.seek(max(0, source.size() - len(_END_OF_STREAM)))
    if source.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
        raise pa.ArrowInvalid("the stream breaks off: it has no end mark")
    source.seek(0)
    return pa.ipc.open_stream(source, options=options)


def _batch_pieces(
    batch: RowBatch, values: pa.Array, part: Part, settings: ReadSettings
) -> Iterator[Piece]:
    """Pieces of one record batch, as far as it belongs to the part."""
    start, stop = wanted_rows(batch, part)
    while start < stop:
        count = min(_SLICE_ROWS, stop - start)
        first_row = batch.first_row + start
        yield from column_pieces(
            values.slice(start, count),
            part,
            settings,
            first_row=first_row,
            within=part.within if first_row == part.position else 0,
            done_bytes=batch.done_bytes,
        )
        start += count


def wanted_rows(batch: RowBatch, part: Part) -> tuple[int, int]:
    """Which rows of a batch belong to the part: from, to."""
    row_count = len(batch.rows)
    stop = row_count if part.end is None else min(row_count, part.end - batch.first_row)
    return max(0, part.position - batch.first_row), stop


def checked(values: pa.Array) -> pa.Array:
    """The column, once its offsets are known to lie inside it: a file may lie about them."""
    plain = values.dictionary if pa.types.is_dictionary(values.type) else values
    values.validate(full=False)
    if pa.types.is_string(plain.type):
        plain = plain.cast(pa.binary())
    elif pa.types.is_large_string(plain.type):
        plain = plain.cast(pa.large_binary())
    plain.validate(full=True)
    if pa.types.is_dictionary(values.type):
        values.indices.validate(full=True)
    return values
