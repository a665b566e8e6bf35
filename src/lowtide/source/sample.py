"""A few short samples from all over the inputs, to predict the whole from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.source.blocks import Block, Cursor, ReadSettings
from lowtide.source.extent import measure_extent
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.stream import read_blocks

_ALIGNED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """A block read from somewhere, and what reading it took."""

    text: bytes
    documents: int
    input_bytes: int
    """How much of the stored input it stands for."""
    seconds: float


def sample_inputs(
    inputs: Sequence[InputFile], settings: ReadSettings, *, count: int
) -> list[SampledText]:
    """Up to `count` blocks, spread evenly over the stored bytes of all inputs.

    Inputs that fit into so many blocks are read whole. Compressed files are sampled at their front.
    """
    total = sum(file.size_bytes for file in inputs)
    if total <= count * settings.block_bytes and not any(file.compression for file in inputs):
        return _read_whole(inputs, settings)
    samples = []
    for number in range(count):
        index, offset = _locate(inputs, total * number // count)
        found = _read_one(inputs[index], settings, offset)
        if found is not None:
            samples.append(found)
    return samples


def _read_whole(inputs: Sequence[InputFile], settings: ReadSettings) -> list[SampledText]:
    samples = []
    before = 0
    started = time.perf_counter()
    for block in read_blocks(inputs, settings, start=Cursor(file=0, position=0)):
        seconds = time.perf_counter() - started
        samples.append(_sampled(block, block.input_done_bytes - before, seconds))
        before = block.input_done_bytes
        started = time.perf_counter()
    return samples


def _locate(inputs: Sequence[InputFile], offset: int) -> tuple[int, int]:
    """The input that a byte of all of them together lies in, and where in it."""
    for index, file in enumerate(inputs):
        if offset < file.size_bytes:
            return index, offset
        offset -= file.size_bytes
    return len(inputs) - 1, 0


def _read_one(file: InputFile, settings: ReadSettings, offset: int) -> SampledText | None:
    """The first block from about there on, or None where there is none."""
    position = _aligned(file, offset)
    if position is None:
        return None
    started = time.perf_counter()
    blocks = read_blocks([file], settings, start=Cursor(file=0, position=position))
    block = next((one for one in blocks if one.text), None)
    seconds = time.perf_counter() - started
    if block is None:
        return None
    return _sampled(block, _stored_bytes(file, block, position), seconds)


def _aligned(file: InputFile, offset: int) -> int | None:
    """A position at which reading may start: a row, the start of a line, or the file's start."""
    if file.compression:
        return 0
    if file.kind in (InputKind.PARQUET, InputKind.ARROW):
        return measure_extent(file) * offset // max(1, file.size_bytes)
    if not offset:
        return 0
    with file.path.open("rb") as opened:
        opened.seek(offset)
        line_end = opened.read(_ALIGNED_BYTES).find(b"\n")
    return offset + line_end + 1 if line_end >= 0 else None


def _stored_bytes(file: InputFile, block: Block, position: int) -> int:
    """The stored bytes behind a block: exact for plain text, by share of rows or of packed text elsewhere."""
    if file.kind in (InputKind.PARQUET, InputKind.ARROW):
        rows = max(1, block.after.position - position)
        return max(1, file.size_bytes * rows // max(1, measure_extent(file)))
    if file.compression:
        return max(1, block.input_done_bytes)
    end = block.after.position if block.after.file == 0 else file.size_bytes
    return max(1, end - position)


def _sampled(block: Block, input_bytes: int, seconds: float) -> SampledText:
    return SampledText(
        text=block.text,
        documents=block.document_count,
        input_bytes=max(1, input_bytes),
        seconds=seconds,
    )
