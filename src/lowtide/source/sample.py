"""A few short samples from all over the inputs, to predict the whole from."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowtide.source.blocks import Block, Cursor, ReadSettings
from lowtide.source.byte_stream import open_stream
from lowtide.source.extent import measure_extent
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.stream import read_blocks
from lowtide.units import KIB, MIB

_ALIGNED_BYTES = 64 * KIB
_MOST_FILES = 512
_UNPACKED_BYTES = 16 * MIB
"""So much of a compressed file is unpacked to see how well it is packed: its reader is 64 KiB ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """Blocks read from somewhere, and what reading them took. More than one only for a long row."""

    blocks: tuple[Block, ...]
    input_bytes: int
    """How much of the stored input they stand for."""
    seconds: float

    @property
    def text_bytes(self) -> int:
        """Text without delimiters."""
        return sum(block.text_bytes for block in self.blocks)

    @property
    def documents(self) -> int:
        """Documents that end in the sample."""
        return sum(block.document_count for block in self.blocks)


def sample_inputs(
    inputs: Sequence[InputFile], settings: ReadSettings, *, count: int
) -> list[SampledText]:
    """Up to `count` samples of about a block, spread evenly over the stored bytes of all inputs.

    Inputs that fit into so many blocks are read whole. Compressed files are sampled at their front.
    """
    total = sum(file.size_bytes for file in inputs)
    if total <= count * settings.block_bytes and not any(file.compression for file in inputs):
        samples = _read_whole(inputs, settings, most_blocks=2 * count)
        if samples is not None:
            return samples
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    for number in range(count):
        index, offset = _locate(inputs, total * number // count)
        offsets[index].append(offset)
    samples = []
    for index, places in offsets.items():
        if inputs[index].compression:
            samples += _read_front(inputs[index], settings, len(places))
        else:
            files = _neighbours(inputs, index)
            found = (_read_one(files, settings, place) for place in places)
            samples += [sample for sample in found if sample is not None]
    return samples


def _read_whole(
    inputs: Sequence[InputFile], settings: ReadSettings, *, most_blocks: int
) -> list[SampledText] | None:
    """All blocks of the inputs; None if there are more: a few stored bytes may stand for gigabytes of rows."""
    samples = []
    before = text_bytes = 0
    started = time.perf_counter()
    for block in read_blocks(inputs, settings, start=Cursor(file=0, position=0)):
        seconds = time.perf_counter() - started
        samples.append(_sampled((block,), block.input_done_bytes - before, seconds))
        before = block.input_done_bytes
        text_bytes += block.text_bytes
        if text_bytes > most_blocks * settings.block_bytes:
            return None
        started = time.perf_counter()
    return samples


def _locate(inputs: Sequence[InputFile], offset: int) -> tuple[int, int]:
    """The input that a byte of all of them together lies in, and where in it."""
    for index, file in enumerate(inputs):
        if offset < file.size_bytes:
            return index, offset
        offset -= file.size_bytes
    return len(inputs) - 1, 0


def _neighbours(inputs: Sequence[InputFile], index: int) -> list[InputFile]:
    """An input and those behind it that are read in the same way: one small file fills no block."""
    first = inputs[index]
    return list(
        itertools.takewhile(
            lambda file: file.kind is first.kind and not file.compression,
            inputs[index : index + _MOST_FILES],
        )
    )


def _read_one(
    files: Sequence[InputFile], settings: ReadSettings, offset: int
) -> SampledText | None:
    """A sample from about that byte of the first file on, or None where there is none."""
    position = _aligned(files[0], offset)
    if position is None:
        return None
    started = time.perf_counter()
    blocks = read_blocks(files, settings, start=Cursor(file=0, position=position))
    taken = _take(blocks, files[0])
    seconds = time.perf_counter() - started
    if not taken:
        return None
    input_bytes = _bytes_before(files, taken[-1].after) - _stored_at(files[0], position)
    return _sampled(taken, input_bytes, seconds)


def _take(blocks: Iterator[Block], file: InputFile) -> tuple[Block, ...]:
    """The next block that holds text; of a row that is cut, all blocks, for only its end has a place."""
    taken: list[Block] = []
    for block in blocks:
        if block.text:
            taken.append(block)
        if taken and (file.kind is InputKind.TEXT or not block.after.within):
            break
    return tuple(taken)


def _aligned(file: InputFile, offset: int) -> int | None:
    """A position at which reading may start: a row, the start of a line, or the file's start."""
    if file.kind in (InputKind.PARQUET, InputKind.ARROW):
        return measure_extent(file) * offset // max(1, file.size_bytes)
    if not offset:
        return 0
    with file.path.open("rb") as opened:
        opened.seek(offset)
        line_end = opened.read(_ALIGNED_BYTES).find(b"\n")
    return offset + line_end + 1 if line_end >= 0 else None


def _bytes_before(files: Sequence[InputFile], cursor: Cursor) -> int:
    """Stored bytes of all files before a cursor."""
    passed = sum(file.size_bytes for file in files[: cursor.file])
    if cursor.file == len(files):
        return passed
    return passed + _stored_at(files[cursor.file], cursor.position)


def _stored_at(file: InputFile, position: int) -> int:
    """The stored byte of a position: the same for plain text, by share of the rows elsewhere."""
    if file.kind in (InputKind.PARQUET, InputKind.ARROW):
        return file.size_bytes * position // max(1, measure_extent(file))
    return position


def _read_front(file: InputFile, settings: ReadSettings, count: int) -> list[SampledText]:
    """Samples one behind the other: going anywhere else means to unpack everything before it."""
    stored_share = _stored_share(file, settings)
    blocks = read_blocks([file], settings, start=Cursor(file=0, position=0))
    samples: list[SampledText] = []
    position = 0
    for _ in itertools.repeat(None, count):
        started = time.perf_counter()
        taken = _take(blocks, file)
        seconds = time.perf_counter() - started
        if not taken:
            break
        after = taken[-1].after
        if after.file:
            used_bytes = sum(sample.input_bytes for sample in samples)
            samples.append(_sampled(taken, file.size_bytes - used_bytes, seconds))
            break
        stored_bytes = round((after.position - position) * stored_share)
        samples.append(_sampled(taken, stored_bytes, seconds))
        position = after.position
    return samples


def _stored_share(file: InputFile, settings: ReadSettings) -> float:
    """Stored bytes for each byte of a compressed file's content, from its front."""
    unpacked_bytes = 0
    limit_bytes = settings.document_limit_bytes
    with open_stream(file, position=0, window_limit_bytes=limit_bytes) as stream:
        while stream.tell() < _UNPACKED_BYTES and (data := stream.read(MIB)):
            unpacked_bytes += len(data)
        return stream.tell() / max(1, unpacked_bytes)


def _sampled(blocks: tuple[Block, ...], input_bytes: int, seconds: float) -> SampledText:
    return SampledText(blocks=blocks, input_bytes=max(1, input_bytes), seconds=seconds)
