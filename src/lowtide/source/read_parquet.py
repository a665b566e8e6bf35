"""Documents out of Parquet, one column, one batch of rows at a time.

Arrow reads a row group in bounded memory only through a buffered stream (`buffer_size`, no `pre_buffer`);
then it holds one page and one batch. So before a row group is read, its pages are measured: none may be
larger than the document limit, and a batch has as many rows as fit a block where the rows are densest.
Rows that are lists are counted out first by the smallest column, so that no batch of long ones is too large.
Where a page refers to a dictionary, each row may be its longest value, and the batch is made so small that
even that would fit; where values are stored as differences (DELTA_BYTE_ARRAY), what counts is how long they
are once expanded, which Arrow does for one batch at a time. Resuming inside a row group decodes it again
from its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lowtide.errors import DataError
from lowtide.source.blocks import Piece
from lowtide.source.byte_stream import explain_damage, explain_open_errors
from lowtide.source.columns import as_numbers, check_column, pick_column, plain_list
from lowtide.source.find_inputs import InputFile
from lowtide.source.parquet_footer import find_footer, footer_memory_bytes
from lowtide.source.parquet_pages import (
    Page,
    expanded_lengths,
    longest_entry_bytes,
    walk_pages,
)
from lowtide.source.parts import Part
from lowtide.source.rows import (
    RowBatch,
    column_pieces,
    shared_limit,
    too_large,
    too_large_together,
)
from lowtide.source.thrift import DamagedParquetError
from lowtide.units import KIB, MIB

_MOST_ROWS = 16_384
_MOST_BLOCKS = 4
"""The most blocks that a batch of lists may take: below that, fewer rows at a time only cost time."""
_LISTS_AT_ONCE = 64
_SHARING_ROWS = 16
"""A page with this many rows counts as shared by many."""
_NUMBER_BYTES = 16
"""What Arrow holds for each entry of a dictionary, and for each value of a page that begins with lengths."""
_LEAST_BUFFER_BYTES, _MOST_BUFFER_BYTES = 64 * KIB, MIB


def read_parquet(part: Part) -> Iterator[Piece]:
    """The documents of a Parquet file, as pieces of block text."""
    column, path = part.settings.column, part.file.path
    with open_parquet(part) as file:
        check_column(file.schema_arrow, column, str(path))
        for batch in read_batches(file, part, [column]):
            with explain_damage(path):
                values = pick_column(batch.rows, column)
            yield from column_pieces(
                values, part, first_row=batch.first_row, done_bytes=batch.done_bytes
            )


@contextmanager
def open_parquet(part: Part) -> Iterator[pq.ParquetFile]:
    """The file, once its footer is known to be whole, with the buffer that bounds what reading it holds."""
    path = part.file.path
    with explain_open_errors(part.file):
        footer_bytes = _check_footer(part)
    with explain_damage(path):
        file = pq.ParquetFile(
            str(path),
            memory_map=False,
            pre_buffer=False,
            # Arrow allocates as many items as a list claims; a real list has no more items than bytes.
            thrift_container_size_limit=max(1, footer_bytes),
            buffer_size=min(
                max(part.settings.block_bytes, _LEAST_BUFFER_BYTES), _MOST_BUFFER_BYTES
            ),
        )
    with file:
        yield file


def read_batches(file: pq.ParquetFile, part: Part, leaves: Sequence[str]) -> Iterator[RowBatch]:
    """The rows of the part, of the columns with these paths, a few at a time."""
    row = 0
    for number in range(file.metadata.num_row_groups):
        with explain_damage(part.file.path):
            group = _RowGroup(
                file=file,
                number=number,
                part=part,
                first_row=row,
                row_count=file.metadata.row_group(number).num_rows,
            )
        reaches_in = row + group.row_count > part.start.position
        is_wanted = reaches_in and (part.end is None or row < part.end)
        if group.row_count and is_wanted:  # a group without rows may have no page to look at
            yield from _group_batches(group, leaves)
        row += group.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowGroup:
    """A row group, and the part that it is read for."""

    file: pq.ParquetFile
    number: int
    part: Part
    first_row: int
    row_count: int
    """The number of rows that the footer promises."""

    def check_rows(self, found: int) -> None:
        """Refuse a footer that promises other rows than there are: Arrow would leave the rest out silently."""
        if found != self.row_count:
            raise DataError(
                f"{self.part.file.path}: row group {self.number} holds {found} rows, "
                f"its footer says {self.row_count}",
                remedy="fetch or write the file again, or leave it out",
            )


def _check_footer(part: Part) -> int:
    """Refuse a file that was cut off, or whose footer takes too much; returns the footer's length."""
    limit_bytes = part.settings.document_limit_bytes
    most_bytes = shared_limit(limit_bytes)
    found = part.file.path.stat()
    version = (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
    footer_bytes, size_bytes = _measure_footer(part.file, version, most_bytes)
    if size_bytes > most_bytes:
        raise too_large_together(f"{part.file.path}: its footer", size_bytes, limit_bytes)
    return footer_bytes


@lru_cache(maxsize=256)
def _measure_footer(
    file: InputFile,
    version: tuple[int, ...],  # noqa: ARG001 - a file that changed is measured again
    most_bytes: int,
) -> tuple[int, int]:
    """The footer's length, and what it takes once unpacked: walked once, though a file is opened often."""
    with file.path.open("rb") as stored:
        start, end = find_footer(stored, file)
        if end - start > most_bytes:
            return end - start, end - start
        stored.seek(start)
        with explain_damage(file.path):
            return end - start, footer_memory_bytes(stored.read(end - start), most_bytes)


def _group_batches(group: _RowGroup, leaves: Sequence[str]) -> Iterator[RowBatch]:
    """Rows of one row group, as far as it belongs to the part."""
    file, part = group.file, group.part
    with explain_damage(part.file.path):
        total_rows = file.metadata.num_rows
        batch_rows = _choose_batch_rows(group, leaves)
        batches = file.iter_batches(
            batch_rows, row_groups=[group.number], columns=list(leaves), use_threads=False
        )
    row = group.first_row
    while True:
        with explain_damage(part.file.path):
            batch = next(batches, None)
        if batch is None:
            break
        start, row = row, row + len(batch)
        wanted = part.wanted_rows(start, len(batch))
        if wanted:
            yield RowBatch(
                rows=batch.slice(wanted.start, len(wanted)),
                first_row=start + wanted.start,
                done_bytes=part.file.size_bytes * row // max(1, total_rows),
            )
    group.check_rows(row - group.first_row)


def _choose_batch_rows(group: _RowGroup, leaves: Sequence[str]) -> int:
    """Rows per batch, after looking at every page of the columns in this row group."""
    block_bytes = group.part.settings.block_bytes
    limit_bytes = group.part.settings.document_limit_bytes
    measured = [_measure_leaf(group, leaf) for leaf in leaves]
    row_bytes = sum(leaf.value_bytes * leaf.values_per_row for leaf in measured)
    longest_bytes = sum(leaf.longest_bytes * leaf.values_per_row for leaf in measured)
    batch_rows = min(
        _MOST_ROWS,
        block_bytes // max(1, row_bytes),
        limit_bytes // max(1, longest_bytes),
    )
    lists = [leaf for leaf in measured if leaf.is_list]
    if batch_rows > 1 and lists and group.row_count:
        shares = _row_shares(group, min(lists, key=lambda leaf: leaf.size_bytes).name)
        list_bytes = shares * sum(leaf.value_bytes * leaf.value_count for leaf in lists)
        batch_rows = _fit_longest(batch_rows, list_bytes, _MOST_BLOCKS * block_bytes)
        list_bytes = shares * sum(leaf.longest_bytes * leaf.value_count for leaf in lists)
        batch_rows = _fit_longest(batch_rows, list_bytes, limit_bytes)
    return max(1, batch_rows)


def _fit_longest(batch_rows: int, row_bytes: npt.NDArray[np.float64], most_bytes: int) -> int:
    """Fewer rows, until no batch is too large: long lists may stand side by side."""
    while batch_rows > 1:
        of_batches = np.add.reduceat(row_bytes, np.arange(0, len(row_bytes), batch_rows))
        if of_batches.max() <= most_bytes:
            break
        batch_rows //= 2
    return batch_rows


def _row_shares(group: _RowGroup, leaf: str) -> npt.NDArray[np.float64]:
    """Which share of a row group's list items each row holds, going by one column."""
    counts: list[npt.NDArray[np.int64]] = []
    for batch in group.file.iter_batches(
        _LISTS_AT_ONCE, row_groups=[group.number], columns=[leaf], use_threads=False
    ):
        counts.append(_item_counts(batch.column(0)))
    lengths = np.concatenate(counts)
    shares: npt.NDArray[np.float64] = lengths / max(1, int(lengths.sum()))
    return shares


def _item_counts(values: pa.Array) -> npt.NDArray[np.int64]:
    """How many items the first list inside each row has; a row with none counts as one."""
    while pa.types.is_struct(values.type):
        values = values.field(0)
    lengths = as_numbers(pc.list_value_length(plain_list(values)))
    return np.maximum(lengths, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A column of a row group, measured by its pages."""

    name: str
    value_bytes: int
    """Bytes a value takes where values are densest."""
    longest_bytes: int
    """Length of the longest entry of a dictionary that values refer to: every value may be that one."""
    value_count: int
    values_per_row: int
    """1, or for lists the average."""
    size_bytes: int
    is_list: bool


def _measure_leaf(group: _RowGroup, leaf: str) -> _Leaf:
    """Measure a column by a walk over its pages; a page or a value that is too large is an error."""
    path, limit_bytes = group.part.file.path, group.part.settings.document_limit_bytes
    value_bytes = value_count = size_bytes = 0
    chunk = _find_chunk(group, leaf)
    longest_bytes = chunk.fixed_bytes
    name = f"{path}: a page of row group {group.number}, at rows of {leaf!r},"
    with path.open("rb") as stored:
        for page in walk_pages(stored, chunk.start, chunk.end):
            _check_page(page, name, limit_bytes)
            page_bytes = page.size_bytes
            if page.is_dictionary:
                if chunk.is_text:
                    found = longest_entry_bytes(stored, page, chunk.compression)
                    longest_bytes = max(longest_bytes, found)
            elif page.value_count:
                if chunk.is_text and page.is_expanded:
                    lengths = expanded_lengths(
                        stored, page, chunk.compression, level_kinds=chunk.level_kinds
                    )
                    page_bytes = int(lengths.sum())
                    longest_bytes = max(longest_bytes, int(lengths.max(initial=0)))
                value_count += page.value_count
                value_bytes = max(value_bytes, page_bytes // page.value_count + 1)
            size_bytes += page_bytes
    if longest_bytes > limit_bytes:
        raise too_large(f"{path}: a value of {leaf!r}", longest_bytes, limit_bytes)
    if not chunk.is_list:
        group.check_rows(value_count)
    return _Leaf(
        name=leaf,
        value_bytes=value_bytes,
        longest_bytes=longest_bytes,
        value_count=value_count,
        values_per_row=-(-value_count // max(1, group.row_count)) if chunk.is_list else 1,
        size_bytes=size_bytes,
        is_list=chunk.is_list,
    )


def _check_page(page: Page, name: str, limit_bytes: int) -> None:
    """Refuse a page that takes too much once it is unpacked, with the numbers Arrow makes of it."""
    if page.value_count < _SHARING_ROWS and page.size_bytes > limit_bytes:
        raise too_large(name, page.size_bytes, limit_bytes)
    has_numbers = page.is_dictionary or page.holds_lengths
    page_bytes = page.size_bytes + (_NUMBER_BYTES * page.value_count if has_numbers else 0)
    if page_bytes > shared_limit(limit_bytes):
        raise too_large_together(name, page_bytes, limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnChunk:
    """Where the pages of a column lie in a row group."""

    start: int
    end: int
    compression: str
    is_text: bool
    fixed_bytes: int
    """Length of each value, where all have the same; else 0."""
    level_kinds: int
    """How many kinds of levels stand before the values of a page: for nulls, for lists."""
    is_list: bool


def _find_chunk(group: _RowGroup, leaf: str) -> _ColumnChunk:
    chunks = group.file.metadata.row_group(group.number)
    for index in range(chunks.num_columns):
        chunk = chunks.column(index)
        if chunk.path_in_schema == leaf:
            column = group.file.schema.column(index)
            levels = (column.max_definition_level, column.max_repetition_level)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            return _ColumnChunk(
                start=start,
                end=start + chunk.total_compressed_size,
                compression=str(chunk.compression),
                is_text=chunk.physical_type == "BYTE_ARRAY",
                fixed_bytes=max(0, column.length or 0),
                level_kinds=sum(level > 0 for level in levels),
                is_list=column.max_repetition_level > 0,
            )
    raise DamagedParquetError(f"row group {group.number} has no column {leaf!r}")
