"""The stream of blocks: all inputs, one after the other, as text for the encoder.

    inputs ─► parts ─► read_text | read_jsonl | read_parquet | read_arrow ─► pieces ─► blocks
                       or, for examples, examples/read_examples

What the blocks hold, laid end to end, depends on the inputs and on `column`, `separator`, `bad_text`,
`delimiter`, `tail` and `examples` alone. Block size and limits only move the borders. Reading from any
block's `after` gives the rest of the same stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from lowtide.errors import ChangedInputError, LowtideError, UsageError
from lowtide.source.blocks import (
    FIRST_PIECE_BYTES,
    LISTED_BAD_ROWS,
    NO_SPANS,
    SLOW_SECONDS,
    BadRow,
    BadText,
    Block,
    Cursor,
    PartlyRead,
    Piece,
    ReadSettings,
    Spans,
    Stretch,
)
from lowtide.source.byte_stream import explain_open_errors
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.parts import Part, parts_from
from lowtide.source.read_arrow import read_arrow
from lowtide.source.read_jsonl import read_jsonl
from lowtide.source.read_parquet import read_parquet
from lowtide.source.read_text import read_text

__all__ = [
    "FIRST_PIECE_BYTES",
    "BadRow",
    "BadText",
    "Block",
    "Cursor",
    "PartlyRead",
    "ReadSettings",
    "read_blocks",
]

_READERS = {
    InputKind.TEXT: read_text,
    InputKind.JSONL: read_jsonl,
    InputKind.PARQUET: read_parquet,
    InputKind.ARROW: read_arrow,
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
    bench = _Bench(settings=settings, done_before=_sizes_before(inputs))
    for index in range(start.file, len(inputs)):
        file = inputs[index]
        cursor = start if index == start.file else Cursor(file=index, position=0)
        before = partly_read if index == start.file else None
        if before is not None and before.changed_ns != file.changed_ns:
            _refuse_overwritten(file, settings, before.stretches)
        reading = _Reading(file, cursor, before)
        for part in parts_from(cursor, file, settings):
            for piece in read_pieces(part, settings):
                if bench.must_clear_before(piece, part):
                    yield bench.clear()
                reading.add(piece.text)
                if piece.after.file > index and _was_touched(file):
                    # before the cursor leaves the file: no checkpoint may stand behind text of two versions
                    _refuse_overwritten(file, settings, reading.stretches)
                bench.add(piece, part, reading)
                if bench.is_full():
                    yield bench.clear()
    if bench.holds_something():
        yield bench.clear()


class _Reading:
    """A file from the cursor on, and what was read of it before."""

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

    It may be written to, and its time of writing set back: only the time of its last change of any sort tells.
    """
    if file.is_stdin:
        return False
    with explain_open_errors(file):
        return file.path.stat().st_ctime_ns != file.changed_ns


def _refuse_overwritten(
    file: InputFile, settings: ReadSettings, stretches: Sequence[Stretch]
) -> None:
    """A ChangedInputError if the text that was read is no longer the file's.

    A hard link or other rights touch a file too, so it is read again before it is refused.
    """
    changed = ChangedInputError(
        f"{file.path} was written to while it was read",
        remedy="let whatever writes it finish, then pass `--restart`",
    )
    for stretch in stretches:
        try:
            digest = _digest_again(file, settings, stretch)
        except LowtideError as error:
            raise changed from error
        if digest != stretch.digest:
            raise changed


def _digest_again(file: InputFile, settings: ReadSettings, stretch: Stretch) -> str:
    """Of as much text as the stretch had. Blocks of another size end elsewhere, so its bytes are counted."""
    digest, left_bytes = xxhash.xxh3_128(), stretch.text_bytes
    for part in parts_from(stretch.start, file, settings):
        for piece in read_pieces(part, settings):
            digest.update(memoryview(piece.text)[:left_bytes])
            left_bytes -= len(piece.text)
            if left_bytes <= 0:
                return digest.hexdigest()
    return digest.hexdigest()


def _sizes_before(inputs: Sequence[InputFile]) -> list[int]:
    """Stored bytes of all files before each one."""
    before = [0]
    for file in inputs:
        before.append(before[-1] + file.size_bytes)
    return before


def read_pieces(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """What the part's reader yields, and at last a piece that only moves the cursor behind the part."""
    done_bytes = 0
    for piece in _read(part, settings):
        done_bytes = piece.done_bytes
        yield piece
    if part.end is None:
        done_bytes = part.file.size_bytes
    yield Piece(after=part.after, done_bytes=done_bytes)


def _read(part: Part, settings: ReadSettings) -> Iterator[Piece]:
    """The pieces of a part, by its format's reader: of text, or of examples."""
    reading = settings.examples
    if reading is None:
        return _READERS[part.file.kind](part, settings)
    from lowtide.source.examples import read_examples  # only those who have examples wait for it

    if part.file.kind is InputKind.JSONL:
        return read_examples.read_lines(part, settings, reading)
    if part.file.kind is InputKind.PARQUET:
        return read_examples.read_parquet_rows(part, settings, reading)
    if part.file.kind is InputKind.ARROW:
        return read_examples.read_arrow_rows(part, settings, reading)
    raise UsageError(
        f"{part.file.path} is read as text, and examples come in rows",
        remedy="name JSONL, Parquet or Arrow files (`.jsonl`, `.parquet`, `.arrow`), or leave out `--examples`",
    )


@dataclass(slots=True, kw_only=True)
class _Bench:
    """The pieces of the block that is being put together."""

    settings: ReadSettings
    done_before: list[int]
    texts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    document_count: int = 0
    after: Cursor = field(default_factory=lambda: Cursor(file=0, position=0))
    reading: _Reading | None = None
    """Of the file that `after` lies in."""
    done_bytes: int = 0
    held_out: bool = False
    bad: list[BadRow] = field(default_factory=list)
    bad_count: int = 0
    empty_count: int = 0
    learnt: list[Spans] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    """When it was last empty, by the clock."""

    def must_clear_before(self, piece: Piece, part: Part) -> bool:
        """Whether the piece does not belong into the same block."""
        if not self.holds_something():
            return False
        would_be = self.size_bytes + len(piece.text)
        is_too_much = self.size_bytes > 0 and would_be > self.settings.block_bytes
        return is_too_much or (part.held_out != self.held_out and bool(piece.text))

    def is_full(self) -> bool:
        """Whether it is time for a block: by its size, or where templates are slow by the clock."""
        if self.size_bytes >= self.settings.block_bytes:
            return True
        is_slow = time.monotonic() - self.began > SLOW_SECONDS
        return is_slow and self.settings.examples is not None and self.holds_something()

    def holds_something(self) -> bool:
        """Whether a block made now would say anything."""
        return bool(self.size_bytes or self.bad_count or self.empty_count)

    def add(self, piece: Piece, part: Part, reading: _Reading) -> None:
        """Lay a piece behind the others."""
        if len(piece.learnt):
            self.learnt.append(piece.learnt + self.size_bytes)
        if piece.text:
            self.texts.append(piece.text)
            self.size_bytes += len(piece.text)
        if not self.size_bytes or piece.text:
            self.held_out = part.held_out
        self.document_count += piece.document_count
        self.after = piece.after
        self.reading = reading if piece.after.file == part.index else None
        self.done_bytes = self.done_before[part.index] + piece.done_bytes
        self.bad.extend(piece.bad[: LISTED_BAD_ROWS - len(self.bad)])
        self.bad_count += piece.bad_count
        self.empty_count += piece.empty_count

    def clear(self) -> Block:
        """The block made of all pieces; the bench is empty afterwards. A single piece is not copied."""
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
