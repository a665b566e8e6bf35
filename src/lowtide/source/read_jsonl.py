"""Documents out of JSON lines: a fast way for a window of good lines, a careful one when anything is wrong
with it.

The fast way decodes only the one field and joins the window's texts at once. If a line fails, or is longer
than a block, the window is gone through line by line: each is decoded the same way and, failing that, by
the standard library (which takes `NaN`, and tells lone surrogates from broken JSON). So what a line gives
does not depend on its neighbours. Blank lines are ignored. Holds a window of lines, their decoded strings
and the joined text: about four times `block_bytes`; for one long line up to eight times its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from lowtide.errors import UsageError
from lowtide.source.blocks import BadRow, Piece, ReadSettings
from lowtide.source.examples.settings import suggest_examples
from lowtide.source.json_lines import BadLineError, JsonLines, load_object, mend_surrogates
from lowtide.source.parts import Part
from lowtide.source.rows import NOT_UTF8, cut_row, is_long
from lowtide.source.utf8 import is_utf8

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


class _MissingKeyError(BadLineError):
    def __init__(self, row: Mapping[str, object]) -> None:
        super().__init__("has no such key")
        self.keys = {key: _message_keys(value) for key, value in row.items()}


@dataclass(slots=True, kw_only=True)
class _Lines(JsonLines):
    """The lines of one file, and how to decode them."""

    decoder: msgspec.json.Decoder[msgspec.Struct] = field(init=False)

    def __post_init__(self) -> None:
        row = msgspec.defstruct(
            "Row", [("text", str)], rename={"text": self.settings.column}, gc=False
        )
        self.decoder = msgspec.json.Decoder(row)


def read_jsonl(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """The documents of a JSONL file, as pieces of block text."""
    lines = _Lines(part=part, settings=settings)
    within = part.within
    for chunk in lines.chunks():
        yield from _chunk_pieces(chunk.data, chunk.position, lines, within, chunk.done_bytes)
        within = 0
        del chunk  # its memory serves the next one


def _chunk_pieces(
    chunk: bytes, position: int, lines: _Lines, within: int, done_bytes: int
) -> Iterator[Piece]:
    if not within and not is_long(len(chunk), lines.settings):
        piece = _fast_piece(chunk, position, lines, done_bytes)
        if piece is not None:
            yield piece
            return
    for line in chunk.splitlines(keepends=True) if b"\r" not in chunk else _split_keeping(chunk):
        yield from _line_pieces(line, position, lines, within, done_bytes)
        position += len(line)
        within = 0


def _split_keeping(chunk: bytes) -> list[bytes]:
    """Lines with their newline. `splitlines` would also part them at carriage returns."""
    lines = [line + b"\n" for line in chunk.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def _fast_piece(chunk: bytes, position: int, lines: _Lines, done_bytes: int) -> Piece | None:
    """All lines at once, or None if one of them is not a plain good row."""
    decode = lines.decoder.decode
    try:
        texts = [decode(line).text for line in chunk.split(b"\n") if line]  # type: ignore[attr-defined]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    filled = [text for text in texts if text] if "" in texts else texts
    delimiter = lines.settings.delimiter
    return Piece(
        text=delimiter.decode().join([*filled, ""]).encode(),
        document_count=len(filled),
        after=lines.part.cursor(position + len(chunk)),
        done_bytes=done_bytes,
        empty_count=len(texts) - len(filled),
    )


def _line_pieces(
    line: bytes, position: int, lines: _Lines, within: int, done_bytes: int
) -> Iterator[Piece]:
    """What one line gives, by the policy for bad text."""
    part, settings = lines.part, lines.settings
    after = part.cursor(position + len(line))
    if not line.strip():
        yield Piece(after=after, done_bytes=done_bytes)
        return
    try:
        text, reason = _decode_line(line, lines)
    except BadLineError as error:
        row = _bad_line(error, position, lines)
        yield Piece(after=after, done_bytes=done_bytes, bad=(row,), bad_count=1)
        return
    bad: tuple[BadRow, ...] = ()
    if reason and not within:
        bad = (_bad_line(BadLineError(reason), position, lines),)
    if not text:
        yield Piece(after=after, done_bytes=done_bytes, bad=bad, bad_count=len(bad), empty_count=1)
        return
    for part_of_row in cut_row(text, settings, within=within, name=str(part.file.path)):
        yield Piece(
            text=part_of_row.text,
            document_count=0 if part_of_row.within else 1,
            after=part.cursor(position, part_of_row.within) if part_of_row.within else after,
            done_bytes=done_bytes,
            bad=bad,
            bad_count=len(bad),
        )
        bad = ()


def _decode_line(line: bytes, lines: _Lines) -> tuple[bytes, str]:
    """The text of a line, and why it had to be mended ("" if it had not)."""
    try:
        text: str = lines.decoder.decode(line).text  # type: ignore[attr-defined]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(line, lines.settings)
    return text.encode(), ""


def _decode_slowly(line: bytes, settings: ReadSettings) -> tuple[bytes, str]:
    """Decode with the standard library; raise what is wrong, or mend it where the policy says so."""
    value = _find_value(line, settings.column)
    if not isinstance(value, str):
        kind = "null" if value is None else _JSON_NAMES.get(type(value), "not text")
        raise BadLineError(f"the value of {settings.column!r} is {kind}")
    reason = "" if is_utf8(line) else NOT_UTF8
    try:
        text = value.encode()
    except UnicodeEncodeError:
        reason = "a lone surrogate"
        text = mend_surrogates(value).encode()
    if reason and settings.bad_text != "replace":
        raise BadLineError(reason)
    return text, reason


def _message_keys(value: object) -> list[str]:
    """The keys of the first message, if the value is a list of messages."""
    first = value[0] if isinstance(value, list) and value else None
    return list(first) if isinstance(first, dict) else []


def _find_value(line: bytes, column: str) -> object:
    row = load_object(line)
    if column not in row:
        raise _MissingKeyError(row)
    return row[column]


def _bad_line(error: BadLineError, position: int, lines: _Lines) -> BadRow:
    """The record of a bad line, or the error that the policy asks for."""
    settings = lines.settings
    path, number = lines.part.file.path, lines.number(position)
    if isinstance(error, _MissingKeyError) and (number == 1 or settings.bad_text == "fail"):
        keys = ", ".join(error.keys) or "none"
        remedy = (
            "pass `--column` with the key that holds the text, "
            "or `--bad-text skip` if only some lines lack it"
        )
        if suggested := suggest_examples(error.keys):
            remedy = f"`lowtide tokenize` reads such rows with `{suggested}`; for text, {remedy}"
        raise UsageError(
            f"{path}, line {number}: no key {settings.column!r}; its keys are: {keys}",
            remedy=remedy,
        )
    return lines.bad_row(str(error), position)
