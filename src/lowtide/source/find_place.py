"""Find a text in the inputs, for an error found in a block: a block does not know its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lowtide.errors import ReservedTextError
from lowtide.source.blocks import Cursor, ReadSettings
from lowtide.source.byte_stream import open_window
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.parts import parts_from
from lowtide.source.read_jsonl import BadLineError, load_object
from lowtide.source.stream import read_pieces
from lowtide.units import MIB


@contextmanager
def naming_places(
    inputs: Sequence[InputFile], settings: ReadSettings, start: Callable[[], Cursor]
) -> Iterator[None]:
    """A context that adds file and line (or row) to an error about reserved text, searched for from `start`."""
    try:
        yield
    except ReservedTextError as error:
        raise _name_place(error, inputs, settings, start()) from error


def _name_place(
    error: ReservedTextError, inputs: Sequence[InputFile], settings: ReadSettings, start: Cursor
) -> ReservedTextError:
    for index in range(start.file, len(inputs)):
        file = inputs[index]
        cursor = start if index == start.file else Cursor(file=index, position=0)
        where = file.stream.name if file.stream else None
        if where is None and (place := _place_in(file, cursor, settings, error.text)):
            where = f"{file.path}, {place}"
        if where is not None:
            return ReservedTextError(
                f"{where}: {error.problem}", remedy=error.remedy, text=error.text
            )
    return error


def _place_in(file: InputFile, start: Cursor, settings: ReadSettings, text: bytes) -> str | None:
    if file.kind in (InputKind.PARQUET, InputKind.ARROW):
        return _row_with(file, start, settings, text)
    for number, position, line in _lines(file, settings):
        if position + len(line) < start.position:
            continue
        if text in line if file.kind is InputKind.TEXT else _holds(line, text):
            return f"line {number}"
    return None


def _row_with(file: InputFile, start: Cursor, settings: ReadSettings, text: bytes) -> str | None:
    single = replace(settings, block_bytes=1)  # a row in each piece
    for part in parts_from(start, file, single):
        for piece in read_pieces(part):
            documents = piece.text.removesuffix(settings.delimiter)
            if text in documents:
                after = piece.after
                return f"row {after.position + (after.within > 0)}"
    return None


def _lines(file: InputFile, settings: ReadSettings) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, byte offset and bytes of each line; a very long one in several pieces."""
    limit_bytes = settings.document_limit_bytes
    number = 1
    with open_window(file, limit_bytes=limit_bytes) as window:
        while not window.at_end or window.data:
            window.fill(max(MIB, settings.block_bytes))
            while b"\n" not in window.data and not window.at_end and window.grow(limit_bytes):
                pass
            whole = window.data if window.at_end else window.data[: window.data.rfind(b"\n") + 1]
            whole = whole or window.data
            position = window.position
            for line in whole.split(b"\n"):
                yield number, position, line
                position += len(line) + 1
                number += 1
            number -= 1  # behind the last newline the next line begins
            window.drop(len(whole))


def _holds(line: bytes, text: bytes) -> bool:
    """Whether a string of a line's JSON holds the text."""
    try:
        waiting: list[object] = [load_object(line)]
    except BadLineError:
        return False
    sought = text.decode()
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and sought in value:
            return True
    return False
