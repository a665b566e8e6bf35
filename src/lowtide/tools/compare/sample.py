"""The beginning of the user's own input, cut between documents, as JSON lines in sixteen files of similar size.

The first four files are a quarter, the first two an eighth: every program runs on several sizes, and no text is
written twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import DataError
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.safe_cuts import CutRule, last_safe_cut
from lowtide.source.separators import default_delimiter
from lowtide.source.stream import Block, Cursor, ReadSettings, measure_extent, read_blocks
from lowtide.units import KIB, MIB

PARTS = 16
_LONGEST_BYTES = MIB
"""Longer documents are cut, or those above a 64th of a small sample: one book would be all of it."""
_SHORTEST_CUT_BYTES = 4 * KIB
_ROW_LIMIT_BYTES = 64 * MIB
_ENOUGH = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSample:
    """The text that all programs are given."""

    files: tuple[Path, ...]
    text_bytes: tuple[int, ...]
    """Size of the text in each file, without the JSON around it."""
    documents: int
    cut_documents: int
    """How often a document was cut because it was too long."""
    replaced: int
    """Places that were not UTF-8."""
    input_share: float
    """Share of the stored input."""

    @property
    def total_bytes(self) -> int:
        """Size of all its text."""
        return sum(self.text_bytes)

    @property
    def full_bytes(self) -> int:
        """Size of the text in the whole input: measured if the sample is all of it, else estimated."""
        return round(self.total_bytes / self.input_share)

    @property
    def is_everything(self) -> bool:
        """Whether the sample is the whole input."""
        return self.input_share >= 1

    def first(self, sixteenths: int) -> tuple[tuple[Path, ...], int]:
        """The first files of the sample, and the size of their text."""
        return self.files[:sixteenths], sum(self.text_bytes[:sixteenths])


def take_sample(
    inputs: Sequence[InputFile],
    folder: Path,
    *,
    sample_bytes: int,
    column: str = "text",
    separator: str = "file",
    between: Callable[[], None] = lambda: None,
) -> TextSample:
    """Write the sample into an empty folder. A shorter input is taken whole, in even parts.

    `between` is called after every block, and may raise an error to stop.
    """
    longest = _longest_bytes(sample_bytes)
    settings = ReadSettings(
        column=column,
        separator=separator,
        bad_text="replace",
        delimiter=default_delimiter("file"),
        block_bytes=longest,
        document_limit_bytes=_ROW_LIMIT_BYTES,
        cut_rule=CutRule(pattern="gpt2"),
    )
    sample = _write(inputs, folder, sample_bytes, settings, between)
    if sample.is_everything and 0 < sample.total_bytes < _ENOUGH * sample_bytes:
        shorter = replace(settings, block_bytes=_longest_bytes(sample.total_bytes))
        sample = _write(inputs, folder, sample.total_bytes, shorter, between)
    if not sample.total_bytes:
        raise DataError(
            f"{inputs[0].path} holds no text to compare on",
            remedy="name a file with text; for rows, pass the column with the text as `--column`",
        )
    return sample


def _longest_bytes(sample_bytes: int) -> int:
    return min(_LONGEST_BYTES, max(_SHORTEST_CUT_BYTES, sample_bytes // (4 * PARTS)))


def _write(
    inputs: Sequence[InputFile],
    folder: Path,
    sample_bytes: int,
    settings: ReadSettings,
    between: Callable[[], None],
) -> TextSample:
    """Fill the sixteen files one after the other; a document goes into the one in which it begins."""
    paths = tuple(folder / f"part-{number:02d}.jsonl" for number in range(PARTS))
    text_bytes, count, input_share = [0] * PARTS, 0, 1.0
    documents = _Documents(settings)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for text, block in documents.read(inputs, between):
            at = min(PARTS - 1, sum(text_bytes) * PARTS // sample_bytes)
            line = json.dumps({"text": text.decode()}, ensure_ascii=False)
            files[at].write(line.encode() + b"\n")
            text_bytes[at] += len(text)
            count += 1
            if block is not None and sum(text_bytes) >= sample_bytes:
                input_share = _share_before(inputs, block)
                break
    return TextSample(
        files=paths,
        text_bytes=tuple(text_bytes),
        documents=count,
        cut_documents=documents.cut_count,
        replaced=documents.replaced,
        input_share=input_share,
    )


class _Documents:
    """Joins documents that were split between blocks, up to a block's length."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._open = b""
        self.cut_count = 0
        self.replaced = 0

    def read(
        self, inputs: Sequence[InputFile], between: Callable[[], None]
    ) -> Iterator[tuple[bytes, Block | None]]:
        """Every document with the block that it ends in; a long one in pieces. The last has no block."""
        for block in read_blocks(inputs, self._settings, start=Cursor(file=0, position=0)):
            between()
            self.replaced += block.bad_count
            *whole, rest = block.text.split(self._settings.delimiter)
            for text in whole:
                if self._open or text:
                    yield self._open + text, block
                self._open = b""
            self._open += rest
            for piece in self._cut():
                yield piece, block
        if self._open:
            yield self._open, None

    def _cut(self) -> Iterator[bytes]:
        """Pieces of the open document, until it is shorter than a block."""
        longest_bytes = self._settings.block_bytes
        while len(self._open) >= longest_bytes:
            cut = last_safe_cut(self._open[:longest_bytes], self._settings.cut_rule)
            if not cut:
                return
            self.cut_count += 1
            yield self._open[:cut]
            self._open = self._open[cut:]


def _share_before(inputs: Sequence[InputFile], block: Block) -> float:
    """Share of the stored input before a block's end; in columnar files by rows: their pages are large."""
    stored = max(1, sum(item.size_bytes for item in inputs))
    at = block.after
    done = block.input_done_bytes
    if at.file < len(inputs) and inputs[at.file].kind in (InputKind.PARQUET, InputKind.ARROW):
        file = inputs[at.file]
        before = sum(item.size_bytes for item in inputs[: at.file])
        done = before + round(file.size_bytes * at.position / max(1, measure_extent(file)))
    return min(1.0, max(1, done) / stored)
