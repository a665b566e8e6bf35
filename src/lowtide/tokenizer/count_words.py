"""Count the words of a text in memory of a fixed size.

    text   "the cat. the"           block by block, cut by the pattern
    table  the 1 · ␣cat 1 · . 1 · ␣the 1
    file   the words of the table, sorted: written when the table is full

A full table is written to disk and emptied; the files are merged at the end (`word_runs`). So the
result is exact for any number of distinct words, and memory does not depend on it.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.errors import DataError
from lowtide.native import CountSettings, Marks, load_native
from lowtide.settings import PatternName
from lowtide.tokenizer.split_words import PATTERN_NUMBERS, load_classes, split_words_reference
from lowtide.tokenizer.word_runs import BUFFER_BYTES, RunRecord, RunWriter
from lowtide.units import MIB, format_bytes, round_up_to_mib

LEAST_TABLE_BYTES = 6 * MIB
"""Below this, counters for short words would be most of a table."""
ENTRY_BYTES = 40
"""Memory in a table for each distinct word: measured 36 to 40 on source code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRules:
    """The settings that decide how a block is cut into words."""

    pattern: PatternName
    marks: tuple[bytes, ...]
    """Strings that end a text and belong to no word: the delimiter of documents, and special tokens."""


class WordCounter:
    """The table of one thread. It is not shared; each call releases the interpreter's lock."""

    def __init__(self, rules: CountRules, *, allowance_bytes: int) -> None:
        self._native = load_native()
        self._allowance_bytes = allowance_bytes
        marks = _longest_first(rules.marks)
        self._mark_bytes = np.frombuffer(b"".join(marks), np.uint8)
        self._mark_ends = np.cumsum([len(mark) for mark in marks], dtype=np.uint32)
        self._classes = load_classes()
        self._settings = CountSettings(
            pattern=PATTERN_NUMBERS[rules.pattern],
            classes=self._classes.ctypes.data,
            marks=Marks(
                bytes=self._mark_bytes.ctypes.data,
                ends=self._mark_ends.ctypes.data,
                count=len(marks),
            ),
        )
        self._table: int | None = self._native.lt_table_new(allowance_bytes)
        if not self._table:
            raise MemoryError("no memory for a table of words")

    def close(self) -> None:
        """Free the table's memory."""
        if self._table is not None:
            self._native.lt_table_free(self._table)
        self._table = None

    @property
    def distinct_words(self) -> int:
        """Number of words in the table."""
        return int(self._native.lt_table_words(self._table))

    def count(self, text: bytes, start: int = 0) -> int:
        """Count the words of a block from `start` on; where counting stopped.

        Less than the block's length means that the table is full: call again from there after `spill`.
        """
        stopped = self._native.lt_count_block(
            self._table, ctypes.byref(self._settings), text, start, len(text)
        )
        if stopped == start and start < len(text) and not self.distinct_words:
            raise DataError(
                f"a word is longer than a table of {format_bytes(self._allowance_bytes)} can hold",
                remedy=f"pass a `--memory` that is {round_up_to_mib(2 * len(text))} larger, or break the "
                "text with white space",
            )
        return int(stopped)

    def spill(self, path: Path) -> RunRecord:
        """Write the table's words to a file, sorted, and empty the table."""
        native = self._native
        if not native.lt_table_sort(self._table):
            raise MemoryError("no memory for sorting words")
        longest = int(native.lt_table_longest(self._table))
        buffer = np.empty(max(BUFFER_BYTES, longest + 32), np.uint8)
        at = ctypes.c_uint64(0)
        with RunWriter(path) as run:
            while written := native.lt_table_write(
                self._table, at, buffer.ctypes.data, buffer.size
            ):
                run.write(memoryview(buffer[:written]))  # type: ignore[arg-type]
            record = run.finish()
        native.lt_table_clear(self._table)
        return record


def count_words_reference(texts: Sequence[bytes], rules: CountRules) -> Counter[bytes]:
    """The plain version of counting: every word of every text in a dictionary."""
    counts: Counter[bytes] = Counter()
    marks = b"|".join(map(re.escape, _longest_first(rules.marks)))
    for text in texts:
        for piece in re.split(marks, text) if marks else [text]:
            counts.update(
                word.encode() for word in split_words_reference(piece.decode(), rules.pattern)
            )
    return counts


def _longest_first(marks: Sequence[bytes]) -> list[bytes]:
    """Of two marks that begin alike, the longer one is found."""
    return sorted(marks, key=len, reverse=True)
