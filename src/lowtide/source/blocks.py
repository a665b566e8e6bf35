"""What readers give out: blocks of text, each with the cursor at which it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.settings import BadText
from lowtide.source.safe_cuts import CutRule
from lowtide.units import KIB

if TYPE_CHECKING:
    from lowtide.source.examples.settings import ExampleReading

FIRST_PIECE_BYTES = 64 * KIB
"""A document's first piece is at least this long, or the whole document: whatever is decided by a document's
beginning (its split) can be decided from the block it begins in, at any block size."""

SLOW_SECONDS = 0.5
"""A slow template makes blocks that are not full, because a stop is noticed only between blocks."""
LISTED_BAD_ROWS = 100
"""The most bad rows that a block lists; all are counted."""

Spans: TypeAlias = npt.NDArray[np.int64]
"""Stretches of bytes, one per row: where it begins, where it ends. In order, and no two touch."""
NO_SPANS: Spans = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where reading resumes. Three numbers, whatever the format."""

    file: int
    """Index into the inputs."""
    position: int
    """Text, JSONL: byte offset in the decompressed file. Parquet, Arrow: row number."""
    within: int = 0
    """Bytes of the current document's text given out so far; 0 at a document's start."""

    def as_list(self) -> list[int]:
        """For JSON; `from_list` turns it back."""
        return [self.file, self.position, self.within]

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> Cursor:
        """The cursor that `as_list` wrote."""
        file, position, within = numbers
        return cls(file=file, position=position, within=within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Length and hash of text that one process read from a file, to check later that it is unchanged."""

    start: Cursor
    text_bytes: int
    """Length of the text with its delimiters."""
    digest: str
    """xxh3_128 of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRead:
    """All that was read of a file before a cursor inside it."""

    changed_ns: int
    """Time of the file's last change of any sort, when it was found."""
    stretches: tuple[Stretch, ...]
    """One for each process that read some of it, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A document that was skipped, or a place where text was replaced."""

    file: str
    position: int
    """Byte offset from 0, line or row from 1, by `unit`."""
    unit: Literal["byte", "line", "row"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """UTF-8 text, each document followed by the delimiter; the last document may continue in the next block.

    `text` may be empty: then the block only brings counts."""

    text: bytes
    document_count: int
    """Documents that end in this block: the delimiters in `text`."""
    text_bytes: int
    """Length of `text` without delimiters."""
    after: Cursor
    """Reading from here gives the rest of the stream."""
    partly_read: PartlyRead | None
    """The text before `after` of the file it lies in; None at a file's start."""
    input_done_bytes: int
    """Bytes of the stored inputs read so far, over all files; estimated for compressed and columnar files."""
    held_out: bool
    """Whether the tail split keeps this block for validation."""
    bad: tuple[BadRow, ...]
    """The first bad rows, of `bad_count` in all."""
    bad_count: int
    empty_count: int
    learnt: Spans = field(default_factory=lambda: NO_SPANS)
    """The bytes of `text` in the loss mask. Empty but for examples: of other text, all bytes are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How inputs are read. `block_bytes` and `document_limit_bytes` change memory, never the stream."""

    column: str = "text"
    separator: str = "file"
    """"file", "line", "blank-line"; anything else is the literal text between two documents."""
    bad_text: BadText = "fail"
    delimiter: bytes
    """What follows each document in a block."""
    block_bytes: int
    document_limit_bytes: int
    """The most that one piece which cannot be cut (a line, a value, a page) may occupy."""
    cut_rule: CutRule
    tail: Cursor | None = None
    """Documents from here on are kept for validation."""
    examples: ExampleReading | None = None
    """Rows are examples, and go through a template; None: rows are text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that a reader yields: part of a block, never split again."""

    text: bytes = b""
    document_count: int = 0
    after: Cursor
    done_bytes: int
    """Stored bytes of this file read so far."""
    bad: tuple[BadRow, ...] = ()
    bad_count: int = 0
    empty_count: int = 0
    learnt: Spans = field(default_factory=lambda: NO_SPANS)
    """The bytes in the loss mask, as in a block, counted from the start of this piece."""
