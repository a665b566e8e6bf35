"""From rows to pieces: small rows are joined in columns, a large one is cut at safe cuts.

What JSONL, Parquet and Arrow share. `within` counts the bytes of a large row that earlier pieces gave out,
so that a cursor can point into it: the row is read again and its beginning dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowtide.errors import DataError
from lowtide.source.arrow_arrays import as_numbers, keep_rows, repeat_value, valid_rows
from lowtide.source.blocks import (
    FIRST_PIECE_BYTES,
    LISTED_BAD_ROWS,
    BadRow,
    Piece,
    ReadSettings,
)
from lowtide.source.parts import Part
from lowtide.source.safe_cuts import last_safe_cut
from lowtide.source.utf8 import is_utf8, replace_bad
from lowtide.units import format_bytes, round_up_to_mib

_BUDGET_PER_PIECE = 12
"""A piece is held five times over while it is read, of a budget that the caches share; and some to spare."""

NOT_UTF8 = "not valid UTF-8"
IS_NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Some bytes of a row."""

    text: bytes
    within: int
    """Bytes of the row given out with this slice; 0 when it ends the row."""


def is_long(size_bytes: int, settings: ReadSettings) -> bool:
    """Whether a row of this size does not go into one block."""
    return size_bytes > max(settings.block_bytes, FIRST_PIECE_BYTES)


def cut_row(text: bytes, settings: ReadSettings, *, within: int, name: str) -> Iterator[Slice]:
    """The row from `within` on in slices of about a block; the last one ends with the delimiter."""
    view = memoryview(text)
    while True:
        cut = _next_cut(view[within:], settings, is_first=within == 0, name=name)
        if not cut:
            yield Slice(text=b"".join((view[within:], settings.delimiter)), within=0)
            return
        yield Slice(text=bytes(view[within : within + cut]), within=within + cut)
        within += cut


def _next_cut(rest: memoryview, settings: ReadSettings, *, is_first: bool, name: str) -> int:
    """Where the next slice ends; 0: at the row's end."""
    lowest = FIRST_PIECE_BYTES if is_first else 1
    size = max(settings.block_bytes, lowest)
    margin = 4 + max(map(len, settings.cut_rule.unsplittable), default=0)
    while size < len(rest):
        cut = last_safe_cut(rest[:size], settings.cut_rule, at_least=lowest)
        if cut:
            return cut
        lowest = max(lowest, size - margin)
        size *= 2
    if len(rest) > settings.document_limit_bytes:
        raise too_large(name, len(rest), settings.document_limit_bytes)
    return 0


def too_large(name: str, size_bytes: int, limit_bytes: int) -> DataError:
    """The error for something that must be held whole and is larger than there is room for."""
    return DataError(
        f"{name} takes {format_bytes(size_bytes)}, more than the {format_bytes(limit_bytes)} "
        "there is for one piece",
        remedy=_ask_for(_BUDGET_PER_PIECE * (size_bytes - limit_bytes)),
    )


def shared_limit(limit_bytes: int) -> int:
    """The most for what many rows share (a page, a record batch): it is held twice, one huge row five times."""
    return limit_bytes * 5 // 2


def too_large_together(name: str, size_bytes: int, limit_bytes: int) -> DataError:
    """The error for something that many rows share, larger than the shared limit of `limit_bytes`."""
    room_bytes = shared_limit(limit_bytes)
    more_bytes = _BUDGET_PER_PIECE * (size_bytes - room_bytes) * 2 // 5
    return DataError(
        f"{name} takes {format_bytes(size_bytes)} or more in memory, and there are "
        f"{format_bytes(room_bytes)} for it",
        remedy=_ask_for(more_bytes),
    )


def _ask_for(more_bytes: int) -> str:
    """A remedy. More workers would take what is added: they share a budget with the reader."""
    more = round_up_to_mib(more_bytes)
    return f"pass `--workers 1` and a larger `--memory`, by about {more} or more"


def column_pieces(
    values: pa.Array,
    part: Part,
    settings: ReadSettings,
    *,
    first_row: int,
    within: int,
    done_bytes: int,
) -> Iterator[Piece]:
    """Pieces of a column of strings, binaries, or a dictionary of such. `within` belongs to the first row."""
    lengths = text_lengths(values)
    ends = np.cumsum(lengths + len(settings.delimiter))
    start = 0
    while start < len(values):
        if within or is_long(int(lengths[start]), settings):
            yield from _long_row(values, start, part, settings, first_row, within, done_bytes)
            start, within = start + 1, 0
            continue
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + settings.block_bytes, side="right"))
        stop = max(stop, start + 1)
        rows = _as_binary(values.slice(start, stop - start))
        yield _short_rows(rows, part, settings, first_row + start, done_bytes)
        start = stop


