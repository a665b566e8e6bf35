"""Documents out of JSON lines: a fast way for a window of good lines, a careful one when anything is wrong
with it.

The fast way decodes only the one field and joins the window's texts at once. If a line fails, or is longer
than a block, the window is gone through line by line: each is decoded the same way and, failing that, by
the standard library (which takes `NaN`, and tells lone surrogates from broken JSON). So what a line gives
does not depend on its neighbours. Blank lines are ignored. Holds a window of lines, their decoded strings
and the joined text: about four times `block_bytes`; for one long line up to eight times its length.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from lowtide.errors import DataError, UsageError
from lowtide.source.blocks import BadRow, Piece
from lowtide.source.byte_stream import ByteWindow, open_window
from lowtide.source.examples.settings import suggest_examples
from lowtide.source.examples.turns import name_kind
from lowtide.source.parts import Part
from lowtide.source.read_text import begin_reading
from lowtide.source.rows import NOT_UTF8, is_long, row_pieces
from lowtide.source.utf8 import is_utf8
from lowtide.units import MIB, format_bytes, round_up_to_mib

_WRITE_TEXT = "write the text of these rows to a file, and pass that"


class BadLineError(Exception):
    """Why a line is bad; the policy decides what follows."""


class _MissingKeyError(BadLineError):
    def __init__(self, row: dict[str, object]) -> None:
        super().__init__("has no such key")
        self.keys = {key: _message_keys(value) for key, value in row.items()}


class _NestedError(BadLineError):
    """An array or an object stands where text should: in the first line, another column is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some whole lines of a file."""

    data: bytes
    position: int
    """The byte at which they begin."""
    done_bytes: int


class JsonLines:
    """The lines of one part of a file, and the number of the line at a byte offset."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._unit: Literal["line", "row"] = part.file.stream.unit if part.file.stream else "line"
        self._counted_to, self._counted = 0, 1
        self._held = b""
        """The lines being read, if the input is a stream, which cannot be read again to count them."""

    def chunks(self) -> Iterator[Chunk]:
        """Whole lines, about a block at a time; one that is longer alone."""
        part, settings = self.part, self.part.settings
        with open_window(
            part.file,
            position=part.start.position,
            end=part.content_end,
            limit_bytes=settings.document_limit_bytes,
        ) as window:
            begin_reading(window, part)
            while not window.at_end or window.data:
                self._counted += self._held.count(b"\n")  # before other lines are held
                self._counted_to += len(self._held)
                self._held = b""
                window.fill(settings.block_bytes)
                yield self._take(window, self._whole_lines(window))

    def number(self, position: int) -> int:
        """The number, from 1, of the line at an offset. Newlines are counted when first asked for."""
        start = self._counted_to
        if position == start:
            return self._counted
        if self.part.file.stream is not None:
            return self._counted + self._held.count(b"\n", 0, position - start)
        limit_bytes = self.part.settings.document_limit_bytes
        with open_window(
            self.part.file, position=start, end=position, limit_bytes=limit_bytes
        ) as window:
            while not window.at_end:
                window.fill(MIB)
                self._counted += window.data.count(b"\n")
                window.drop(len(window.data))
        self._counted_to = position
        return self._counted

    def name(self, position: int) -> str:
        """`line 3`, of the line at an offset; `row 3` where the lines are rows of Python."""
        return f"{self._unit} {self.number(position)}"

    def bad_row(self, reason: str, position: int) -> BadRow:
        """The record of a bad line, or the error that the policy asks for."""
        number = self.number(position)
        place = f" (byte {position}): " if self._unit == "line" else ": "
        return self.part.bad_row(self._unit, number, reason, said_before=place)

    def refuse_missing_key(
        self, key: str, keys: Iterable[str], position: int, *, remedy: str
    ) -> None:
        """A `UsageError` if the first line lacks the key, for then the name is wrong, or if no line may."""
        if self.number(position) == 1 or self.part.settings.bad_text == "fail":
            raise UsageError(
                f"{self.part.file.path}, {self.name(position)}: no key {key!r}; "
                f"its keys are: {', '.join(keys) or 'none'}",
                remedy=remedy,
            )

    def _take(self, window: ByteWindow, size: int) -> Chunk:
        """The window's first bytes. A function, so that nobody but the reader holds on to them."""
        data, position = window.data[:size], window.position
        window.drop(size)
        if self.part.file.stream is not None:
            self._held, self._counted_to = data, position
        return Chunk(data=data, position=position, done_bytes=window.done_bytes())

    def _whole_lines(self, window: ByteWindow) -> int:
        """The number of bytes of whole lines in the window, which grows until it holds one."""
        limit_bytes = self.part.settings.document_limit_bytes
        while True:
            size = len(window.data) if window.at_end else window.data.rfind(b"\n") + 1
            if size or window.at_end:
                return size
            if not window.grow(limit_bytes):
                raise DataError(
                    f"{self.part.file.path}, {self.name(window.position)} (byte {window.position}): "
                    f"a {self._unit} of more than {format_bytes(limit_bytes)}",
                    remedy="pass a larger `--memory` "
                    f"(one {self._unit} may take {round_up_to_mib(limit_bytes)} now), or split its text",
                )


