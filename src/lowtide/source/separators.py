"""How documents lie in a text file: the kinds of separators, which all answer the same two questions.

`end_of_last(data)` says how far whole documents reach; `convert(data)` turns them into block text. Neither
makes an object per document on the common path: a literal separator that is also the delimiter passes the
file's own bytes through.

    "file"         the whole file is one document
    "line"         one a line; a carriage return before the newline is dropped
    "blank-line"   separated by lines that are empty or ASCII white space; the line end before them goes too
    anything else  that text itself, found from left to right
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

import numpy as np

from lowtide.errors import UsageError

MARKER = b"\x00<|lowtide-document|>"
"""Stands between documents where the input has no separator that can serve."""

_NAMES = ("file", "line", "blank-line")
_MEANT = {
    "newline": "line",
    "paragraph": "blank-line",
    "paragraphs": "blank-line",
    "document": "file",
}
_WORDS = re.compile(r"[a-z]+(?:-[a-z]+)*")
_ESCAPES = re.compile(r"(?:\\[nrt])+")
_NEWLINE = re.compile(rb"\n")
_SPACE = rb"[ \t\r\x0b\x0c]"
_BLANK_LINES = re.compile(rb"\n(?:" + _SPACE + rb"*+\n)+")
_LEADING_BLANK_LINES = re.compile(rb"(?:" + _SPACE + rb"*+\n)*+")
_UNFINISHED_BLANK_LINE = re.compile(rb"\n" + _SPACE + rb"*+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Documents as block text, each followed by the delimiter."""

    text: bytes
    document_count: int
    empty_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Separator:
    """What separates the documents of a text file; this one: nothing but the file's end."""

    delimiter: bytes
    pattern: re.Pattern[bytes] | None = None
    """Finds a separator; None where only the file's end is one."""
    unsplittable: tuple[bytes, ...] = ()
    """Byte strings that no cut may fall into."""

    def end_of_last(self, data: bytes, *, inside: bool) -> int:  # noqa: ARG002
        """Offset just after the last whole separator, or 0. `inside`: a document was begun before."""
        return 0

    def convert(self, data: bytes, *, inside: bool, at_end: bool) -> Converted:  # noqa: ARG002
        """Block text of data that ends with a separator, or at the end of the file."""
        if not data and not inside:
            return Converted(text=b"", document_count=0)
        return Converted(text=data + self.delimiter, document_count=1)

    def unfinished_bytes(self, data: bytes) -> int:  # noqa: ARG002
        """The number of bytes at the end that may be the beginning of a separator."""
        return 0


def default_delimiter(separator: str) -> bytes:
    """The bytes to put behind each document: the input's own separator if possible.

    A literal that overlaps itself, such as `----`, cannot: "a-" followed by it would read as "a" and more.
    """
    if separator == "line":
        return b"\n"
    if separator in ("file", "blank-line"):
        return MARKER
    literal = literal_bytes(separator)
    return MARKER if overlaps_itself(literal) else literal


def refuse_misspelt(separator: str) -> None:
    """UsageError for a literal that was most likely meant as something else."""
    if _ESCAPES.fullmatch(separator):
        raise UsageError(
            f"the separator {separator} is backslashes and letters, not line ends",
            remedy=f"in bash, write `--separator $'{separator}'`; or use `line` or `blank-line`",
        )
    if separator in _NAMES or not _WORDS.fullmatch(separator):
        return  # `file:` or `DOCUMENT` may well stand between documents
    meant = _MEANT.get(separator) or next(
        iter(difflib.get_close_matches(separator, _NAMES, n=1, cutoff=0.8)), None
    )
    if meant is not None:
        raise UsageError(
            f"{separator!r} is not a kind of separator",
            remedy=f"did you mean `--separator {meant}`?",
        )


def literal_bytes(separator: str) -> bytes:
    """The UTF-8 bytes of a literal separator."""
    try:
        literal = separator.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the separator {separator!r} is not valid Unicode", remedy="write it as UTF-8 text"
        ) from error
    if not literal:
        raise UsageError(
            "an empty separator separates nothing",
            remedy="use `--separator file`, or name a text such as `<|endoftext|>`",
        )
    return literal


def overlaps_itself(literal: bytes) -> bool:
    """Whether it begins the way it ends: then two occurrences can share bytes."""
    return any(literal.startswith(literal[start:]) for start in range(1, len(literal)))


