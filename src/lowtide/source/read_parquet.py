"""Documents out of Parquet, one column, one batch of rows at a time.

Arrow reads a row group in bounded memory only through a buffered stream (`buffer_size`, no `pre_buffer`);
then it holds one page and one batch. So before a row group is read, its pages are measured: none may be
larger than the document limit, and a batch has as many rows as fit a block where the rows are densest.
Where a page refers to a dictionary, each row may be its longest value, and the batch is made so small that
even that would fit. Going on inside a row group decodes it again from its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Some rows of a file, all of them wanted."""

    rows: pa.RecordBatch
    first_row: int
    done_bytes: int


def read_parquet(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """The documents of a Parquet file, as pieces of block text."""
    with open_parquet(part, settings) as file:
        check_column(file.schema_arrow, settings.column, str(part.file.path))
        for batch in read_batches(file, part, settings, [settings.column]):
            with explain_damage(part.file.path):
                values = pick_column(batch.rows, settings.column)
            yield from column_pieces(
                values,
                part,
                settings,
                first_row=batch.first_row,
                within=part.within if batch.first_row == part.position else 0,
                done_bytes=batch.done_bytes,
            )


@contextmanager
def open_parquet(part: Part, settings: ReadSettings) -> Iterator[pq.ParquetFile]:
    """The file, once its footer is known to be whole, with the buffer that bounds what reading it holds."""
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
        yield file


def read_batches(
    file: pq.ParquetFile, part: Part, settings: ReadSettings, leaves: Sequence[str]
) -> Iterator[RowBatch]:
    """The rows of the part, of the columns with these paths, a few at a time."""
    row = 0
    for group in range(file.metadata.num_row_groups):
        with explain_damage(part.file.path):
            row_count = file.metadata.row_group(group).num_rows
        if row + row_count > part.position and (part.end is None or row < part.end):
            yield from _group_batches(file, group, row, part, settings, leaves)
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


def _group_batches(
    file: pq.ParquetFile,
    group: int,
    first_row: int,
    part: Part,
    settings: ReadSettings,
    leaves: Sequence[str],
) -> Iterator[RowBatch]:
    """Rows of one row group, as far as it belongs to the part."""
    with explain_damage(part.file.path):
        total_rows = file.metadata.num_rows
        group_rows = file.metadata.row_group(group).num_rows
        batch_rows = _choose_batch_rows(file, group, part, settings, leaves)
        batches = file.iter_batches(
            batch_rows, row_groups=[group], columns=list(leaves), use_threads=False
        )
    row = first_row
    while True:
        with explain_damage(part.file.path):
            batch = next(batches, None)
        if batch is None:
            break
        start, row = row, row + len(batch)
        skipped = min(max(0, part.position - start), len(batch))
        kept = batch.slice(skipped, _kept_rows(part, start, len(batch)) - skipped)
        if len(kept):
            done_bytes = part.file.size_bytes * row // max(1, total_rows)
            yield RowBatch(rows=kept, first_row=start + skipped, done_bytes=done_bytes)
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


def _choose_batch_rows(
    file: pq.ParquetFile, group: int, part: Part, settings: ReadSettings, leaves: Sequence[str]
) -> int:
    """Rows per batch, after looking at every page of the columns in this row group."""
    row_bytes = longest_bytes = 0
    for leaf in leaves:
        of_leaf, longest_of_leaf = _measure_leaf(file, group, part, settings, leaf)
        row_bytes += of_leaf
        longest_bytes += longest_of_leaf
    batch_rows = min(
        _MOST_ROWS,
        settings.block_bytes // max(1, row_bytes),
        settings.document_limit_bytes // max(1, longest_bytes),
    )
    return max(1, batch_rows)


def _measure_leaf(
    file: pq.ParquetFile, group: int, part: Part, settings: ReadSettings, leaf: str
) -> tuple[int, int]:
    """Bytes of a row where rows are densest, and of the longest entry of a dictionary that rows refer to."""
    limit_bytes = settings.document_limit_bytes
    value_bytes = longest_bytes = value_count = 0
    chunk = _find_chunk(file, group, leaf)
    with part.file.path.open("rb") as stored:
        for page in walk_pages(stored, chunk.start, chunk.end):
            shared = page.value_count >= _SHARING_ROWS
            if page.size_bytes > (limit_bytes * 5 // 2 if shared else limit_bytes):
                name = f"{part.file.path}: a page of row group {group}, at rows of {leaf!r},"
                raise too_large(name, page.size_bytes, limit_bytes)
            if page.is_dictionary and chunk.is_text:
                found = longest_entry_bytes(stored, page, chunk.compression)
                longest_bytes = max(longest_bytes, found)
            elif page.value_count and not page.is_dictionary:
                value_count += page.value_count
                value_bytes = max(value_bytes, page.size_bytes // page.value_count + 1)
    row_count = file.metadata.row_group(group).num_rows
    if not chunk.is_list:
        _check_rows(part, group, value_count, row_count)
        return value_bytes, longest_bytes
    per_row = -(
        -value_count // max(1, row_count)
    )  # of a list only the mean length is known beforehand
    return value_bytes * per_row, longest_bytes * per_row


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnChunk:
    """Where the pages of a column lie in a row group."""

    start: int
    end: int
    compression: str
    is_text: bool
    is_list: bool


def _find_chunk(file: pq.ParquetFile, group: int, leaf: str) -> _ColumnChunk:
    chunks = file.metadata.row_group(group)
    for index in range(chunks.num_columns):
        chunk = chunks.column(index)
        if chunk.path_in_schema == leaf:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            return _ColumnChunk(
                start=start,
                end=start + chunk.total_compressed_size,
                compression=str(chunk.compression),
                is_text=chunk.physical_type == "BYTE_ARRAY",
                is_list=file.schema.column(index).max_repetition_level > 0,
            )
    raise DamagedPageError(f"row group {group} has no column {leaf!r}")
