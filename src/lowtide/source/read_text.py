"""Blocks out of text files: the file's own bytes, cut behind the last whole document.

    window     ...end of one<|endoftext|>a whole one<|endoftext|>the start of a th
    piece      ...end of one<|endoftext|>a whole one<|endoftext|>
    left over                                                    the start of a th

A document longer than a window is cut at safe cuts, a block at a time. Where bad documents are to be
skipped, a second window runs ahead and checks a long one to its end before its first piece is given out; it
never goes back, so a file is read at most twice, compressed or not. A byte order mark at the file's start is
dropped. Holds one window of `block_bytes`, or as much as the longest stretch without a safe cut, and the
piece made from it.
"""

from __future__ import annotations

import codecs
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
from lowtide.source.byte_stream import ByteWindow, open_window
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.parts import Part
from lowtide.source.recognise import SNIFFED_BYTES, recognise, recognise_stream, refuse_foreign
from lowtide.source.safe_cuts import last_safe_cut
from lowtide.source.separators import choose_separator
from lowtide.source.utf8 import (
    bad_places,
    first_bad_byte,
    is_utf8,
    replace_bad,
)
from lowtide.units import format_bytes, round_up_to_mib

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clean:
    """Bytes that follow the policy for bad text, and what had to be done to them."""

    data: bytes
    bad: tuple[BadRow, ...] = ()
    bad_count: int = 0


def describe_skip(settings: ReadSettings, inputs: Sequence[InputFile]) -> str | None:
    """A note on what `--bad-text skip` removes from text files, if that is more than a line; else None."""
    reads_text = any(file.kind is InputKind.TEXT for file in inputs)
    if settings.bad_text != "skip" or settings.separator == "line" or not reads_text:
        return None
    whole = "text file" if settings.separator == "file" else "document of a text file"
    return (
        f"a {whole} with bytes that are not UTF-8 is left out whole; `--separator line` leaves out the line "
        "alone, `--bad-text replace` replaces the bytes"
    )


def read_text(part: Part) -> Iterator[Piece]:
    """The documents of a text file, as pieces of block text."""
    with ExitStack() as windows:
        yield from _TextReader(part, windows).pieces()


def begin_reading(window: ByteWindow, part: Part) -> None:
    """Fill the window for the first time, and drop a byte order mark.

    A stream is looked at here for the first time, and refused if it is not text.
    """
    file = part.file
    window.fill(max(part.settings.block_bytes, len(BYTE_ORDER_MARK)))
    if window.position:
        return
    if file.stream is not None:
        stated = file.kind if file.stated else None
        found = recognise_stream(window.data[:SNIFFED_BYTES], stated=stated)
        refuse_foreign(str(file.path), found)
    elif file.compression:  # its window may have been too large to look at before
        refuse_foreign(str(file.path), recognise(window.data[:SNIFFED_BYTES], stated=file.kind))
    if window.data.startswith(BYTE_ORDER_MARK):
        window.drop(len(BYTE_ORDER_MARK))


