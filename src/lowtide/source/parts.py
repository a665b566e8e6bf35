"""A file, or the two parts of it when the tail split falls inside.

The border of the two is found before reading, from the bytes around the requested place alone, so it is the
same at any block size and after any crash. Then each part is read like a file that ends where the part
ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from lowtide.errors import DataError, UsageError
from lowtide.source.blocks import BadRow, Cursor, ReadSettings
from lowtide.source.byte_stream import ByteWindow, open_window
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.separators import choose_separator
from lowtide.units import KIB

_BORDER_SEARCH_BYTES = 64 * KIB
_NEWLINE = re.compile(rb"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of one file that is read from front to back, and how to read it."""

    file: InputFile
    settings: ReadSettings
    start: Cursor
    end: int | None = None
    """Where it ends although the file goes on; None: at the file's end."""
    held_out: bool = False

    @property
    def content_end(self) -> int | None:
        """The last byte to read; None where only reading tells."""
        if self.end is None and not self.file.compression and self.file.stream is None:
            return self.file.size_bytes
        return self.end

    @property
    def after(self) -> Cursor:
        """Where reading resumes when the part is done."""
        if self.end is None:
            return Cursor(file=self.start.file + 1, position=0)
        return self.cursor(self.end)

    def cursor(self, position: int, within: int = 0) -> Cursor:
        """A place inside."""
        return Cursor(file=self.start.file, position=position, within=within)

    def wanted_rows(self, first_row: int, count: int) -> range:
        """Which of the `count` rows of a batch that begins at `first_row` of the file belong to the part."""
        stop = count if self.end is None else min(count, self.end - first_row)
        return range(max(0, self.start.position - first_row), stop)

    def bad_row(
        self, unit: Literal["line", "row"], number: int, reason: str, *, said_before: str = ": "
    ) -> BadRow:
        """The record of a bad line or row, counted from 1, or the error that the policy asks for.

        The error says the place, `said_before` and the reason."""
        if self.settings.bad_text == "fail":
            raise DataError(
                f"{self.file.path}, {unit} {number}{said_before}{reason}",
                remedy=f"pass `--bad-text skip` to leave such {unit}s out and count them, "
                "`--bad-text replace` to replace bytes that are not UTF-8, or fix the input",
            )
        return BadRow(file=str(self.file.path), position=number, unit=unit, reason=reason)


def parts_from(start: Cursor, file: InputFile, settings: ReadSettings) -> list[Part]:
    """What there is to read of a file from a cursor on."""
    whole = Part(file=file, settings=settings, start=start)
    tail = settings.tail
    if tail is None or start.file < tail.file:
        return [whole]
    if start.file > tail.file:
        return [replace(whole, held_out=True)]
    border = _find_border(file, settings, tail.position)
    if start.position >= border:
        return [replace(whole, held_out=True)]
    return [
        replace(whole, end=border),
        replace(whole, start=whole.cursor(border), held_out=True),
    ]


def _find_border(file: InputFile, settings: ReadSettings, asked: int) -> int:
    """Where the first part ends, at or after `asked`: a row, a line, a document, or any character."""
    if asked <= 0 or file.kind in (InputKind.PARQUET, InputKind.ARROW):
        return max(asked, 0)
    if file.stream is not None:
        raise UsageError(
            f"the tail of {file.stream.name} is not known while it is read",
            remedy="use `--split hash`, or save the input to a file",
        )
    before = 1  # a separator that ends at `asked` counts, and its last bytes must be seen
    if file.kind is InputKind.TEXT and settings.separator not in ("file", "line", "blank-line"):
        before = len(settings.separator.encode())
    start = max(0, asked - before)
    content_end = None if file.compression else file.size_bytes
    if content_end is not None and asked >= content_end:
        return content_end
    limit_bytes = settings.document_limit_bytes
    with open_window(file, position=start, end=content_end, limit_bytes=limit_bytes) as window:
        if file.kind is InputKind.JSONL:
            return _next_line(window)
        window.fill(before + _BORDER_SEARCH_BYTES)
        separator = choose_separator(settings.separator, settings.delimiter)
        return start + _forced_border(window.data, asked - start, separator.pattern)


def _next_line(window: ByteWindow) -> int:
    """Where the next line starts, however long this one is."""
    while True:
        window.fill(_BORDER_SEARCH_BYTES)
        newline = window.data.find(b"\n")
        if newline >= 0:
            return window.position + newline + 1
        window.drop(len(window.data))
        if window.at_end:
            return window.position


def _forced_border(data: bytes, asked: int, pattern: re.Pattern[bytes] | None) -> int:
    """After the next separator; else after the next newline; else at the next whole character."""
    for expression in (pattern, _NEWLINE):
        for found in expression.finditer(data) if expression else ():
            if found.end() >= asked:  # one that ends earlier was only seen for looking back
                return found.end()
    while asked < len(data) and data[asked] & 0xC0 == 0x80:
        asked += 1
    return asked
