"""From rows to pieces: small rows are joined in columns, a large one is cut at safe cuts.

Shared by JSONL, Parquet and Arrow. A cursor's `within` counts the bytes of a large row that earlier pieces gave
out: the row is read again and its beginning dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lowtide.errors import DataError
from lowtide.source.blocks import (
    FIRST_PIECE_BYTES,
    LISTED_BAD_ROWS,
    BadRow,
    Cursor,
    Piece,
    ReadSettings,
)
from lowtide.source.columns import as_binary, keep_rows, repeat_value, text_lengths
from lowtide.source.parts import Part
from lowtide.source.safe_cuts import last_safe_cut
from lowtide.source.utf8 import is_utf8, replace_bad
from lowtide.units import format_bytes, round_up_to_mib

_BUDGET_PER_PIECE = 12
"""A piece is held five times over while it is read, of a budget that the caches share; and some to spare."""

NOT_UTF8 = "not valid UTF-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Some rows of a file, all of which belong to the part."""

    rows: pa.RecordBatch
    first_row: int
    done_bytes: int
    """Stored bytes of the file that were read for them and the rows before."""


def is_long(size_bytes: int, settings: ReadSettings) -> bool:
    """Whether a row of this size does not go into one block."""
    return size_bytes > max(settings.block_bytes, FIRST_PIECE_BYTES)


def row_pieces(
    text: bytes,
    part: Part,
    *,
    start: Cursor,
    after: Cursor,
    done_bytes: int,
    bad: tuple[BadRow, ...] = (),
    name: str,
) -> Iterator[Piece]:
    """A row from `start.within` on in pieces of about a block; the last one ends with the delimiter."""
    view, within = memoryview(text), start.within
    while cut := _next_cut(view[within:], part.settings, is_first=within == 0, name=name):
        yield Piece(
            text=bytes(view[within : within + cut]),
            after=part.cursor(start.position, within + cut),
            done_bytes=done_bytes,
            bad=bad,
            bad_count=len(bad),
        )
        within, bad = within + cut, ()
    yield Piece(
        text=b"".join((view[within:], part.settings.delimiter)),
        document_count=1,
        after=after,
        done_bytes=done_bytes,
        bad=bad,
        bad_count=len(bad),
    )


def _next_cut(rest: memoryview, settings: ReadSettings, *, is_first: bool, name: str) -> int:
    """Where the next piece ends; 0: at the row's end."""
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
    """The error for something that must be held whole and does not fit the document limit."""
    return DataError(
        f"{name} takes {format_bytes(size_bytes)}, more than the {format_bytes(limit_bytes)} "
        "there is for one piece",
        remedy=_budget_remedy(_BUDGET_PER_PIECE * (size_bytes - limit_bytes)),
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
        remedy=_budget_remedy(more_bytes),
    )


def _budget_remedy(more_bytes: int) -> str:
    """Asks for one worker too: more would take what is added, for they share a budget with the reader."""
    more = round_up_to_mib(more_bytes)
    return f"pass `--workers 1` and a larger `--memory`, by about {more} or more"


def column_pieces(
    values: pa.Array, part: Part, *, first_row: int, done_bytes: int
) -> Iterator[Piece]:
    """Pieces of a column of strings, binaries, or a dictionary of such, whose first row has that number."""
    settings = part.settings
    within = part.start.within if first_row == part.start.position else 0
    lengths = text_lengths(values)
    ends = np.cumsum(lengths + len(settings.delimiter))
    start = 0
    while start < len(values):
        if within or is_long(int(lengths[start]), settings):
            place = part.cursor(first_row + start, within)
            yield from _long_row(values.slice(start, 1), part, place, done_bytes)
            start, within = start + 1, 0
            continue
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + settings.block_bytes, side="right"))
        stop = max(stop, start + 1)
        rows = as_binary(values.slice(start, stop - start))
        yield _short_rows(rows, part, first_row + start, done_bytes)
        start = stop


def _long_row(value: pa.Array, part: Part, start: Cursor, done_bytes: int) -> Iterator[Piece]:
    text = cast("bytes", as_binary(value)[0].as_py())
    number = start.position + 1
    after = part.cursor(number)
    bad: tuple[BadRow, ...] = ()
    if not is_utf8(text):
        bad = (_bad_value(part, number, NOT_UTF8),)
        if part.settings.bad_text == "skip":
            yield Piece(after=after, done_bytes=done_bytes, bad=bad, bad_count=1)
            return
        text, _ = replace_bad(text)
    yield from row_pieces(
        text,
        part,
        start=start,
        after=after,
        done_bytes=done_bytes,
        bad=() if start.within else bad,  # counted when the row began
        name=f"{part.file.path} row {number}",
    )


def _short_rows(rows: pa.Array, part: Part, first_row: int, done_bytes: int) -> Piece:
    """Rows that fit a block together, joined without an object for each; damaged ones are looked at singly."""
    delimiter = part.settings.delimiter
    if rows.null_count == 0:
        filled = keep_rows(rows, text_lengths(rows) > 0)
        text = _join(filled, delimiter)
        if is_utf8(text):
            return Piece(
                text=text,
                document_count=len(filled),
                after=part.cursor(first_row + len(rows)),
                done_bytes=done_bytes,
                empty_count=len(rows) - len(filled),
            )
    texts: list[bytes] = []
    bad: list[BadRow] = []
    empty_count = 0
    for number, row in enumerate(rows.to_pylist(), start=first_row + 1):
        if row is None:
            bad.append(_bad_value(part, number, "null"))
        elif not row:
            empty_count += 1
        elif is_utf8(row):
            texts.append(row)
        else:
            bad.append(_bad_value(part, number, NOT_UTF8))
            if part.settings.bad_text == "replace":
                texts.append(replace_bad(row)[0])
    return Piece(
        text=delimiter.join([*texts, b""]),
        document_count=len(texts),
        after=part.cursor(first_row + len(rows)),
        done_bytes=done_bytes,
        bad=tuple(bad[:LISTED_BAD_ROWS]),
        bad_count=len(bad),
        empty_count=empty_count,
    )


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


def _bad_value(part: Part, number: int, reason: str) -> BadRow:
    return part.bad_row(
        "row", number, reason, said_before=f": the value of {part.settings.column!r} is "
    )