def choose_separator(separator: str, delimiter: bytes) -> Separator:
    """The kind of separator a setting names."""
    if separator == "file":
        return Separator(delimiter=delimiter)
    if separator == "line":
        return _LineEnd(delimiter=delimiter, pattern=_NEWLINE)
    if separator == "blank-line":
        return _BlankLine(delimiter=delimiter, pattern=_BLANK_LINES)
    literal = literal_bytes(separator)
    return _LiteralText(
        delimiter=delimiter,
        pattern=re.compile(re.escape(literal)),
        unsplittable=(literal,),
        literal=literal,
        overlapping=overlaps_itself(literal),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineEnd(Separator):
    """Every line is a document."""

    def end_of_last(self, data: bytes, *, inside: bool) -> int:  # noqa: ARG002
        return data.rfind(b"\n") + 1

    def convert(self, data: bytes, *, inside: bool, at_end: bool) -> Converted:
        if at_end and (data or inside) and not data.endswith(b"\n"):
            data += b"\n"
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        octets = np.frombuffer(data, dtype=np.uint8)
        newlines = octets == ord(b"\n")
        empty = newlines.copy()  # a newline behind a newline, or where no document was begun
        empty[1:] &= newlines[:-1]
        empty[:1] &= not inside
        empty_count = int(np.count_nonzero(empty))
        if empty_count:
            data = octets[~empty].tobytes()
        if self.delimiter != b"\n":
            data = data.replace(b"\n", self.delimiter)
        return Converted(
            text=data,
            document_count=int(np.count_nonzero(newlines)) - empty_count,
            empty_count=empty_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlankLine(Separator):
    """Paragraphs: blank lines separate them, and blank lines at a document's start are not part of it."""

    def end_of_last(self, data: bytes, *, inside: bool) -> int:
        newline = data.rfind(b"\n")
        while newline >= 0:
            before = data.rfind(b"\n", 0, newline)
            if before < 0 and inside:
                return 0  # the line began in an earlier piece: it is not blank
            if not data[before + 1 : newline].strip():
                return newline + 1
            newline = before
        return 0

    def convert(self, data: bytes, *, inside: bool, at_end: bool) -> Converted:
        if at_end and (data or inside):
            data += b"\n\n"
        match = None if inside else _LEADING_BLANK_LINES.match(data)
        if match is not None:
            data = data[match.end() :]
        documents = _BLANK_LINES.split(data)
        text = self.delimiter.join(documents).replace(b"\r" + self.delimiter, self.delimiter)
        return Converted(text=text, document_count=len(documents) - 1)

    def unfinished_bytes(self, data: bytes) -> int:
        match = _UNFINISHED_BLANK_LINE.search(data)
        return len(data) - match.start() if match else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiteralText(Separator):
    """Documents are what lies between occurrences of a text, exactly."""

    literal: bytes
    overlapping: bool
    """Whether two occurrences can share bytes."""

    def end_of_last(self, data: bytes, *, inside: bool) -> int:  # noqa: ARG002
        if not self.overlapping:
            start = data.rfind(self.literal)
            return start + len(self.literal) if start >= 0 else 0
        last = len(data.split(self.literal)[-1])  # from the right, "a---" would part elsewhere
        return len(data) - last if last < len(data) else 0

    def convert(self, data: bytes, *, inside: bool, at_end: bool) -> Converted:
        literal = self.literal
        rest = data[self.end_of_last(data, inside=inside) :] if at_end else b""
        whole = data[: len(data) - len(rest)]
        begins_empty = whole.startswith(literal) and not inside
        if begins_empty or literal + literal in whole:
            converted = self._without_empty(whole, inside=inside)
        else:
            text = whole if literal == self.delimiter else whole.replace(literal, self.delimiter)
            converted = Converted(text=text, document_count=whole.count(literal))
        if not rest and not (at_end and inside and not whole):
            return converted
        return Converted(
            text=converted.text + rest + self.delimiter,
            document_count=converted.document_count + 1,
            empty_count=converted.empty_count,
        )

    def _without_empty(self, data: bytes, *, inside: bool) -> Converted:
        documents = data.split(self.literal)[:-1]
        kept = [
            document
            for index, document in enumerate(documents)
            if document or (inside and index == 0)
        ]
        return Converted(
            text=self.delimiter.join([*kept, b""]),
            document_count=len(kept),
            empty_count=len(documents) - len(kept),
        )

    def unfinished_bytes(self, data: bytes) -> int:
        return min(len(self.literal) - 1, len(data))
