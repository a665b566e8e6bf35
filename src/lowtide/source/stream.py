"""The stream of blocks: all inputs, one after the other, as text for the encoder.

    inputs ─► parts ─► the reader of the format ─► pieces ─► blocks

What the blocks hold, laid end to end, depends on the inputs and on `column`, `separator`, `bad_text`,
`delimiter`, `tail` and `examples` alone. Block size and limits only move the borders. Reading from any
block's `after` gives the rest of the same stream.

A new format has a name (`InputKind`), a reader in `_READERS` (and one in `read_examples` if it has rows),
and a branch in `measure_extent`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from lowtide.errors import ChangedInputError, LowtideError, UsageError
from lowtide.settings import BadText
from lowtide.source import parquet_footer, read_arrow
from lowtide.source.blocks import (
    FIRST_PIECE_BYTES,
    LISTED_BAD_ROWS,
    NO_SPANS,
    SLOW_SECONDS,
    BadRow,
    Block,
    Cursor,
    PartlyRead,
    Piece,
    ReadSettings,
    Spans,
    Stretch,
)
from lowtide.source.byte_stream import explain_damage, explain_open_errors, open_window
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.parts import Part, parts_from
from lowtide.source.read_jsonl import read_jsonl
from lowtide.source.read_parquet import read_parquet
from lowtide.source.read_text import read_text
from lowtide.units import GIB, MIB

__all__ = [
    "FIRST_PIECE_BYTES",
    "BadRow",
    "BadText",
    "Block",
    "Cursor",
    "PartlyRead",
    "ReadSettings",
    "find_tail",
    "measure_extent",
    "read_blocks",
]

_READERS = {
    InputKind.TEXT: read_text,
    InputKind.JSONL: read_jsonl,
    InputKind.PARQUET: read_parquet,
    InputKind.ARROW: read_arrow.read_arrow,
}


def read_blocks(
    inputs: Sequence[InputFile],
    settings: ReadSettings,
    *,
    start: Cursor,
    partly_read: PartlyRead | None = None,
) -> Iterator[Block]:
    """The documents of all inputs from `start` on, in blocks of about `block_bytes`.

    Small documents and small files share a block. A damaged input is a `DataError` that names file and
    place. A file that is overwritten while it is read is a `ChangedInputError`, also between two processes that
    each read some of it: `partly_read` is what came with `start`. Holds two blocks and what the reader of the
    format holds (see there).
    """
    builder = _BlockBuilder(settings=settings)
    builder.done_before = sum(file.size_bytes for file in inputs[: start.file])
    for index in range(start.file, len(inputs)):
        file = inputs[index]
        cursor = start if index == start.file else Cursor(file=index, position=0)
        before = partly_read if index == start.file else None
        if before is not None and before.changed_ns != file.changed_ns:
            _refuse_overwritten(file, settings, before.stretches)
        reading = _Reading(file, cursor, before)
        for part in parts_from(cursor, file, settings):
            for piece in read_pieces(part):
                if builder.must_clear_before(piece, part):
                    yield builder.clear()
                reading.add(piece.text)
                if piece.after.file > index and _was_touched(file):
                    # before the cursor leaves the file: no checkpoint may stand behind text of two versions
                    _refuse_overwritten(file, settings, reading.stretches)
                builder.add(piece, part, reading)
                if builder.is_full():
                    yield builder.clear()
        builder.done_before += file.size_bytes
    if builder.holds_something():
        yield builder.clear()


class _Reading:
    """What was read of a file: before its start cursor by other processes, and since."""

    def __init__(self, file: InputFile, start: Cursor, before: PartlyRead | None) -> None:
        self._changed_ns = file.changed_ns
        self._start = start
        self._before = before.stretches if before else ()
        self._text_bytes = 0
        self._digest = xxhash.xxh3_128()

    def add(self, text: bytes) -> None:
        self._text_bytes += len(text)
        self._digest.update(text)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """All that was read of the file."""
        if not self._text_bytes:
            return self._before
        digest = self._digest.hexdigest()
        return (
            *self._before,
            Stretch(start=self._start, text_bytes=self._text_bytes, digest=digest),
        )

    def so_far(self) -> PartlyRead:
        return PartlyRead(changed_ns=self._changed_ns, stretches=self.stretches)


def _was_touched(file: InputFile) -> bool:
    """Whether a file was changed in any way since it was found.

    A program can write to it and set its modification time back, but not its change time (ctime).
    """
    if file.stream is not None:
        return False
    with explain_open_errors(file):
        return file.path.stat().st_ctime_ns != file.changed_ns


def _refuse_overwritten(
    file: InputFile, settings: ReadSettings, stretches: Sequence[Stretch]
) -> None:
    """Raise a `ChangedInputError` if the file no longer holds the text that was read.

    A new hard link or new permissions change the ctime too, so the file is read again before it is refused.
    """
    changed = ChangedInputError(
        f"{file.path} was written to while it was read",
        remedy="wait until whatever writes it is done, then pass `--restart`",
    )
    for stretch in stretches:
        try:
            digest = _digest_again(file, settings, stretch)
        except LowtideError as error:
            raise changed from error
        if digest != stretch.digest:
            raise changed


def _digest_again(file: InputFile, settings: ReadSettings, stretch: Stretch) -> str:
    """The digest of as much text as the stretch had: blocks of another size end elsewhere, so bytes count."""
    digest, left_bytes = xxhash.xxh3_128(), stretch.text_bytes
    for part in parts_from(stretch.start, file, settings):
        for piece in read_pieces(part):
            digest.update(memoryview(piece.text)[:left_bytes])
            left_bytes -= len(piece.text)
            if left_bytes <= 0:
                return digest.hexdigest()
    return digest.hexdigest()


def read_pieces(part: Part) -> Iterator[Piece]:
    """The pieces of a part; the last one only moves the cursor behind the part."""
    done_bytes = 0
    for piece in _reader_of(part)(part):
        done_bytes = piece.done_bytes
        yield piece
    if part.end is None:
        done_bytes = part.file.size_bytes
    yield Piece(after=part.after, done_bytes=done_bytes)


def _reader_of(part: Part) -> Callable[[Part], Iterator[Piece]]:
    """The reader of the part's format: of text, or of examples."""
    if part.settings.examples is None:
        return _READERS[part.file.kind]
    from lowtide.source.examples.read_examples import READERS  # only those who have examples wait

    if part.file.kind in READERS:
        return READERS[part.file.kind]
    raise UsageError(
        f"{part.file.path} is read as text, and examples come in rows",
        remedy="name JSONL, Parquet or Arrow files (`.jsonl`, `.parquet`, `.arrow`), or leave out `--examples`",
    )


