"""Memory stays where it is while files grow: pieces of 8 MiB, indexes on the disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide.shards.describe import describe_dataset
from lowtide.shards.layout import ShardLayout
from lowtide.shards.read import open_dataset
from lowtide.shards.verify import verify_dataset
from lowtide.shards.write import SplitWriter, needs_bytes
from lowtide.stages.export import export_dataset
from lowtide.units import MIB
from tests.shards.streams import NARROW, Stream, make_dataset, tokenizer_record
from tests.shards.test_read import strip

TOKENS = 16_000_000
DOCUMENTS = 4_000_000  # 32 MB of tokens and 32 MB of index: neither would fit in the limits below


@pytest.fixture(scope="module")
def long_stream() -> Stream:
    ids = np.tile(np.array([1, 2, 3, NARROW - 1], dtype=np.uint16), DOCUMENTS)
    return Stream(ids, np.arange(4, TOKENS + 1, 4))  # type: ignore[arg-type]


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that Python and numpy had allocated at once while it worked."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("learnt", [False, True], ids=["text", "examples"])
@pytest.mark.parametrize("form", ["npy", "megatron"])
def test_a_writer_holds_what_it_says(
    form: str, learnt: bool, long_stream: Stream, tmp_path: Path
) -> None:
    layout = ShardLayout(format=form, vocabulary_size=NARROW)  # type: ignore[arg-type]
    step = 400_000
    flags = np.ones(step, dtype=np.bool_) if learnt else None

    def write() -> None:
        with SplitWriter.start(tmp_path, layout, "train", learnt=learnt) as writer:
            for start in range(0, TOKENS, step):
                ends = long_stream.ends[start // 4 : (start + step) // 4] - start
                writer.append(long_stream.ids[start : start + step], ends, flags)
            mark = writer.mark()
        with SplitWriter.resume(tmp_path, layout, mark) as writer:
            writer.seal()

    ends_of_a_step_bytes = 3 * 8 * step // 4
    assert peak_bytes(write) < needs_bytes(1, learnt=learnt) + ends_of_a_step_bytes


def test_reading_proving_and_copying_hold_pieces(long_stream: Stream, tmp_path: Path) -> None:
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    make_dataset(tmp_path / "in", layout, train=long_stream)
    dataset = open_dataset(tmp_path / "in")
    assert peak_bytes(lambda: verify_dataset(tmp_path / "in")) < 12 * MIB
    assert peak_bytes(lambda: describe_dataset(dataset)) < 12 * MIB
    export = peak_bytes(lambda: export_dataset(dataset, "llmc", tmp_path / "out"))
    assert export < 24 * MIB


def test_a_scan_for_documents_holds_pieces(long_stream: Stream, tmp_path: Path) -> None:
    layout = ShardLayout(format="nanogpt", vocabulary_size=NARROW)
    make_dataset(tmp_path, layout, train=long_stream)
    strip(tmp_path)
    train = open_dataset(tmp_path, tokenizer=tokenizer_record(NARROW)).splits["train"]
    assert peak_bytes(lambda: train.document_count) < 24 * MIB
    assert peak_bytes(lambda: train.document(DOCUMENTS - 1)) < 24 * MIB
    assert train.document_count == DOCUMENTS
    assert train.document(DOCUMENTS - 1) == (TOKENS - 4, TOKENS)