def text_lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each row, 0 for a null. The values of a dictionary or of views are not written out."""
    if pa.types.is_dictionary(values.type):
        return _lengths_of_entries(values.dictionary, values.indices)
    if _has_views(values.type):
        return _view_lengths(values)
    return as_numbers(pc.binary_length(_as_binary(values)))


def _lengths_of_entries(entries: pa.Array, indices: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of the entries that are asked for; a dictionary may have far more of them."""
    if _has_views(entries.type):
        stored = [None, pa.py_buffer(text_lengths(entries))]
        lengths = pa.Array.from_buffers(pa.int64(), len(entries), stored)
        return as_numbers(lengths.take(indices))
    is_wide = pa.types.is_large_string(entries.type) or pa.types.is_large_binary(entries.type)
    kind = pa.int64() if is_wide else pa.int32()
    nulls, ends, _ = entries.buffers()
    if not len(entries):
        ends = pa.py_buffer(bytes(16))  # a column of no rows may have no offsets

    def taken(buffer: pa.Buffer) -> npt.NDArray[np.int64]:
        places = pa.Array.from_buffers(kind, len(entries), [nulls, buffer], offset=entries.offset)
        return as_numbers(places.take(indices))

    return taken(ends.slice(kind.bit_width // 8)) - taken(ends)


def _has_views(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _view_lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """A view is 16 bytes of which the first four are its length; the text itself may lie anywhere."""
    if not len(values):
        return np.empty(0, dtype=np.int64)
    views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, 4)
    lengths = views[values.offset : values.offset + len(values), 0].astype(np.int64)
    lengths[~valid_rows(values)] = 0
    return lengths


def _as_binary(values: pa.Array) -> pa.Array:
    """The same bytes without a claim to be UTF-8: that is checked here, by the policy."""
    if pa.types.is_dictionary(values.type):
        values = _as_binary(values.dictionary).take(values.indices)
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return values
    wide = pa.types.is_large_string(values.type)
    return values.cast(pa.large_binary() if wide else pa.binary())


def _long_row(
    values: pa.Array,
    index: int,
    part: Part,
    settings: ReadSettings,
    first_row: int,
    within: int,
    done_bytes: int,
) -> Iterator[Piece]:
    row = first_row + index
    text = cast("bytes", _as_binary(values.slice(index, 1))[0].as_py())
    after = part.cursor(row + 1)
    bad: tuple[BadRow, ...] = ()
    if not is_utf8(text):
        bad = (bad_row(part, settings, row, NOT_UTF8),)
        if settings.bad_text == "skip":
            yield Piece(after=after, done_bytes=done_bytes, bad=bad, bad_count=1)
            return
        text, _ = replace_bad(text)
    if within:
        bad = ()  # counted when the row began
    for part_of_row in cut_row(
        text, settings, within=within, name=f"{part.file.path} row {row + 1}"
    ):
        yield Piece(
            text=part_of_row.text,
            document_count=0 if part_of_row.within else 1,
            after=part.cursor(row, part_of_row.within) if part_of_row.within else after,
            done_bytes=done_bytes,
            bad=bad,
            bad_count=len(bad),
        )
        bad = ()


def _short_rows(
    rows: pa.Array, part: Part, settings: ReadSettings, first_row: int, done_bytes: int
) -> Piece:
    """Rows that fit a block together, joined without an object for each; damaged ones are looked at singly."""
    after = part.cursor(first_row + len(rows))
    if rows.null_count == 0:
        filled = keep_rows(rows, text_lengths(rows) > 0)
        text = _join(filled, settings.delimiter)
        if is_utf8(text):
            return Piece(
                text=text,
                document_count=len(filled),
                after=after,
                done_bytes=done_bytes,
                empty_count=len(rows) - len(filled),
            )
    return _careful_rows(rows, part, settings, first_row, done_bytes)


def _join(rows: pa.Array, delimiter: bytes) -> bytes:
    """Every row followed by the delimiter: the data buffer of the joined column is just that text."""
    if not len(rows):
        return b""
    nothing = repeat_value(b"", len(rows), rows.type)
    joined = pc.binary_join_element_wise(
        rows, nothing, repeat_value(delimiter, len(rows), rows.type)
    )
    size_bytes = int(text_lengths(rows).sum()) + len(rows) * len(delimiter)
    return cast("bytes", joined.buffers()[2].slice(0, size_bytes).to_pybytes())


def _careful_rows(
    rows: pa.Array, part: Part, settings: ReadSettings, first_row: int, done_bytes: int
) -> Piece:
    """Row by row, by the policy for bad text."""
    texts: list[bytes] = []
    bad: list[BadRow] = []
    empty_count = 0
    for row, text in enumerate(rows.to_pylist(), start=first_row):
        if text is None:
            bad.append(bad_row(part, settings, row, IS_NULL))
        elif not text:
            empty_count += 1
        elif is_utf8(text):
            texts.append(text)
        else:
            bad.append(bad_row(part, settings, row, NOT_UTF8))
            if settings.bad_text == "replace":
                texts.append(replace_bad(text)[0])
    return Piece(
        text=settings.delimiter.join([*texts, b""]),
        document_count=len(texts),
        after=part.cursor(first_row + len(rows)),
        done_bytes=done_bytes,
        bad=tuple(bad[:LISTED_BAD_ROWS]),
        bad_count=len(bad),
        empty_count=empty_count,
    )


def bad_row(part: Part, settings: ReadSettings, row: int, reason: str) -> BadRow:
    """The record of a bad row, which people count from 1, or the error that the policy asks for."""
    if settings.bad_text == "fail":
        raise DataError(
            f"{part.file.path}, row {row + 1}: the value of {settings.column!r} is {reason}",
            remedy="pass `--bad-text skip` to leave such rows out and count them, or `--bad-text replace`",
        )
    return BadRow(file=str(part.file.path), position=row + 1, unit="row", reason=reason)
