"""Blocks out of text files: the file's own bytes, cut behind the last whole document.

    window     ...end of one<|endoftext|>a whole one<|endoftext|>the start of a th
    piece      ...end of one<|endoftext|>a whole one<|endoftext|>
    left over                                                    the start of a th

A document longer than a window is cut at safe cuts, a block at a time. A byte order mark at the file's
start is dropped. Holds one window of `block_bytes`, or as much as the longest stretch without a safe cut,
and the piece made from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from lowtide.errors import DataError
from lowtide.source.blocks import (
    FIRST_PIECE_BYTES,
    LISTED_BAD_ROWS,
    BadRow,
    Piece,
    ReadSettings,
)
from lowtide.source.byte_stream import ByteWindow, open_stream
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.parts import Part
from lowtide.source.recognise import SNIFFED_BYTES, recognise, recognise_stream, refuse_foreign
from lowtide.source.safe_cuts import last_safe_cut
from lowtide.source.scan_ahead import open_scout, scan_document, uncuttable
from lowtide.source.separators import Separator, choose_separator
from lowtide.source.utf8 import (
    bad_places,
    first_bad_byte,
    is_utf8,
    replace_bad,
)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clean:
    """Bytes that follow the policy for bad text, and what had to be done to them."""

    data: bytes
    bad: tuple[BadRow, ...] = ()
    bad_count: int = 0


def describe_skip(settings: ReadSettings, inputs: Sequence[InputFile]) -> str | None:
    """What `--bad-text skip` takes away from text files, where that is more than a line; else None."""
    reads_text = any(file.kind is InputKind.TEXT for file in inputs)
    if settings.bad_text != "skip" or settings.separator == "line" or not reads_text:
        return None
    whole = "text file" if settings.separator == "file" else "document of a text file"
    return (
        f"a {whole} with bytes that are not UTF-8 is left out whole; `--separator line` leaves out the line "
        "alone, `--bad-text replace` replaces the bytes"
    )


def read_text(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """The documents of a text file, as pieces of block text."""
    separator = choose_separator(settings.separator, settings.delimiter)
    rule = replace(
        settings.cut_rule, unsplittable=settings.cut_rule.unsplittable + separator.unsplittable
    )
    settings = replace(settings, cut_rule=rule)
    limit_bytes = settings.document_limit_bytes
    with (
        ExitStack() as scouts,
        open_stream(part.file, position=part.position, window_limit_bytes=limit_bytes) as stream,
    ):
        window = ByteWindow(stream, position=part.position, end=part.content_end)
        begin_reading(window, part.file, settings.block_bytes)
        if window.at_end and not window.data and not part.position:
            yield Piece(after=part.cursor(0), done_bytes=window.done_bytes(), empty_count=1)
            return
        yield from _pieces(part, settings, separator, window, scouts)


def begin_reading(window: ByteWindow, file: InputFile, block_bytes: int) -> None:
    """Fill the window for the first time, and move past the mark some editors put at a file's start.

    A stream is looked at here for the first time, and refused if it is not text.
    """
    window.fill(max(block_bytes, len(BYTE_ORDER_MARK)))
    if window.position:
        return
    if file.is_stdin:
        stated = file.kind if file.stated else None
        found = recognise_stream(window.data[:SNIFFED_BYTES], stated=stated)
        refuse_foreign(str(file.path), found)
    elif file.compression:  # its window may have been too large to look at before
        refuse_foreign(str(file.path), recognise(window.data[:SNIFFED_BYTES], stated=file.kind))
    if window.data.startswith(BYTE_ORDER_MARK):
        window.drop(len(BYTE_ORDER_MARK))


def _pieces(
    part: Part, settings: ReadSettings, separator: Separator, window: ByteWindow, scouts: ExitStack
) -> Iterator[Piece]:
    within = part.within
    scout: ByteWindow | None = None
    while True:
        window.fill(settings.block_bytes)
        whole_bytes = separator.end_of_last(window.data, inside=within > 0)
        if window.at_end:
            yield _whole_documents(part, settings, separator, window, within, len(window.data))
            return
        if whole_bytes:
            yield _whole_documents(part, settings, separator, window, within, whole_bytes)
            within = 0
            continue
        cut = _find_cut(part, settings, separator, window, within)
        if cut and not within and settings.bad_text == "skip":
            scout = scout or scouts.enter_context(open_scout(part, window.position, settings))
            skipped = _skip_if_bad(part, settings, separator, window, scout)
            if skipped is not None:
                yield skipped
                continue
        if cut:
            yield _part_of_document(part, settings, window, within, cut)
            within += cut


def _whole_documents(
    part: Part,
    settings: ReadSettings,
    separator: Separator,
    window: ByteWindow,
    within: int,
    count: int,
) -> Piece:
    """The next `count` bytes, which end a document."""
    clean = _follow_policy(part, settings, separator, window, count)
    converted = separator.convert(clean.data, inside=within > 0, at_end=window.at_end)
    window.drop(count)
    return Piece(
        text=converted.text,
        document_count=converted.document_count,
        after=part.cursor(window.position),
        done_bytes=window.done_bytes(),
        bad=clean.bad,
        bad_count=clean.bad_count,
        empty_count=converted.empty_count,
    )


def _part_of_document(
    part: Part, settings: ReadSettings, window: ByteWindow, within: int, cut: int
) -> Piece:
    """The next `cut` bytes, behind which the document goes on."""
    if settings.bad_text == "skip":  # the whole document was checked before
        settings = replace(settings, bad_text="fail")
    clean = _follow_policy(part, settings, None, window, cut)
    window.drop(cut)
    return Piece(
        text=clean.data,
        after=part.cursor(window.position, within + cut),
        done_bytes=window.done_bytes(),
        bad=clean.bad,
        bad_count=clean.bad_count,
    )


def _find_cut(
    part: Part, settings: ReadSettings, separator: Separator, window: ByteWindow, within: int
) -> int:
    """The last safe cut in a window that grows until it has one; 0 if the document ends first."""
    lowest = 1 if within else FIRST_PIECE_BYTES
    margin = 4 + max(map(len, settings.cut_rule.unsplittable), default=0)
    while True:
        cut = last_safe_cut(window.data, settings.cut_rule, at_least=lowest)
        if cut:
            return cut
        # Near the window's end a cut may have been refused only for want of what follows.
        lowest = max(lowest, len(window.data) - margin)
        if not window.grow(settings.document_limit_bytes):
            raise uncuttable(window, settings.document_limit_bytes, str(part.file.path))
        if window.at_end or separator.end_of_last(window.data, inside=within > 0):
            return 0


def _skip_if_bad(
    part: Part, settings: ReadSettings, separator: Separator, window: ByteWindow, scout: ByteWindow
) -> Piece | None:
    """Look through the long document ahead; if it is damaged, move behind it and say so."""
    scout.skip_to(window.position)
    scan = scan_document(scout, separator, settings, name=str(part.file.path))
    if scan.first_bad is None:
        return None
    window.skip_to(scan.end)
    return Piece(
        after=part.cursor(scan.end),
        done_bytes=window.done_bytes(),
        bad=(_bad_row(part, scan.first_bad),),
        bad_count=1,
    )


def _follow_policy(
    part: Part,
    settings: ReadSettings,
    separator: Separator | None,
    window: ByteWindow,
    count: int,
) -> _Clean:
    """The next `count` bytes as UTF-8. What is damaged is refused, replaced, or left out by whole documents."""
    data = window.data[:count]
    if is_utf8(data):
        return _Clean(data=data)
    if settings.bad_text == "replace":
        fixed, bad_count = replace_bad(data)
        places = bad_places(data)
        bad = tuple(_bad_row(part, window.position + place) for place in places)
        return _Clean(data=fixed, bad=bad, bad_count=bad_count)
    if settings.bad_text == "skip" and separator is not None:
        return _without_bad_documents(part, separator, data, window.position)
    raise _not_utf8(part, data, window.position)


def _without_bad_documents(part: Part, separator: Separator, data: bytes, position: int) -> _Clean:
    """The documents that are valid, with their separators."""
    ends = [match.end() for match in separator.pattern.finditer(data)] if separator.pattern else []
    if not ends or ends[-1] < len(data):
        ends.append(len(data))
    kept: list[bytes] = []
    bad: list[BadRow] = []
    start = 0
    for end in ends:
        document = data[start:end]
        place = first_bad_byte(document)
        if place is None:
            kept.append(document)
        else:
            bad.append(_bad_row(part, position + start + place))
        start = end
    return _Clean(data=b"".join(kept), bad=tuple(bad[:LISTED_BAD_ROWS]), bad_count=len(bad))


def _bad_row(part: Part, offset: int) -> BadRow:
    return BadRow(file=str(part.file.path), position=offset, unit="byte", reason="not valid UTF-8")


def _not_utf8(part: Part, data: bytes, position: int) -> DataError:
    place = first_bad_byte(data) or 0
    return DataError(
        f"{part.file.path}: byte 0x{data[place]:02x} is not valid UTF-8, at byte {position + place}",
        remedy="pass `--bad-text replace`, or `--bad-text skip` to leave out the whole document, or convert "
        "the file to UTF-8",
    )