class _TextReader:
    """The windows on a part of a text file, and what parts its documents."""

    def __init__(self, part: Part, windows: ExitStack) -> None:
        self._part = part
        self._settings = part.settings
        self._windows = windows
        self._separator = choose_separator(part.settings.separator, part.settings.delimiter)
        rule = part.settings.cut_rule
        unsplittable = rule.unsplittable + self._separator.unsplittable
        self._cut_rule = replace(rule, unsplittable=unsplittable)
        self._window = self._open(part.start.position)
        self._scout: ByteWindow | None = None
        self._within = part.start.within
        """Bytes of the current document that were given out before."""

    def pieces(self) -> Iterator[Piece]:
        """The pieces of the part."""
        window, position = self._window, self._part.start.position
        begin_reading(window, self._part)
        if window.at_end and not window.data and not position:
            yield self._piece(_Clean(data=b""), empty_count=1)
            return
        while True:
            window.fill(self._settings.block_bytes)
            whole_bytes = self._end_of_last()
            if window.at_end:
                yield self._whole_documents(len(window.data))
                return
            if whole_bytes:
                yield self._whole_documents(whole_bytes)
                continue
            cut = self._find_cut()
            if cut and not self._within and self._settings.bad_text == "skip":
                skipped = self._skip_if_bad()
                if skipped is not None:
                    yield skipped
                    continue
            if cut:
                yield self._start_of_document(cut)

    def _open(self, position: int) -> ByteWindow:
        part, limit_bytes = self._part, self._settings.document_limit_bytes
        return self._windows.enter_context(
            open_window(part.file, position=position, end=part.content_end, limit_bytes=limit_bytes)
        )

    def _end_of_last(self) -> int:
        """Where the last whole document of the window ends, or 0."""
        return self._separator.end_of_last(self._window.data, inside=self._within > 0)

    def _piece(
        self, clean: _Clean, text: bytes = b"", document_count: int = 0, empty_count: int = 0
    ) -> Piece:
        """A piece with this text, up to where the window now stands."""
        return Piece(
            text=text,
            document_count=document_count,
            after=self._part.cursor(self._window.position, self._within),
            done_bytes=self._window.done_bytes(),
            bad=clean.bad,
            bad_count=clean.bad_count,
            empty_count=empty_count,
        )

    def _whole_documents(self, count: int) -> Piece:
        """The next `count` bytes, which end a document."""
        window = self._window
        clean = self._clean(count, may_skip=True)
        converted = self._separator.convert(
            clean.data, inside=self._within > 0, at_end=window.at_end
        )
        window.drop(count)
        self._within = 0
        return self._piece(clean, converted.text, converted.document_count, converted.empty_count)

    def _start_of_document(self, cut: int) -> Piece:
        """The next `cut` bytes of a document that goes on behind them."""
        clean = self._clean(cut, may_skip=False)  # skipping was decided for the whole document
        self._window.drop(cut)
        self._within += cut
        return self._piece(clean, clean.data)

    def _find_cut(self) -> int:
        """The last safe cut in a window that grows until it has one; 0 if the document ends first."""
        window, limit_bytes = self._window, self._settings.document_limit_bytes
        lowest = 1 if self._within else FIRST_PIECE_BYTES
        margin = 4 + max(map(len, self._cut_rule.unsplittable), default=0)
        while True:
            cut = last_safe_cut(window.data, self._cut_rule, at_least=lowest)
            if cut:
                return cut
            # Near the window's end a cut may have been refused only for want of what follows.
            lowest = max(lowest, len(window.data) - margin)
            if not window.grow(limit_bytes):
                raise self._uncuttable(window)
            if window.at_end or self._end_of_last():
                return 0

    def _skip_if_bad(self) -> Piece | None:
        """Look through the long document ahead; if it is damaged, move behind it and say so."""
        window = self._window
        if self._scout is None:
            if self._part.file.stream is not None:
                raise DataError(
                    f"a document on {self._part.file.stream.name} is longer than a block, "
                    "so it cannot be checked before it is used",
                    remedy="use `--bad-text replace` or `--bad-text fail`, or save the input to a file",
                )
            self._scout = self._open(window.position)
        self._scout.skip_to(window.position)
        first_bad = self._scan_document(self._scout)
        if first_bad is None:
            return None
        window.skip_to(self._scout.position)
        return self._piece(_Clean(data=b"", bad=(self._bad_row(first_bad),), bad_count=1))

    def _scan_document(self, scout: ByteWindow) -> int | None:
        """Check the document at which the scout stands, and leave the scout behind it and its separator.

        Offset in the file of the first byte that is not UTF-8; None: it is valid.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        pattern = self._separator.pattern
        first_bad: int | None = None
        while True:
            scout.fill(self._settings.block_bytes)
            found = pattern.search(scout.data) if pattern else None
            checked = found.start() if found else len(scout.data)
            if not found and not scout.at_end:
                checked -= self._separator.unfinished_bytes(scout.data)
            is_last = found is not None or scout.at_end
            if first_bad is None:
                held = len(decoder.getstate()[0])  # of a character that the last window broke off
                try:
                    decoder.decode(scout.data[:checked], final=is_last)
                except UnicodeDecodeError as error:
                    first_bad = scout.position - held + error.start
            scout.drop(found.end() if found else checked)
            if is_last:
                return first_bad
            if not checked and not scout.grow(self._settings.document_limit_bytes):
                raise self._uncuttable(scout)

    def _uncuttable(self, window: ByteWindow) -> DataError:
        """The error for a stretch that can neither be held whole nor cut."""
        limit_bytes = self._settings.document_limit_bytes
        return DataError(
            f"{self._part.file.path}: more than {format_bytes(limit_bytes)} from byte {window.position} on "
            "without a place where the text could be cut without changing its tokens",
            remedy=f"pass a larger `--memory` (one piece may take {round_up_to_mib(limit_bytes)} now), "
            "or name the `--separator` that ends the documents",
        )

    def _clean(self, count: int, *, may_skip: bool) -> _Clean:
        """The next `count` bytes as UTF-8: what is damaged is refused, replaced, or its document left out."""
        position, data = self._window.position, self._window.data[:count]
        if is_utf8(data):
            return _Clean(data=data)
        if self._settings.bad_text == "replace":
            fixed, bad_count = replace_bad(data)
            bad = tuple(self._bad_row(position + place) for place in bad_places(data))
            return _Clean(data=fixed, bad=bad, bad_count=bad_count)
        if self._settings.bad_text == "skip" and may_skip:
            return self._without_bad_documents(data, position)
        place = first_bad_byte(data) or 0
        raise DataError(
            f"{self._part.file.path}: byte 0x{data[place]:02x} is not valid UTF-8, "
            f"at byte {position + place}",
            remedy="pass `--bad-text replace`, or `--bad-text skip` to leave out the whole document, "
            "or convert the file to UTF-8",
        )

    def _without_bad_documents(self, data: bytes, position: int) -> _Clean:
        """The documents that are valid, with their separators."""
        pattern = self._separator.pattern
        ends = [match.end() for match in pattern.finditer(data)] if pattern else []
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
                bad.append(self._bad_row(position + start + place))
            start = end
        return _Clean(data=b"".join(kept), bad=tuple(bad[:LISTED_BAD_ROWS]), bad_count=len(bad))

    def _bad_row(self, offset: int) -> BadRow:
        path = str(self._part.file.path)
        return BadRow(file=path, position=offset, unit="byte", reason="not valid UTF-8")
