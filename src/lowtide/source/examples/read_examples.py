"""Examples out of JSONL, Parquet and Arrow files: each row through the template, onto a sheet, into pieces.

    line or row ─► turns ─► template ─► sheet ─► piece

An example is one document and is never cut. Holds what the reader of the format holds, a sheet of about
`block_bytes`, and one example more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from lowtide.errors import DataError, UsageError
from lowtide.source.arrow_arrays import own_shape
from lowtide.source.blocks import SLOW_SECONDS, BadRow, Cursor, Piece, ReadSettings
from lowtide.source.columns import pick_column
from lowtide.source.examples.example_columns import (
    check_damage,
    fast_turns,
    leaf_paths,
    needed_columns,
    row_bytes,
    rows_of,
)
from lowtide.source.examples.settings import ExampleReading
from lowtide.source.examples.sheet import Sheet
from lowtide.source.examples.templates import Template
from lowtide.source.examples.turns import (
    BadExampleError,
    NoSuchKeyError,
    Turn,
    gather,
    line_decoder,
    rebuilt,
    turns_of,
)
from lowtide.source.json_lines import BadLineError, JsonLines, load_object, mend_surrogates
from lowtide.source.parts import Part
from lowtide.source.read_arrow import map_file, read_mapped, wanted_rows
from lowtide.source.read_parquet import RowBatch, explain_damage, open_parquet, read_batches
from lowtide.source.rows import NOT_UTF8, too_large
from lowtide.source.utf8 import is_encodable, is_utf8
from lowtide.units import KIB

_WINDOW_ROWS = 4096
"""Rows that are measured at once; where some are null, Arrow copies what they hold."""
_SURROGATE = "a lone surrogate"
_AHEAD_ROWS = 128
_AHEAD_BYTES = 64 * KIB
_NOT_PLAIN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadExampleError)


@dataclass(slots=True, kw_only=True)
class _Desk:
    """Where the examples of one part are made."""

    part: Part
    settings: ReadSettings
    reading: ExampleReading
    sheet: Sheet = field(init=False)
    began: float = field(default_factory=time.monotonic)
    """When the sheet was last empty, by the clock."""

    def __post_init__(self) -> None:
        self.sheet = Sheet(delimiter=self.settings.delimiter, learn=self.reading.learn)

    def add(self, turns: list[Turn]) -> None:
        """Lay one example on the sheet; `BadExampleError` leaves the sheet as it was.

        A `DataError` for one that is too large, whatever the policy for bad text."""
        reading, sheet = self.reading, self.sheet
        try:
            reading.template.render(turns, reading.learn, sheet)
            if not sheet.open_learns():
                raise BadExampleError("nothing in it is learnt: the assistant says nothing")
        except BadExampleError:
            sheet.drop_example()
            raise
        size_bytes = sheet.open_bytes()
        if (
            size_bytes > self.settings.document_limit_bytes
        ):  # no bad row: a larger budget would take it
            raise too_large("the example", size_bytes, self.settings.document_limit_bytes)
        sheet.close_example(size_bytes)

    def takes(self, turns: list[Turn]) -> bool:
        """Whether the example could be laid on the sheet."""
        try:
            self.add(turns)
        except BadExampleError:
            return False
        return True

    def add_row(
        self, row: dict[str, object], reason: str, note: Callable[[Exception], BadRow]
    ) -> None:
        """The same for a row that has to be looked at closely; what is wrong with it is mended or noted."""
        try:
            turns = turns_of(row, self.reading, whole=self.reading.template.whole_messages)
            faults = {reason} - {""}
            turns = [_mended_turn(turn, faults) for turn in turns]
            reason = min(faults, default="")
            if reason and self.settings.bad_text != "replace":
                raise BadExampleError(reason)
            self.add(turns)
        except BadExampleError as error:
            self.sheet.note_bad(note(error))
        else:
            if reason:
                self.sheet.note_bad(note(BadExampleError(reason)))

    def is_full(self) -> bool:
        """Whether the sheet holds a block, or what a slow template made in the time for one."""
        is_slow = time.monotonic() - self.began > SLOW_SECONDS
        return is_slow or self.sheet.size_bytes >= self.settings.block_bytes

    def take_piece(self, after: Cursor, done_bytes: int) -> Piece:
        """What the sheet holds."""
        self.began = time.monotonic()
        return self.sheet.take_piece(
            after=after, done_bytes=done_bytes, name=str(self.part.file.path)
        )


def read_lines(part: Part, settings: ReadSettings, reading: ExampleReading) -> Iterator[Piece]:
    """The examples of a JSONL file."""
    desk = _Desk(part=part, settings=settings, reading=reading)
    lines = JsonLines(part=part, settings=settings)
    decode = line_decoder(reading, whole=reading.template.whole_messages)
    for chunk in lines.chunks():
        position, end = chunk.position, chunk.position + len(chunk.data)
        for line, turns in _ahead(chunk.data.split(b"\n"), decode, reading.template):
            if line:
                try:
                    if turns is None or not desk.takes(turns):
                        _add_slowly(line, position, lines, desk)
                except DataError as error:
                    raise _at(f"line {lines.number(position)}", part, error) from error
            position += len(line) + 1
            if desk.is_full():
                yield desk.take_piece(part.cursor(min(position, end)), chunk.done_bytes)
        yield desk.take_piece(part.cursor(end), chunk.done_bytes)


_Row = TypeVar("_Row", bytes, dict[str, object])


def _ahead(
    rows: Iterable[_Row], decode: Callable[[_Row], list[Turn]], template: Template
) -> Iterator[tuple[_Row, list[Turn] | None]]:
    """Each row with its turns, or None for one to be looked at closely. The template gets to see some ahead."""
    found: list[tuple[_Row, list[Turn] | None]] = []
    size = 0
    for row in rows:
        turns = None
        if row:
            try:
                turns = decode(row)
            except _NOT_PLAIN:
                pass
        if not template.whole_messages:
            yield row, turns
            continue
        found.append((row, turns))
        size += len(row)
        if len(found) == _AHEAD_ROWS or size > _AHEAD_BYTES:
            template.expect([turns for _, turns in found if turns is not None])
            yield from found
            found, size = [], 0
    template.expect([turns for _, turns in found if turns is not None])
    yield from found


def read_parquet_rows(
    part: Part, settings: ReadSettings, reading: ExampleReading
) -> Iterator[Piece]:
    """The examples of a Parquet file."""
    desk = _Desk(part=part, settings=settings, reading=reading)
    with open_parquet(part, settings) as file:
        columns = needed_columns(file.schema_arrow, reading, str(part.file.path))
        paths = [file.schema.column(index).path for index in range(len(file.schema))]
        is_pruned = reading.kind == "chat" and not reading.template.whole_messages
        keys = [reading.column("role"), reading.column("content")] if is_pruned else []
        for batch in read_batches(file, part, settings, leaf_paths(paths, columns, keys)):
            with explain_damage(part.file.path):
                arrays = {column: pick_column(batch.rows, column) for column in columns}
            yield from _batch_pieces(batch, arrays, 0, desk)


def read_arrow_rows(part: Part, settings: ReadSettings, reading: ExampleReading) -> Iterator[Piece]:
    """The examples of an Arrow file."""
    desk = _Desk(part=part, settings=settings, reading=reading)
    columns: list[str] = []

    def pick(schema: pa.Schema) -> list[str]:
        columns[:] = needed_columns(schema, reading, str(part.file.path))
        return columns

    with map_file(part.file) as mapped:
        for batch in read_mapped(mapped, part, settings, pick):
            for start in range(*wanted_rows(batch, part), _WINDOW_ROWS):
                stop = min(start + _WINDOW_ROWS, wanted_rows(batch, part)[1])
                with mapped.explain_damage():
                    arrays = _own_window(batch, columns, start, stop)
                for piece in _batch_pieces(batch, arrays, start, desk):
                    mapped.check()
                    yield piece


def _own_window(
    batch: RowBatch, columns: Sequence[str], start: int, stop: int
) -> dict[str, pa.Array]:
    """Columns of some rows of a mapped batch, in a shape that no longer changes and was checked."""
    arrays = {}
    for column in columns:
        arrays[column] = own_shape(pick_column(batch.rows, column).slice(start, stop - start))
        check_damage(arrays[column])
    return arrays


def _batch_pieces(
    batch: RowBatch, arrays: dict[str, pa.Array], first: int, desk: _Desk
) -> Iterator[Piece]:
    """The rows of a batch from `first` on that the arrays hold, about a block turned into Python at a time."""
    part, settings = desk.part, desk.settings
    start, stop = 0, len(next(iter(arrays.values())))
    first_row = batch.first_row + first
    while start < stop:
        window = {
            name: array.slice(start, min(stop - start, _WINDOW_ROWS))
            for name, array in arrays.items()
        }
        with explain_damage(part.file.path):
            sizes = sum(row_bytes(array) for array in window.values())
        fitting = int(np.searchsorted(np.cumsum(sizes), settings.block_bytes, side="right"))
        fitting = max(1, fitting)
        taken = {name: array.slice(0, fitting) for name, array in window.items()}
        for row in _add_rows(taken, first_row + start, desk):
            if desk.is_full():
                yield desk.take_piece(part.cursor(row + 1), batch.done_bytes)
        start += fitting
        yield desk.take_piece(part.cursor(first_row + start), batch.done_bytes)


def _add_rows(arrays: dict[str, pa.Array], first_row: int, desk: _Desk) -> Iterator[int]:
    """Lay rows on the sheet; yields the number of each one when that is done."""
    reading = desk.reading
    with (
        _placed(f"row {first_row + 1} or one after it", desk.part),
        explain_damage(desk.part.file.path),
    ):
        is_fast = reading.kind == "chat" and not reading.template.whole_messages
        ready = fast_turns(next(iter(arrays.values())), reading) if is_fast else None
        rows = [] if ready else list(rows_of(arrays))
    number = first_row
    for turns in ready or ():
        with _placed(f"row {number + 1}", desk.part):
            _add_ready(turns, number, desk)
        yield number
        number += 1

    def decode(row: dict[str, object]) -> list[Turn]:
        found: list[object] = []
        gather(row, found)
        if any(isinstance(value, bytes) for value in found):
            raise BadExampleError(NOT_UTF8)
        return turns_of(row, reading, whole=reading.template.whole_messages)

    for row, row_turns in _ahead(rows, decode, reading.template):
        with _placed(f"row {number + 1}", desk.part):
            if row_turns is None or not desk.takes(row_turns):
                _add_closely(row, number, desk)
        yield number
        number += 1


def _add_ready(turns: list[Turn], number: int, desk: _Desk) -> None:
    try:
        desk.add(turns)
    except BadExampleError as error:
        desk.sheet.note_bad(_bad_row(error, number, desk))


def _add_closely(row: dict[str, object], number: int, desk: _Desk) -> None:
    """A row that the fast way did not take."""
    found: list[object] = []
    gather(row, found)
    has_bytes = any(isinstance(value, bytes) for value in found)
    mended = rebuilt(row, _mended) if has_bytes else row
    assert isinstance(mended, dict)
    desk.add_row(mended, NOT_UTF8 if has_bytes else "", lambda error: _bad_row(error, number, desk))


def _add_slowly(line: bytes, position: int, lines: JsonLines, desk: _Desk) -> None:
    """A line that the fast way did not take."""
    if not line.strip():
        return

    def note(error: Exception) -> BadRow:
        _refuse_missing_key(error, position, lines)
        return lines.bad_row(str(error), position)

    try:
        row = load_object(line)
    except BadLineError as error:
        desk.sheet.note_bad(note(error))
        return
    with _placed(f"line {lines.number(position)}", lines.part):
        desk.add_row(row, "" if is_utf8(line) else NOT_UTF8, note)


def _refuse_missing_key(error: Exception, position: int, lines: JsonLines) -> None:
    """A file whose first line has not the key is read by the wrong name."""
    if not isinstance(error, NoSuchKeyError):
        return
    number = lines.number(position)
    if number == 1 or lines.settings.bad_text == "fail":
        keys = ", ".join(error.keys) or "none"
        raise UsageError(
            f"{lines.part.file.path}, line {number}: no key {error.name!r}; its keys are: {keys}",
            remedy="pass `--column` with the names that the file has, or another `--examples` "
            "(chat, instruction, completion); `--bad-text skip` is for files of which only later lines lack it",
        )


def _bad_row(error: Exception, number: int, desk: _Desk) -> BadRow:
    """The record of a bad row, or the error that the policy asks for."""
    path, settings = desk.part.file.path, desk.settings
    if settings.bad_text == "fail":
        raise DataError(
            f"{path}, row {number + 1}: {error}",
            remedy="pass `--bad-text skip` to leave such rows out and count them, or mend the file",
        )
    return BadRow(file=str(path), position=number + 1, unit="row", reason=str(error))


@contextmanager
def _placed(place: str, part: Part) -> Iterator[None]:
    """Inside, what a template does wrong is said with the row that made it show."""
    try:
        yield
    except DataError as error:
        raise _at(place, part, error) from error


def _at(place: str, part: Part, error: DataError) -> DataError:
    """The same error, of the same class, with file and row."""
    path = str(part.file.path)
    if path in error.problem:
        return error
    return type(error)(f"{path}, {place}: {error.problem}", remedy=error.remedy)


def _mended_turn(turn: Turn, faults: set[str]) -> Turn:
    """The turn with lone surrogates replaced; says so among the faults."""
    found: list[object] = [turn.role, turn.content]
    gather(turn.message, found)
    if not any(isinstance(text, str) and not is_encodable(text) for text in found):
        return turn
    faults.add(_SURROGATE)
    message = rebuilt(turn.message, _mended)
    return Turn(
        mend_surrogates(turn.role),
        mend_surrogates(turn.content),
        message if isinstance(message, dict) else None,
    )


def _mended(value: object) -> object:
    """A text with U+FFFD where bytes are not UTF-8 and surrogates stand alone."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return mend_surrogates(value) if isinstance(value, str) else value
