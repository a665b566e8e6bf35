"""Is a long document valid to its end? Asked before its first piece is given out, when bad ones are to be
skipped.

A second handle runs ahead of the reader and never back, so a file is read at most twice, compressed or not.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lowtide.errors import DataError
from lowtide.source.blocks import ReadSettings
from lowtide.source.byte_stream import ByteWindow, open_stream
from lowtide.source.parts import Part
from lowtide.source.separators import Separator
from lowtide.units import format_bytes, round_up_to_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What lies ahead of the reader."""

    first_bad: int | None
    """Offset in the file of the first byte that is not UTF-8."""
    end: int
    """Offset just after the document and its separator."""


@contextmanager
def open_scout(part: Part, position: int, settings: ReadSettings) -> Iterator[ByteWindow]:
    """A second window on the part's file, from `position` on."""
    if part.file.is_stdin:
        raise DataError(
            "a document on standard input is longer than a block: it cannot be checked before it is used",
            remedy="use `--bad-text replace` or `--bad-text fail`, or save the input to a file",
        )
    limit_bytes = settings.document_limit_bytes
    with open_stream(part.file, position=position, window_limit_bytes=limit_bytes) as stream:
        yield ByteWindow(stream, position=position, end=part.content_end)


def scan_document(
    scout: ByteWindow, separator: Separator, settings: ReadSettings, *, name: str
) -> Scan:
    """Check the document that starts where the scout stands; the scout is left behind it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    first_bad: int | None = None
    while True:
        scout.fill(settings.block_bytes)
        found = separator.pattern.search(scout.data) if separator.pattern else None
        checked = found.start() if found else len(scout.data)
        if not found and not scout.at_end:
            checked -= separator.unfinished_bytes(scout.data)
        is_last = found is not None or scout.at_end
        if first_bad is None:
            first_bad = _first_bad(decoder, scout, checked, is_last=is_last)
        scout.drop(found.end() if found else checked)
        if is_last:
            return Scan(first_bad=first_bad, end=scout.position)
        if not checked and not scout.grow(settings.document_limit_bytes):
            raise uncuttable(scout, settings.document_limit_bytes, name)


def _first_bad(
    decoder: codecs.IncrementalDecoder, scout: ByteWindow, checked: int, *, is_last: bool
) -> int | None:
    held = len(decoder.getstate()[0])  # bytes of a character that the last window broke off
    try:
        decoder.decode(scout.data[:checked], final=is_last)
    except UnicodeDecodeError as error:
        return scout.position - held + error.start
    return None


def uncuttable(window: ByteWindow, limit_bytes: int, name: str) -> DataError:
    """The error for a stretch that can neither be held whole nor cut."""
    return DataError(
        f"{name}: more than {format_bytes(limit_bytes)} from byte {window.position} on without a place "
        "where the text could be cut without changing its tokens",
        remedy=f"pass a larger `--memory` (one piece may take {round_up_to_mib(limit_bytes)} now), "
        "or name the `--separator` that ends the documents",
    )