def measure_extent(file: InputFile) -> int:
    """The length of an input in the unit that cursors count: bytes of text once decompressed, or rows.

    A footer or a size is enough, but for compressed text, which is unpacked and dropped.
    """
    if file.kind is InputKind.PARQUET:
        with explain_open_errors(file), explain_damage(file.path):
            return parquet_footer.count_rows(file)
    if file.kind is InputKind.ARROW:
        with explain_damage(file.path):
            return read_arrow.count_rows(file)
    if not file.compression:
        return file.size_bytes
    with open_window(file, limit_bytes=GIB) as window:
        while not window.at_end:
            window.fill(MIB)
            window.drop(len(window.data))
        return window.position


def find_tail(inputs: Sequence[InputFile], fraction: float) -> Cursor:
    """Where the last `fraction` of the inputs begins, by their stored size.

    All inputs weigh as many bytes as they have on disk; inside the one that the border falls into, the
    border lies at the same share of its rows or of its text.
    """
    for stream in filter(None, (file.stream for file in inputs)):
        raise UsageError(
            f"the last part of {stream.name} is not known before its end",
            remedy="pass `--split hash` or `--val 0`, or write the text to a file first",
        )
    total = sum(file.size_bytes for file in inputs)
    before = total - int(total * fraction)
    for index, file in enumerate(inputs):
        if before < file.size_bytes:
            extent = measure_extent(file)
            return Cursor(file=index, position=extent * before // file.size_bytes)
        before -= file.size_bytes
    return Cursor(file=len(inputs), position=0)


@dataclass(slots=True, kw_only=True)
class _BlockBuilder:
    """The pieces of the block that is being put together."""

    settings: ReadSettings
    done_before: int = 0
    """Stored bytes of all files before the one being read."""
    texts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    document_count: int = 0
    after: Cursor = field(default_factory=lambda: Cursor(file=0, position=0))
    reading: _Reading | None = None
    """What was read of the file that `after` lies in; None at a file's start."""
    done_bytes: int = 0
    held_out: bool = False
    bad: list[BadRow] = field(default_factory=list)
    bad_count: int = 0
    empty_count: int = 0
    learnt: list[Spans] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    """When the block was begun, in wall time."""

    def must_clear_before(self, piece: Piece, part: Part) -> bool:
        """Whether the piece does not belong into the same block."""
        if not self.holds_something():
            return False
        would_be = self.size_bytes + len(piece.text)
        is_too_much = self.size_bytes > 0 and would_be > self.settings.block_bytes
        return is_too_much or (part.held_out != self.held_out and bool(piece.text))

    def is_full(self) -> bool:
        """Whether it is time for a block: by its size, or by the time that slow templates took."""
        if self.size_bytes >= self.settings.block_bytes:
            return True
        is_slow = time.monotonic() - self.began > SLOW_SECONDS
        return is_slow and self.settings.examples is not None and self.holds_something()

    def holds_something(self) -> bool:
        """Whether a block made now would hold text or counts."""
        return bool(self.size_bytes or self.bad_count or self.empty_count)

    def add(self, piece: Piece, part: Part, reading: _Reading) -> None:
        """Append a piece."""
        if len(piece.learnt):
            self.learnt.append(piece.learnt + self.size_bytes)
        if piece.text:
            self.texts.append(piece.text)
            self.size_bytes += len(piece.text)
        if not self.size_bytes or piece.text:
            self.held_out = part.held_out
        self.document_count += piece.document_count
        self.after = piece.after
        self.reading = reading if piece.after.file == part.start.file else None
        self.done_bytes = self.done_before + piece.done_bytes
        self.bad.extend(piece.bad[: LISTED_BAD_ROWS - len(self.bad)])
        self.bad_count += piece.bad_count
        self.empty_count += piece.empty_count

    def clear(self) -> Block:
        """The block made of all pieces, after which another begins. A single piece is not copied."""
        block = Block(
            text=self.texts[0] if len(self.texts) == 1 else b"".join(self.texts),
            document_count=self.document_count,
            text_bytes=self.size_bytes - self.document_count * len(self.settings.delimiter),
            after=self.after,
            partly_read=self.reading.so_far() if self.reading else None,
            input_done_bytes=self.done_bytes,
            held_out=self.held_out,
            bad=tuple(self.bad),
            bad_count=self.bad_count,
            empty_count=self.empty_count,
            learnt=np.concatenate(self.learnt) if self.learnt else NO_SPANS,
        )
        self.began = time.monotonic()
        self.texts, self.bad, self.learnt = [], [], []
        self.size_bytes = self.document_count = self.bad_count = self.empty_count = 0
        return block