def load_object(line: bytes) -> dict[str, object]:
    """A line by the standard library, which takes `NaN` and lone surrogates; what is not UTF-8 is replaced."""
    try:
        row: object = json.loads(line.decode("utf-8", "replace"))
    except RecursionError:
        raise BadLineError("nested too deeply") from None
    except ValueError as error:
        raise BadLineError(f"not valid JSON: {error}" if is_utf8(line) else NOT_UTF8) from None
    if not isinstance(row, dict):
        raise BadLineError("not a JSON object")
    return row


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each surrogate that stands alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_jsonl(part: Part) -> Iterator[Piece]:
    """The documents of a JSONL file, as pieces of block text."""
    lines = _TextLines(part)
    within = part.start.within
    for chunk in lines.chunks():
        yield from lines.pieces(chunk, within)
        within = 0
        del chunk  # its memory serves the next one


class _TextLines(JsonLines):
    """The lines of one file, of which one field is text."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        row = msgspec.defstruct(
            "Row", [("text", str)], rename={"text": part.settings.column}, gc=False
        )
        self._decode = msgspec.json.Decoder(row).decode

    def pieces(self, chunk: Chunk, within: int) -> Iterator[Piece]:
        """The pieces of some lines; `within` belongs to the first."""
        if not within and not is_long(len(chunk.data), self.part.settings):
            piece = self._fast_piece(chunk)
            if piece is not None:
                yield piece
                return
        position = chunk.position
        for line in _split_keeping(chunk.data):
            yield from self._line_pieces(line, position, within, chunk.done_bytes)
            position += len(line)
            within = 0

    def _fast_piece(self, chunk: Chunk) -> Piece | None:
        """All lines at once, or None if one of them is not a plain good row."""
        decode = self._decode
        try:
            texts = [decode(line).text for line in chunk.data.split(b"\n") if line]  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        filled = [text for text in texts if text] if "" in texts else texts
        delimiter = self.part.settings.delimiter
        return Piece(
            text=delimiter.decode().join([*filled, ""]).encode(),
            document_count=len(filled),
            after=self.part.cursor(chunk.position + len(chunk.data)),
            done_bytes=chunk.done_bytes,
            empty_count=len(texts) - len(filled),
        )

    def _line_pieces(
        self, line: bytes, position: int, within: int, done_bytes: int
    ) -> Iterator[Piece]:
        """The pieces of one line, by the policy for bad text."""
        after = self.part.cursor(position + len(line))
        if not line.strip():
            yield Piece(after=after, done_bytes=done_bytes)
            return
        try:
            text, reason = self._decode_line(line)
        except BadLineError as error:
            row = self._bad_line(error, position)
            yield Piece(after=after, done_bytes=done_bytes, bad=(row,), bad_count=1)
            return
        bad: tuple[BadRow, ...] = ()
        if reason and not within:
            bad = (self._bad_line(BadLineError(reason), position),)
        if not text:
            yield Piece(
                after=after, done_bytes=done_bytes, bad=bad, bad_count=len(bad), empty_count=1
            )
            return
        yield from row_pieces(
            text,
            self.part,
            start=self.part.cursor(position, within),
            after=after,
            done_bytes=done_bytes,
            bad=bad,
            name=str(self.part.file.path),
        )

    def _decode_line(self, line: bytes) -> tuple[bytes, str]:
        """The text of a line, and why it had to be repaired ("" if it was valid), or a `BadLineError`."""
        try:
            text: str = self._decode(line).text  # type: ignore[attr-defined]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # looked at closely below
        else:
            return text.encode(), ""
        column, row = self.part.settings.column, load_object(line)
        if column not in row:
            raise _MissingKeyError(row)
        value = row[column]
        if not isinstance(value, str):
            kind = _NestedError if isinstance(value, list | dict) else BadLineError
            raise kind(f"the value of {column!r} is {name_kind(value)}")
        reason = "" if is_utf8(line) else NOT_UTF8
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            reason = "a lone surrogate"
            encoded = replace_surrogates(value).encode()
        if reason and self.part.settings.bad_text != "replace":
            raise BadLineError(reason)
        return encoded, reason

    def _bad_line(self, error: BadLineError, position: int) -> BadRow:
        """The record of a bad line, or the error that the policy asks for."""
        if isinstance(error, _MissingKeyError):
            remedy = "pass `--column` with the key that holds the text"
            if suggested := suggest_examples(error.keys):
                as_text = _WRITE_TEXT if any(error.keys.values()) else remedy
                remedy = (
                    f"`lowtide tokenize` reads such rows with `{suggested}`; to take them as text, or to train "
                    f"a tokenizer, {as_text}"
                )
            else:
                remedy += ", or `--bad-text skip` if only some lines lack it"
            self.refuse_missing_key(self.part.settings.column, error.keys, position, remedy=remedy)
        refused = isinstance(error, _NestedError) and self.part.settings.bad_text == "fail"
        if refused and self.number(position) == 1:
            raise UsageError(
                f"{self.part.file.path}, {self.name(position)}: {error}",
                remedy=f"pass `--column` with a key that holds text, or {_WRITE_TEXT}",
            )
        return self.bad_row(str(error), position)


def _split_keeping(data: bytes) -> list[bytes]:
    """Lines with their newline. `splitlines`, which is faster, also parts them at carriage returns."""
    if b"\r" not in data:
        return data.splitlines(keepends=True)
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def _message_keys(value: object) -> list[str]:
    """The keys of the first message, if the value is a list of messages."""
    first = value[0] if isinstance(value, list) and value else None
    return list(first) if isinstance(first, dict) else []
