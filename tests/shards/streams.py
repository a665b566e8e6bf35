"""Token streams for the tests, and a small writer that writes them as the stage does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowtide.journal import LOG_NAME
from lowtide.settings import Placement
from lowtide.shards.layout import FORMATS, WORK_FOLDER, ShardLayout, Split
from lowtide.shards.loss_mask import BitArray
from lowtide.shards.manifest import (
    DatasetManifest,
    ExamplesRecord,
    InputRecord,
    SplitRecord,
    TokenizerRecord,
    write_manifest,
)
from lowtide.shards.write import SplitWriter, WriterMark
from lowtide.storage.sealed_json import read_sealed, write_sealed

NARROW = 50257
WIDE = 200019


@dataclass(frozen=True)
class Stream:
    """A split's tokens and where its documents end."""

    ids: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.int64]
    learnt: BitArray | None = None
    """A flag a token, of examples."""

    def chunk(
        self, start: int, stop: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], BitArray | None]:
        """What the stage would hand over for tokens `start` to `stop`."""
        low = 0 if start == 0 else np.searchsorted(self.ends, start, side="right")
        high = np.searchsorted(self.ends, stop, side="right")
        learnt = None if self.learnt is None else self.learnt[start:stop]
        return self.ids[start:stop], self.ends[low:high] - start, learnt


def make_stream(
    lengths: Sequence[int], vocabulary_size: int, *, seed: int = 0, eot: Placement = "end"
) -> Stream:
    """Documents of these lengths (at least 1 each); the last id of the vocabulary is end-of-text."""
    ends = np.cumsum(np.array(lengths, dtype=np.int64), dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, vocabulary_size - 1, total, dtype=np.uint32)
    if eot == "end":
        ids[ends - 1] = vocabulary_size - 1
    if eot == "start":
        ids[ends - np.array(lengths, dtype=np.int64)] = vocabulary_size - 1
    return Stream(ids, ends)


def make_examples(lengths: Sequence[int], vocabulary_size: int, *, seed: int = 0) -> Stream:
    """The same, as examples: each token learnt or not, by chance."""
    stream = make_stream(lengths, vocabulary_size, seed=seed, eot="none")
    learnt = np.random.default_rng(seed + 1).random(len(stream.ids)) < 0.4
    return Stream(stream.ids, stream.ends, learnt)


def tokenizer_record(vocabulary_size: int) -> TokenizerRecord:
    """A tokenizer whose last id is end-of-text."""
    return TokenizerRecord(
        name="test",
        fingerprint="f" * 32,
        vocabulary_size=vocabulary_size,
        end_of_text=vocabulary_size - 1,
        special_tokens={"<|endoftext|>": vocabulary_size - 1},
    )


def every_layout(shard_tokens: int = 100) -> list[ShardLayout]:
    """Each format in both widths."""
    return [
        ShardLayout(format=form, vocabulary_size=size, shard_tokens=shard_tokens)
        for form in FORMATS
        for size in (NARROW, WIDE)
    ]


def layout_name(layout: ShardLayout) -> str:
    return f"{layout.format}-{layout.token_bytes * 8}"


def make_dataset(
    folder: Path,
    layout: ShardLayout,
    *,
    train: Stream,
    val: Stream | None = None,
    eot: Placement = "end",
) -> DatasetManifest:
    """A finished dataset, written in one go."""
    folder.mkdir(parents=True, exist_ok=True)
    records: dict[Split, SplitRecord] = {
        "train": write_split(folder, layout, "train", train),
        "val": write_split(folder, layout, "val", val) if val else SplitRecord(),
    }
    manifest = manifest_of(layout, records, eot="none" if train.learnt is not None else eot)
    write_manifest(folder, manifest)
    (folder / WORK_FOLDER).rmdir()
    return manifest


def manifest_of(
    layout: ShardLayout, records: dict[Split, SplitRecord], *, eot: Placement = "end"
) -> DatasetManifest:
    return DatasetManifest(
        tool_version="0.1.0",
        layout=layout,
        eot=eot,
        tokenizer=tokenizer_record(layout.vocabulary_size),
        splits=records,
        inputs=(InputRecord(name="a.txt", size_bytes=9, fingerprint="0" * 32, kind="text"),),
        settings={"val": 0.0005, "split": "hash", "column": "text"},
        text_bytes=4 * sum(record.tokens for record in records.values()),
        examples=examples_of(records) if any(one.learnt for one in records.values()) else None,
    )


def examples_of(records: dict[Split, SplitRecord]) -> ExamplesRecord:
    return ExamplesRecord(
        kind="chat",
        template="chatml",
        template_text="{{ messages }}",
        learn="assistant",
        too_long="split",
        context=64,
        examples=sum(record.documents for record in records.values()),
        learnt_tokens=sum(record.learnt.tokens for record in records.values() if record.learnt),
        too_long_count=2,
        dropped_count=1,
    )


def write_split(folder: Path, layout: ShardLayout, split: Split, stream: Stream) -> SplitRecord:
    with SplitWriter.start(folder, layout, split, learnt=stream.learnt is not None) as writer:
        writer.append(stream.ids, stream.ends, stream.learnt)
        return writer.seal()


def small_pipeline(
    folder: Path,
    layout: ShardLayout,
    stream: Stream,
    next_stop: Callable[[int], int],
    *,
    checkpoint_every: int,
) -> None:
    """Write a stream as the stage does: resume if there is progress, else start; then a manifest."""
    progress = folder / WORK_FOLDER / "progress.json"
    with open_writer(folder, layout, progress, learnt=stream.learnt is not None) as writer:
        store_mark(writer, progress)
        steps = 0
        while writer.tokens < len(stream.ids):
            writer.append(*stream.chunk(writer.tokens, next_stop(writer.tokens)))
            steps += 1
            if steps % checkpoint_every == 0:
                store_mark(writer, progress)
        record = writer.seal()
    write_manifest(folder, manifest_of(layout, {"train": record}))


def open_writer(
    folder: Path, layout: ShardLayout, progress: Path, *, learnt: bool = False
) -> SplitWriter:
    if not progress.is_file():
        return SplitWriter.start(folder, layout, "train", learnt=learnt)
    mark = WriterMark.from_json(read_sealed(progress), progress)
    return SplitWriter.resume(folder, layout, mark)


def store_mark(writer: SplitWriter, progress: Path) -> None:
    write_sealed(progress, writer.mark().as_json())
    writer.publish_finished()


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every published file; what lies in the work folder is nobody's output, and a log has times in it."""
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if entry.is_file() and entry.name != LOG_NAME
    }


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder per hypothesis example, in memory where that is possible: thousands of fsyncs."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)
