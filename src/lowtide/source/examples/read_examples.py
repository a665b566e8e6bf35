"""Examples out of JSONL, Parquet and Arrow files: each row through the template, into pieces.

    line or row ─► turns ─► template ─► PieceBuilder ─► piece

An example is one document and is never cut. Holds what the reader of the format holds, a piece of about
`block_bytes`, and one example more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from lowtide.errors import DataError
from lowtide.source.blocks import SLOW_SECONDS, BadRow, Cursor, Piece
from lowtide.source.byte_stream import explain_damage
from lowtide.source.columns import own_shape, pick_column
from lowtide.source.examples.example_columns import (
    check_damage,
    fast_turns,
    leaf_paths,
    needed_columns,
    row_bytes,
    rows_of,
)
from lowtide.source.examples.piece_builder import PieceBuilder
from lowtide.source.examples.turns import (
    BadExampleError,
    NoSuchKeyError,
    Turn,
    gather,
    line_decoder,
    rebuilt,
    turns_of,
)
from lowtide.source.find_inputs import InputKind
from lowtide.source.parts import Part
from lowtide.source.read_arrow import map_file, read_mapped
from lowtide.source.read_jsonl import BadLineError, JsonLines, load_object, replace_surrogates
from lowtide.source.read_parquet import open_parquet, read_batches
from lowtide.source.rows import NOT_UTF8, RowBatch, too_large
from lowtide.source.utf8 import is_encodable, is_utf8
from lowtide.units import KIB

_WINDOW_ROWS = 4096
"""Rows that are measured at once; where some are null, Arrow copies what they hold."""
_SURROGATE = "a lone surrogate"
_AHEAD_ROWS = 128
_AHEAD_BYTES = 64 * KIB
_OTHER_NAMES = (
    "pass `--column` with the names that the file has, or another `--examples` "
    "(chat, instruction, completion); `--bad-text skip` is for files of which only later lines lack it"
)
_NOT_PLAIN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadExampleError)

_Row = TypeVar("_Row", bytes, dict[str, object])


class _ExampleReader:
    """Turns the rows of one part into pieces."""

    def __init__(self, part: Part) -> None:
        reading = part.settings.examples
        assert reading is not None
        self.part = part
        self.reading = reading
        self._builder = PieceBuilder(delimiter=part.settings.delimiter, learn=reading.learn)
        self._began = time.monotonic()
        """When the piece was begun."""

    def add(self, turns: list[Turn]) -> None:
        """Add one example; `BadExampleError` leaves the piece as it was.

        A `DataError` for one that is too large, whatever the policy for bad text."""
        builder, limit_bytes = self._builder, self.part.settings.document_limit_bytes
        try:
            self.reading.template.render(turns, self.reading.learn, builder)
            if not builder.open_learns():
                raise BadExampleError("nothing in it is learnt: the assistant says nothing")
        except BadExampleError:
            builder.drop_example()
            raise
        size_bytes = builder.open_bytes()
        if size_bytes > limit_bytes:  # not a bad row: a larger budget would take it
            raise too_large("the example", size_bytes, limit_bytes)
        builder.close_example(size_bytes)

    def takes(self, turns: list[Turn] | None) -> bool:
        """Whether the row had turns, and the example they make could be added."""
        if turns is None:
            return False
        try:
            self.add(turns)
        except BadExampleError:
            return False
        return True

    def add_closely(
        self, row: dict[str, object], reason: str, note: Callable[[Exception], BadRow]
    ) -> None:
        """Add a row that the fast way refused; what is wrong with it is repaired or noted."""
        try:
            turns = turns_of(row, self.reading)
            faults = {reason} - {""}
            turns = [_repaired_turn(turn, faults) for turn in turns]
            reason = min(faults, default="")
            if reason and self.part.settings.bad_text != "replace":
                raise BadExampleError(reason)
            self.add(turns)
        except BadExampleError as error:
            self.note_bad(note(error))
        else:
            if reason:
                self.note_bad(note(BadExampleError(reason)))

    def note_bad(self, row: BadRow) -> None:
        """Count a bad row, and list it among the first."""
        self._builder.note_bad(row)

    def is_full(self) -> bool:
        """Whether the piece is as large as a block, or a slow template took the time of one."""
        is_slow = time.monotonic() - self._began > SLOW_SECONDS
        return is_slow or self._builder.size_bytes >= self.part.settings.block_bytes

    def take_piece(self, after: Cursor, done_bytes: int) -> Piece:
        """All examples since the last piece."""
        self._began = time.monotonic()
        return self._builder.take_piece(
            after=after, done_bytes=done_bytes, name=str(self.part.file.path)
        )

    def ahead(
        self, rows: Iterable[_Row], decode: Callable[[_Row], list[Turn]]
    ) -> Iterator[tuple[_Row, list[Turn] | None]]:
        """Each row with its turns, or None for one to look at closely. The template gets to see some ahead."""
        found: list[tuple[_Row, list[Turn] | None]] = []
        size = 0
        for row in rows:
            turns = None
            if row:
                try:
                    turns = decode(row)
                except _NOT_PLAIN:
                    pass
            if not self.reading.whole_messages:
                yield row, turns
                continue
            found.append((row, turns))
            size += len(row)
            if len(found) == _AHEAD_ROWS or size > _AHEAD_BYTES:
                self.reading.template.expect([turns for _, turns in found if turns is not None])
                yield from found
                found, size = [], 0
        self.reading.template.expect([turns for _, turns in found if turns is not None])
        yield from found

    @contextmanager
    def placed(self, place: str) -> Iterator[None]:
        """A context that adds the row to an error of the template."""
        try:
            yield
        except DataError as error:
            raise self.at(place, error) from error

    def at(self, place: str, error: DataError) -> DataError:
        """The same error, of the same class, with file and row."""
        path = str(self.part.file.path)
        if path in error.problem:
            return error
        return type(error)(f"{path}, {place}: {error.problem}", remedy=error.remedy)


def read_lines(part: Part) -> Iterator[Piece]:
    """The examples of a JSONL file."""
    reader, lines = _ExampleReader(part), JsonLines(part)
    decode = line_decoder(reader.reading)
    for chunk in lines.chunks():
        position, end = chunk.position, chunk.position + len(chunk.data)
        for line, turns in reader.ahead(chunk.data.split(b"\n"), decode):
            if line:
                try:
                    if not reader.takes(turns):
                        _add_line_closely(line, position, lines, reader)
                except DataError as error:
                    raise reader.at(lines.name(position), error) from error
            position += len(line) + 1
            if reader.is_full():
                yield reader.take_piece(part.cursor(min(position, end)), chunk.done_bytes)
        yield reader.take_piece(part.cursor(end), chunk.done_bytes)


def _add_line_closely(line: bytes, position: int, lines: JsonLines, reader: _ExampleReader) -> None:
    """Add a line that the fast way refused."""
    if not line.strip():
        return

    def note(error: Exception) -> BadRow:
        if isinstance(error, NoSuchKeyError):
            lines.refuse_missing_key(error.name, error.keys, position, remedy=_OTHER_NAMES)
        return lines.bad_row(str(error), position)

    try:
        row = load_object(line)
    except BadLineError as error:
        reader.note_bad(note(error))
        return
    with reader.placed(lines.name(position)):
        reader.add_closely(row, "" if is_utf8(line) else NOT_UTF8, note)


def read_parquet_rows(part: Part) -> Iterator[Piece]:
    """The examples of a Parquet file."""
    reader = _ExampleReader(part)
    reading = reader.reading
    with open_parquet(part) as file:
        columns = needed_columns(file.schema_arrow, reading, str(part.file.path))
        paths = [file.schema.column(index).path for index in range(len(file.schema))]
        is_pruned = reading.kind == "chat" and not reading.whole_messages
        keys = [reading.column("role"), reading.column("content")] if is_pruned else []
        for batch in read_batches(file, part, leaf_paths(paths, columns, keys)):
            with explain_damage(part.file.path):
                arrays = {column: pick_column(batch.rows, column) for column in columns}
            yield from _batch_pieces(arrays, batch.first_row, batch.done_bytes, reader)


def read_arrow_rows(part: Part) -> Iterator[Piece]:
    """The examples of an Arrow file."""
    reader = _ExampleReader(part)
    columns: list[str] = []

    def pick(schema: pa.Schema) -> list[str]:
        columns[:] = needed_columns(schema, reader.reading, str(part.file.path))
        return columns

    with map_file(part.file) as mapped:
        for batch in read_mapped(mapped, part, pick):
            for start in range(0, len(batch.rows), _WINDOW_ROWS):
                with mapped.explain_damage():
                    arrays = _own_window(batch, columns, start)
                for piece in _batch_pieces(
                    arrays, batch.first_row + start, batch.done_bytes, reader
                ):
                    mapped.check()
                    yield piece


READERS = {
    InputKind.JSONL: read_lines,
    InputKind.PARQUET: read_parquet_rows,
    InputKind.ARROW: read_arrow_rows,
}
"""The reader of examples for each format that has rows."""


def _own_window(batch: RowBatch, columns: Sequence[str], start: int) -> dict[str, pa.Array]:
    """Columns of some rows of a mapped batch, in a shape that no longer changes and was checked."""
    arrays = {}
    for column in columns:
        arrays[column] = own_shape(pick_column(batch.rows, column).slice(start, _WINDOW_ROWS))
        check_damage(arrays[column])
    return arrays


def _batch_pieces(
    arrays: dict[str, pa.Array], first_row: int, done_bytes: int, reader: _ExampleReader
) -> Iterator[Piece]:
    """The rows that the arrays hold, about a block turned into Python at a time."""
    part = reader.part
    start, stop = 0, len(next(iter(arrays.values())))
    while start < stop:
        window = {name: array.slice(start, _WINDOW_ROWS) for name, array in arrays.items()}
        with explain_damage(part.file.path):
            sizes = sum(row_bytes(array) for array in window.values())
        ends = np.cumsum(sizes)
        fitting = max(1, int(np.searchsorted(ends, part.settings.block_bytes, side="right")))
        taken = {name: array.slice(0, fitting) for name, array in window.items()}
        for row in _add_rows(taken, first_row + start, reader):
            if reader.is_full():
                yield reader.take_piece(part.cursor(row + 1), done_bytes)
        start += fitting
        yield reader.take_piece(part.cursor(first_row + start), done_bytes)


def _add_rows(arrays: dict[str, pa.Array], first_row: int, reader: _ExampleReader) -> Iterator[int]:
    """Add rows; yields the number of each one when that is done."""
    reading, path = reader.reading, reader.part.file.path
    with reader.placed(f"row {first_row + 1} or one after it"), explain_damage(path):
        ready = None
        if reading.kind == "chat" and not reading.whole_messages:
            ready = fast_turns(next(iter(arrays.values())), reading)
        rows = [] if ready else list(rows_of(arrays))
    number = first_row

    def note(error: Exception) -> BadRow:
        return reader.part.bad_row("row", number + 1, str(error))

    for turns in ready or ():
        with reader.placed(f"row {number + 1}"):
            try:
                reader.add(turns)
            except BadExampleError as error:
                reader.note_bad(note(error))
        yield number
        number += 1

    def decode(row: dict[str, object]) -> list[Turn]:
        if _has_bytes(row):
            raise BadExampleError(NOT_UTF8)
        return turns_of(row, reading)

    for row, row_turns in reader.ahead(rows, decode):
        with reader.placed(f"row {number + 1}"):
            if not reader.takes(row_turns):
                has_bytes = _has_bytes(row)
                repaired = rebuilt(row, _repaired) if has_bytes else row
                assert isinstance(repaired, dict)
                reader.add_closely(repaired, NOT_UTF8 if has_bytes else "", note)
        yield number
        number += 1


def _has_bytes(row: dict[str, object]) -> bool:
    """Whether some text of the row was not UTF-8, and so was left as bytes."""
    found: list[object] = []
    gather(row, found)
    return any(isinstance(value, bytes) for value in found)


def _repaired_turn(turn: Turn, faults: set[str]) -> Turn:
    """The turn with lone surrogates replaced, and if there were any, that fault added."""
    found: list[object] = [turn.role, turn.content]
    gather(turn.message, found)
    if not any(isinstance(text, str) and not is_encodable(text) for text in found):
        return turn
    faults.add(_SURROGATE)
    message = rebuilt(turn.message, _repaired)
    return Turn(
        replace_surrogates(turn.role),
        replace_surrogates(turn.content),
        message if isinstance(message, dict) else None,
    )


def _repaired(value: object) -> object:
    """A text with U+FFFD where bytes are not UTF-8 and surrogates stand alone."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return replace_surrogates(value) if isinstance(value, str) else value
