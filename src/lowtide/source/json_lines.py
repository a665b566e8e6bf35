"""What readers of JSON lines share: windows of whole lines, their numbers, and one line looked at slowly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.errors import DataError
from lowtide.source.blocks import BadRow, ReadSettings
from lowtide.source.byte_stream import ByteWindow, open_stream
from lowtide.source.parts import Part
from lowtide.source.read_text import begin_reading
from lowtide.source.rows import NOT_UTF8
from lowtide.source.utf8 import is_utf8
from lowtide.units import MIB, format_bytes, round_up_to_mib


class BadLineError(Exception):
    """What is wrong with a line; the policy decides what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some whole lines of a file."""

    data: bytes
    position: int
    """The byte at which they begin."""
    done_bytes: int


@dataclass(slots=True, kw_only=True)
class JsonLines:
    """The lines of one part of a file, and which number a byte offset has."""

    part: Part
    settings: ReadSettings
    counted_to: int = 0
    counted: int = 1
    held: bytes = b""
    """The lines that are being read, of a stream: it cannot be gone through again to count them."""

    def chunks(self) -> Iterator[Chunk]:
        """Whole lines, about a block at a time; one that is longer alone."""
        part, settings = self.part, self.settings
        with open_stream(
            part.file, position=part.position, window_limit_bytes=settings.document_limit_bytes
        ) as stream:
            window = ByteWindow(stream, position=part.position, end=part.content_end)
            begin_reading(window, part.file, settings.block_bytes)
            while not window.at_end or window.data:
                self._let_go()
                window.fill(settings.block_bytes)
                yield self._take(window, self._whole_lines(window))

    def number(self, position: int) -> int:
        """The number, from 1, of the line at an offset. Newlines are counted when first asked for."""
        limit_bytes = self.settings.document_limit_bytes
        start = self.counted_to
        if position == start:
            return self.counted
        if self.part.file.is_stdin:
            return self.counted + self.held.count(b"\n", 0, position - start)
        with open_stream(self.part.file, position=start, window_limit_bytes=limit_bytes) as stream:
            window = ByteWindow(stream, position=start, end=position)
            while not window.at_end:
                window.fill(MIB)
                self.counted += window.data.count(b"\n")
                window.drop(len(window.data))
        self.counted_to = position
        return self.counted

    def bad_row(self, reason: str, position: int) -> BadRow:
        """The record of a bad line, or the error that the policy asks for."""
        path, number = self.part.file.path, self.number(position)
        if self.settings.bad_text == "fail":
            raise DataError(
                f"{path}, line {number} (byte {position}): {reason}",
                remedy="pass `--bad-text skip` to leave such lines out and count them, or mend the file",
            )
        return BadRow(file=str(path), position=number, unit="line", reason=reason)

    def _take(self, window: ByteWindow, size: int) -> Chunk:
        """The window's first bytes. A function, so that nobody but the reader holds on to them."""
        data, position = window.data[:size], window.position
        window.drop(size)
        if self.part.file.is_stdin:
            self.held, self.counted_to = data, position
        return Chunk(data=data, position=position, done_bytes=window.done_bytes())

    def _let_go(self) -> None:
        """Count the lines that were held, before others are."""
        self.counted += self.held.count(b"\n")
        self.counted_to += len(self.held)
        self.held = b""

    def _whole_lines(self, window: ByteWindow) -> int:
        """How many bytes of whole lines the window holds; it is made longer until it holds one."""
        limit_bytes = self.settings.document_limit_bytes
        while True:
            size = len(window.data) if window.at_end else window.data.rfind(b"\n") + 1
            if size or window.at_end:
                return size
            if not window.grow(limit_bytes):
                raise DataError(
                    f"{self.part.file.path}, line {self.number(window.position)} (byte {window.position}): "
                    f"a line of more than {format_bytes(limit_bytes)}",
                    remedy="pass a larger `--memory` "
                    f"(one line may take {round_up_to_mib(limit_bytes)} now), or split the line's text",
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


def mend_surrogates(text: str) -> str:
    """The text with U+FFFD for each surrogate that stands alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
