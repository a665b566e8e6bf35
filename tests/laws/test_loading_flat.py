"""A dataset is read in a few megabytes of its own, however large it is, and is open at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.shards.layout import ShardLayout, npy_header
from lowtide.units import MIB
from tests.boxes import BoxResult, drop_from_page_cache, run_in_box
from tests.loading_jobs import job_command, run_job
from tests.machine_speed import slowness
from tests.shards.streams import NARROW, fresh_folder, make_dataset, make_stream

MB = 1_000_000


def write_tokens(folder: Path, *, file_count: int, file_tokens: int) -> int:
    """`.npy` shards as peers leave them, out of the page cache; what all ids add up to."""
    folder.mkdir()
    ids = np.random.default_rng(3).integers(0, NARROW, file_tokens, dtype=np.uint16)
    total = 0
    for number in range(file_count):
        ids += np.uint16(1)  # every file is another
        path = folder / f"train_{number:06d}.npy"
        path.write_bytes(npy_header("<u2", file_tokens) + ids.tobytes())
        total += int(ids.sum(dtype=np.int64))
    for path in folder.iterdir():
        drop_from_page_cache(path)
    return total


def read_in_box(folder: Path, order: str, limit_bytes: int) -> BoxResult:
    return run_in_box(job_command("epoch", folder, order), limit_bytes=limit_bytes, timeout=300)


@pytest.mark.slow
@pytest.mark.cgroup
@pytest.mark.parametrize(
    ("file_count", "file_tokens", "order"),
    [(1, 150 * MB, "shuffled"), (1, 75 * MB, "sequential"), (1000, 50_000, "shuffled")],
)
def test_a_dataset_larger_than_the_box_is_read_through_in_it(
    tmp_path: Path, file_count: int, file_tokens: int, order: str
) -> None:
    total = write_tokens(tmp_path / "tokens", file_count=file_count, file_tokens=file_tokens)
    done = read_in_box(tmp_path / "tokens", order, limit_bytes=64 * MIB)
    assert (done.returncode, done.oom_kills) == (0, 0), done
    found = json.loads(done.stdout)
    assert found["tokens"] == file_count * file_tokens
    assert found["sum"] == total
    assert found["grown_bytes"] < 5 * MB
    assert found["torch"] is False
    assert done.peak_private_bytes < 48 * MIB


@pytest.mark.parametrize(("windows", "batch_size"), [("contiguous", 32), ("document", 4)])
def test_private_memory_is_the_same_after_1_and_100_and_2000_batches(
    tmp_path: Path, windows: str, batch_size: int
) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=MB)
    make_dataset(tmp_path, layout, train=make_stream([900, 1, 3000, 200] * 800, NARROW))
    done = run_job("batches", tmp_path, windows, batch_size)
    assert done.returncode == 0, done.stderr
    after = done.found["after"]
    assert isinstance(after, list)
    assert max(after) - min(after) < 5 * MB, after
    assert float(str(done.found["epochs"])) > 1


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "a peer's"])
def test_a_thousand_shards_are_open_in_50_milliseconds(ours: bool) -> None:
    with fresh_folder() as folder:
        layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=100)
        make_dataset(folder, layout, train=make_stream([1000] * 100, NARROW))
        if not ours:
            (folder / "lowtide.json").unlink()
        assert len(lowtide.TokenDataset(folder, context=64).files) == 1000
        assert min(seconds_to_open(folder) for _ in range(10)) < 0.050 * slowness()


def seconds_to_open(folder: Path) -> float:
    """Of this process alone: the files are in memory, and others use the machine too."""
    started = time.process_time()
    lowtide.TokenDataset(folder, context=64)
    return time.process_time() - started
