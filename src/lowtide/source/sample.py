"""Short samples from all over the inputs, to predict the whole from.

The stored bytes of all inputs are cut into equal stretches, and a place is drawn in each: what lies there
stands for its stretch. In plain text that place is read. A row of a Parquet file and a byte of a compressed one
can only be reached through what lies before them, so a row group, or a compressed file, is read once for all
its places, and no further than its share of `_PASSED_BYTES`.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lowtide.source.blocks import Block, Cursor, ReadSettings
from lowtide.source.byte_stream import explain_damage
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.parts import Part
from lowtide.source.read_parquet import open_parquet
from lowtide.source.stream import measure_extent, read_blocks
from lowtide.units import KIB, MIB

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_ALIGNED_BYTES = 64 * KIB
_BLANK = re.compile(rb"[ \n]")
_MOST_FILES = 512
_NEIGHBOURS = 8
"""Samples of rows that share one rate. A sample may be three long rows: the mean of such rates would be too
high where another field of the rows differs much in length."""
_PASSED_BYTES = 96 * MIB
"""Text that is read on the way to samples, all files together: about half a second of reading."""
_PIECES = 8
"""A sample of rows is read in pieces, to end where it has enough text or stored bytes."""
_STRETCH_SHARE = 0.25
"""The most of its stretch that a sample reaches over: where rows are sorted, those behind are others."""
_HELD_BLOCKS = 2
"""The most that samples may take, in blocks per sample: rows may be far longer than a block."""
_COUNTED_PLACES, _COUNTED_BYTES = 2048, 16 * KIB
"""Documents are counted by what separates them, at more places than text is read: where they are sorted by
length, a small share of the text may hold most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """A block from somewhere in the inputs, and what reading it took. A long row comes in several blocks."""

    blocks: tuple[Block, ...]
    input_bytes: float
    """Stored bytes of the input that the blocks come from."""
    documents: float
    """Number of documents that end in the sample."""
    seconds: float
    stands_for: float = 1.0
    """The weight of this sample in sums over all inputs."""
    stretch_bytes: float = 0.0
    """Stored bytes of the stretch that it was drawn from; 0 where everything was read."""

    @property
    def text_bytes(self) -> int:
        """Text without delimiters."""
        return sum(block.text_bytes for block in self.blocks)

    @property
    def rows(self) -> float:
        """Documents, and rows that gave none."""
        return self.documents + sum(block.bad_count + block.empty_count for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A byte of the inputs, laid end to end, from which a sample is to come."""

    number: int
    """Counted over all inputs."""
    index: int
    """Which of the inputs it lies in."""
    offset: int
    """The byte of that input."""


def sample_inputs(
    inputs: Sequence[InputFile], settings: ReadSettings, *, count: int, seed: int = 0
) -> list[SampledText]:
    """Up to `count` samples of about a block, spread over the stored bytes of all inputs.

    Inputs that fit into so many blocks are read whole. What is drawn follows from `seed` alone.
    """
    total = sum(file.size_bytes for file in inputs)
    if total <= count * settings.block_bytes and not any(file.compression for file in inputs):
        samples = _read_whole(inputs, settings, most_blocks=2 * count)
        if samples is not None:
            return samples
    chance = random.Random(seed)
    passed: list[_Place] = []
    plain: list[_Place] = []
    for place in _draw(inputs, count, chance):
        file = inputs[place.index]
        is_passed = bool(file.compression) or file.kind is InputKind.PARQUET
        (passed if is_passed else plain).append(place)
    plain = list({place.number: place for place in plain}.values())
    drawn = [
        *_sample_passed(inputs, settings, passed, total / count, chance),
        *_sample_plain(inputs, settings, plain, total / count, chance),
    ]
    drawn.sort(key=lambda pair: pair[0].number)
    # stretches without a sample are represented by the others
    scale = total / max(1.0, sum(sample.stretch_bytes for _, sample in drawn))
    return [
        replace(
            sample,
            stands_for=scale * sample.stands_for,
            stretch_bytes=scale * sample.stretch_bytes,
        )
        for _, sample in drawn
    ]


def count_documents(
    inputs: Sequence[InputFile],
    settings: ReadSettings,
    samples: Sequence[SampledText],
    *,
    seed: int = 0,
) -> int:
    """Number of documents in the inputs: by footers, by what separates documents, or else by the samples."""
    sampled = sum(sample.documents * sample.stands_for for sample in samples)
    mark = _mark(inputs, settings)
    sampled_rows = sum(sample.rows * sample.stands_for for sample in samples)
    if all(sample.stands_for == 1 for sample in samples) or not sampled_rows:
        return round(sampled)
    if all(file.kind in (InputKind.PARQUET, InputKind.ARROW) for file in inputs):
        return round(sum(map(measure_extent, inputs)) * sampled / sampled_rows)
    if mark and not any(file.compression for file in inputs):
        return round(_count_marks(inputs, mark, seed) * sampled / sampled_rows)
    return round(sampled)


def _draw(inputs: Sequence[InputFile], count: int, chance: random.Random) -> Iterator[_Place]:
    """A place in each of `count` equal stretches of the inputs, in order."""
    ends = list(itertools.accumulate(file.size_bytes for file in inputs))
    total = ends[-1]
    for stretch in range(count):
        number = int(total * (stretch + chance.random()) / count)
        index = bisect.bisect_right(ends, number)
        if index == len(ends):
            yield _Place(number=number, index=index - 1, offset=0)
        else:
            start = ends[index - 1] if index else 0
            yield _Place(number=number, index=index, offset=number - start)


def _sample_plain(
    inputs: Sequence[InputFile],
    settings: ReadSettings,
    places: list[_Place],
    stretch_bytes: float,
    chance: random.Random,
) -> Iterator[tuple[_Place, SampledText]]:
    """A sample from each place, in random order: long rows may use up what may be held.

    Rows behind a place are not chosen by their length, so neighbours are weighted by the bytes of all of them.
    """
    left_bytes = _HELD_BLOCKS * len(places) * settings.block_bytes
    found: list[tuple[_Place, SampledText]] = []
    for place in chance.sample(places, len(places)):
        files = _neighbours(inputs, place.index)
        sample = _read_one(files, settings, place.offset, stretch_bytes * _STRETCH_SHARE)
        if sample:
            found.append((place, sample))
            left_bytes -= sample.text_bytes
        if left_bytes <= 0:
            break
    found.sort(key=lambda pair: pair[0].number)
    for first in range(0, len(found), _NEIGHBOURS):
        group = found[first : first + _NEIGHBOURS]
        stands_for = len(group) * stretch_bytes / sum(sample.input_bytes for _, sample in group)
        for place, sample in group:
            yield place, replace(sample, stands_for=stands_for, stretch_bytes=stretch_bytes)


def _sample_passed(
    inputs: Sequence[InputFile],
    settings: ReadSettings,
    places: list[_Place],
    stretch_bytes: float,
    chance: random.Random,
) -> Iterator[tuple[_Place, SampledText]]:
    """Samples of row groups and compressed files, as many of each as places fall into it.

    A block is kept with a chance in proportion to its length, so each is weighted by its own bytes.
    """
    for index, located in itertools.groupby(places, lambda place: place.index):
        file, of_file = inputs[index], list(located)
        offsets = [place.offset for place in of_file]
        for stretch, count in _stretches(file, settings, offsets):
            passed_bytes = _PASSED_BYTES * count // len(places)
            samples = _keep_some(file, settings, stretch, count, passed_bytes, chance)
            for sample in samples:
                share = stretch_bytes * count / len(samples)
                weight = share / sample.input_bytes
                yield of_file[0], replace(sample, stands_for=weight, stretch_bytes=share)


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
    files: Sequence[InputFile], settings: ReadSettings, offset: int, most_input_bytes: float
) -> SampledText | None:
    """A sample from about that byte of the first file on, or None where there is none."""
    kind = files[0].kind
    position = _aligned(files[0], offset)
    first = _stored_at(files[0], position)
    text_bytes = settings.block_bytes
    if kind is not InputKind.TEXT:
        settings = replace(settings, block_bytes=text_bytes // _PIECES)
    started = time.perf_counter()
    found: list[Block] = []
    for row in _whole_rows(
        read_blocks(files, settings, start=Cursor(file=0, position=position)), kind
    ):
        if not found and not any(block.text for block in row):
            continue
        found += row
        input_bytes = _bytes_before(files, row[-1].after) - first
        enough = sum(block.text_bytes for block in found) >= text_bytes
        if kind is InputKind.TEXT or enough or input_bytes >= most_input_bytes:
            break
    if not found:
        return None
    return _sampled(tuple(found), input_bytes, time.perf_counter() - started)


def _whole_rows(blocks: Iterable[Block], kind: InputKind) -> Iterator[tuple[Block, ...]]:
    """The blocks one by one; those of a row that is cut together, for only its end has a place."""
    row: list[Block] = []
    for block in blocks:
        row.append(block)
        if kind is InputKind.TEXT or not block.after.within:
            yield tuple(row)
            row.clear()


def _aligned(file: InputFile, offset: int) -> int:
    """A position at which reading may start: a row, a line of JSON, or behind a blank in text.

    Text that began at a line would be short lines more often than all of it is.
    """
    if file.kind is InputKind.ARROW:
        return measure_extent(file) * offset // max(1, file.size_bytes)
    if not offset:
        return 0
    with file.path.open("rb") as opened:
        opened.seek(offset)
        if file.kind is InputKind.TEXT:
            found = _BLANK.search(opened.read(_ALIGNED_BYTES))
            return offset + found.end() if found else file.size_bytes
        while data := opened.read(_ALIGNED_BYTES):
            if (end := data.find(b"\n")) >= 0:
                return opened.tell() - len(data) + end + 1
    return file.size_bytes


def _bytes_before(files: Sequence[InputFile], cursor: Cursor) -> int:
    """Stored bytes of all files before a cursor."""
    passed = sum(file.size_bytes for file in files[: cursor.file])
    if cursor.file == len(files):
        return passed
    return passed + _stored_at(files[cursor.file], cursor.position)


def _stored_at(file: InputFile, position: int) -> int:
    """The stored byte of a position: the same for plain text, by share of the rows elsewhere."""
    if file.kind is InputKind.ARROW:
        return file.size_bytes * position // max(1, measure_extent(file))
    return position


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A row group or a compressed file, which is read from front to back."""

    start: int
    length: int | None = None
    """Number of rows; None where only reading tells."""
    text_bytes: int = 0
    """Size of the column that holds the text, before compression; unknown for a compressed file."""
    stored_bytes: float = 0.0
    """Its share of the file, going by `text_bytes`."""


def _stretches(
    file: InputFile, settings: ReadSettings, offsets: Sequence[int]
) -> Iterator[tuple[_Stretch, int]]:
    """The stretches of a file that places fall into, and how many do."""
    if file.compression:
        yield _Stretch(start=0), len(offsets)
        return
    before, left = 0.0, len(offsets)
    for group in _row_groups(file, settings):
        before += group.stored_bytes
        count = left - sum(offset >= before for offset in offsets)
        left -= count
        if count:
            yield group, count


def _row_groups(file: InputFile, settings: ReadSettings) -> list[_Stretch]:
    """Row groups that have rows."""
    part = Part(file=file, settings=settings, start=Cursor(file=0, position=0))
    with open_parquet(part) as opened, explain_damage(file.path):
        found = [
            opened.metadata.row_group(index) for index in range(opened.metadata.num_row_groups)
        ]
        sizes = [_text_bytes(group, settings.column) for group in found]
        stored_share = file.size_bytes / max(1, sum(sizes))
        groups, row = [], 0
        for group, size in zip(found, sizes, strict=True):
            groups.append(
                _Stretch(
                    start=row,
                    length=group.num_rows,
                    text_bytes=size,
                    stored_bytes=size * stored_share,
                )
            )
            row += group.num_rows
    return [group for group in groups if group.length]


def _text_bytes(group: pq.RowGroupMetaData, column: str) -> int:
    """The size of a row group's column; of all columns, where examples come from several."""
    chunks = (group.column(index) for index in range(group.num_columns))
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
    return max(1, size or group.total_byte_size) if group.num_rows else 0


@dataclass(frozen=True, slots=True, order=True)
class _Passed:
    """A block on the way, or all blocks of a row that is cut."""

    key: float
    """Those with the highest are kept."""
    number: int
    text_bytes: int
    blocks: tuple[Block, ...] = field(compare=False)


def _keep_some(
    file: InputFile,
    settings: ReadSettings,
    stretch: _Stretch,
    count: int,
    most_bytes: int,
    chance: random.Random,
) -> list[SampledText]:
    """Read a stretch, or its front; keep `count` blocks, each as likely as it is long (Efraimidis-Spirakis).

    How much text and how many documents there are is known for all that was passed, and each sample has its
    share of that.
    """
    kept: list[_Passed] = []
    held_bytes = text_bytes = documents = 0
    started = time.perf_counter()
    last = None
    end = None if stretch.length is None else stretch.start + stretch.length
    read = read_blocks([file], settings, start=Cursor(file=0, position=stretch.start))
    for number, blocks in enumerate(_whole_rows(read, file.kind)):
        last = blocks[-1]
        size = sum(block.text_bytes for block in blocks)
        text_bytes += size
        documents += sum(block.document_count for block in blocks)
        key = math.log(1 - chance.random()) / max(1, size)
        heapq.heappush(kept, _Passed(key, number, size, blocks))
        held_bytes += size
        while len(kept) > 1 and (
            len(kept) > count or held_bytes > _HELD_BLOCKS * count * settings.block_bytes
        ):
            held_bytes -= heapq.heappop(kept).text_bytes
        if text_bytes >= most_bytes or (end is not None and last.after.position >= end):
            break
    if last is None or not text_bytes:
        return []
    seconds = time.perf_counter() - started
    stored_bytes = _passed_stored(stretch, last)
    kept.sort(key=lambda passed: passed.number)
    return [
        SampledText(
            blocks=passed.blocks,
            input_bytes=max(1.0, stored_bytes * passed.text_bytes / text_bytes),
            documents=documents * passed.text_bytes / text_bytes,
            seconds=seconds * passed.text_bytes / text_bytes,
        )
        for passed in kept
        if passed.text_bytes
    ]


def _passed_stored(stretch: _Stretch, last: Block) -> float:
    """Stored bytes of a stretch up to the end of a block; the last may reach into the next row group."""
    if stretch.length is None:
        return last.input_done_bytes
    rows = stretch.length if last.after.file else last.after.position - stretch.start
    return stretch.stored_bytes * rows / stretch.length


def _mark(inputs: Sequence[InputFile], settings: ReadSettings) -> bytes:
    """The bytes between two documents, if they are the same in all inputs; else none."""
    kinds = {file.kind for file in inputs}
    if kinds == {InputKind.JSONL}:
        return b"\n"
    if kinds == {InputKind.TEXT} and settings.separator not in ("file", "blank-line"):
        return b"\n" if settings.separator == "line" else settings.separator.encode()
    return b""


def _count_marks(inputs: Sequence[InputFile], mark: bytes, seed: int) -> float:
    """How often a mark stands in the inputs; a last document without one counts too."""
    rates = []
    for place in _draw(inputs, _COUNTED_PLACES, random.Random(seed)):
        file = inputs[place.index]
        start = max(0, min(place.offset, file.size_bytes - _COUNTED_BYTES))
        with file.path.open("rb") as opened:
            opened.seek(start)
            data = opened.read(_COUNTED_BYTES)
        ends_open = start + len(data) >= file.size_bytes and not data.endswith(mark)
        rates.append((data.count(mark) + ends_open) / max(1, len(data)))
    return sum(file.size_bytes for file in inputs) * sum(rates) / len(rates)


def _sampled(blocks: tuple[Block, ...], input_bytes: float, seconds: float) -> SampledText:
    return SampledText(
        blocks=blocks,
        input_bytes=max(1.0, input_bytes),
        documents=sum(block.document_count for block in blocks),
        seconds=seconds,
    )
