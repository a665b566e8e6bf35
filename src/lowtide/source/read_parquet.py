"""Documents out of Parquet, one column, one batch of rows at a time.

Arrow reads a row group in bounded memory only through a buffered stream (`buffer_size`, no `pre_buffer`);
then it holds one page and one batch. So before a row group is read, its pages are measured: none may be
larger than the document limit, and a batch has as many rows as fit a block where the rows are densest.
Where a page refers to a dictionary, each row may be its longest value, and the batch is made so small that
even that would fit. Going on inside a row group decodes it again from its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lowtide.errors import DataError
from lowtide.source.blocks import Piece, ReadSettings
from lowtide.source.byte_stream import explain_open_errors
from lowtide.source.columns import check_column, pick_column
from lowtide.source.parquet_pages import DamagedPageError, longest_entry_bytes, walk_pages
from lowtide.source.parts import Part
from lowtide.source.rows import column_pieces, too_large
from lowtide.units import KIB, MIB

_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
_MOST_ROWS = 16_384
_SHARING_ROWS = 16
"""A page of so many rows is held twice at most (stored and unpacked); one huge value five times."""
_LEAST_BUFFER_BYTES, _MOST_BUFFER_BYTES = 64 * KIB, MIB


def read_parquet(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """The documents of a Parquet file, as pieces of block text."""
    path = part.file.path
    with explain_open_errors(part.file):
        _check_footer(part, settings)
    with explain_damage(path):
        file = pq.ParquetFile(
            str(path),
            memory_map=False,
            pre_buffer=False,
            buffer_size=min(max(settings.block_bytes, _LEAST_BUFFER_BYTES), _MOST_BUFFER_BYTES),
        )
    with file:
        check_column(file.schema_arrow, settings.column, str(path))
        row = 0
        for group in range(file.metadata.num_row_groups):
            with explain_damage(path):
                row_count = file.metadata.row_group(group).num_rows
            if row + row_count > part.position and (part.end is None or row < part.end):
                yield from _group_pieces(file, group, row, part, settings)
            row += row_count


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn what Arrow says about a damaged or lying file into a `DataError`."""
    try:
        yield
    except MemoryError as error:  # pa.ArrowMemoryError is one
        raise DataError(
            f"{path} asks for more memory than there is: {error}",
            remedy="pass a larger `--memory`; if the file is small, it is damaged",
        ) from error
    except (OSError, pa.ArrowException, DamagedPageError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path} is damaged or not what its name says: {error}",
            remedy="fetch or write the file again, or leave it out",
        ) from error


def _check_footer(part: Part, settings: ReadSettings) -> None:
    """Refuse a file that was cut off, or whose footer alone is too large."""
    size_bytes = part.file.size_bytes
    with part.file.path.open("rb") as file:
        head = file.read(len(_MAGIC))
        file.seek(max(0, size_bytes - _TRAILER_BYTES))
        trailer = file.read(_TRAILER_BYTES)
    footer_bytes = int.from_bytes(trailer[:4], "little")
    is_whole = head == _MAGIC and trailer[4:] == _MAGIC
    if not is_whole or footer_bytes > size_bytes - _TRAILER_BYTES - len(_MAGIC):
        raise DataError(
            f"{part.file.path} is not a whole Parquet file: it does not "
            + ("end" if head == _MAGIC else "begin")
            + " like one",
            remedy="the file was cut off or is of another kind; fetch or write it again",
        )
    if footer_bytes > settings.document_limit_bytes:
        raise too_large(
            f"{part.file.path}: its footer", footer_bytes, settings.document_limit_bytes
        )


def _group_pieces(
    file: pq.ParquetFile, group: int, first_row: int, part: Part, settings: ReadSettings
) -> Iterator[Piece]:
    """Pieces of one row group, as far as it belongs to the part."""
    with explain_damage(part.file.path):
        total_rows = file.metadata.num_rows
        group_rows = file.metadata.row_group(group).num_rows
        batch_rows = _choose_batch_rows(file, group, part, settings)
        batches = file.iter_batches(
            batch_rows, row_groups=[group], columns=[settings.column], use_threads=False
        )
    row = first_row
    while True:
        with explain_damage(part.file.path):
            batch = next(batches, None)
            values = None if batch is None else pick_column(batch, settings.column)
        if values is None:
            break
        start, row = row, row + len(values)
        skipped = min(max(0, part.position - start), len(values))
        kept = values.slice(skipped, _kept_rows(part, start, len(values)) - skipped)
        if len(kept):
            yield from column_pieces(
                kept,
                part,
                settings,
                first_row=start + skipped,
                within=part.within if start + skipped == part.position else 0,
                done_bytes=part.file.size_bytes * row // max(1, total_rows),
            )
    _check_rows(part, group, row - first_row, group_rows)


def _check_rows(part: Part, group: int, found: int, promised: int) -> None:
    """Refuse a footer that promises other rows than there are: Arrow would leave the rest out in silence."""
    if found != promised:
        raise DataError(
            f"{part.file.path}: row group {group} holds {found} rows, its footer says {promised}",
            remedy="fetch or write the file again, or leave it out",
        )


def _kept_rows(part: Part, start: int, row_count: int) -> int:
    """How many rows of a batch lie before the part's end."""
    return row_count if part.end is None else max(0, min(row_count, part.end - start))


def _choose_batch_rows(file: pq.ParquetFile, group: int, part: Part, settings: ReadSettings) -> int:
    """Rows per batch, after looking at every page of the column in this row group."""
    limit_bytes = settings.document_limit_bytes
    batch_rows = _MOST_ROWS
    value_count = 0
    start, end, compression = _column_span(file, group, settings.column)
    with part.file.path.open("rb") as stored:
        for page in walk_pages(stored, start, end):
            shared = page.value_count >= _SHARING_ROWS
            if page.size_bytes > (limit_bytes * 5 // 2 if shared else limit_bytes):
                name = f"{part.file.path}: a page of row group {group}, at rows of {settings.column!r},"
                raise too_large(name, page.size_bytes, limit_bytes)
            if page.is_dictionary:
                longest = longest_entry_bytes(stored, page, compression)
                batch_rows = min(batch_rows, limit_bytes // max(1, longest))
            elif page.value_count:
                value_count += page.value_count
                row_bytes = page.size_bytes // page.value_count + 1
                batch_rows = min(batch_rows, settings.block_bytes // row_bytes)
    _check_rows(part, group, value_count, file.metadata.row_group(group).num_rows)
    return max(1, batch_rows)


def _column_span(file: pq.ParquetFile, group: int, column: str) -> tuple[int, int, str]:
    """First byte, end, and compression of the column's chunk in a row group."""
    chunks = file.metadata.row_group(group)
    for index in range(chunks.num_columns):
        chunk = chunks.column(index)
        if chunk.path_in_schema == column:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            return start, start + chunk.total_compressed_size, str(chunk.compression)
    raise DamagedPageError(f"row group {group} has no column {column!r}")
