"""Jobs for a process of their own, because a signal or a cgroup may end it.

Each prints one JSON object when it comes to its end; a negative return code is the signal that ended it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lowtide
from lowtide.errors import VerificationError
from lowtide.memory.meter import private_bytes

ROOT = Path(__file__).parent.parent
BATCH_WINDOWS = 64
CONTEXT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended."""

    returncode: int
    found: dict[str, object]
    """What it printed; empty where it did not come to its end."""
    stderr: str


def job_command(name: str, *arguments: str | Path | int) -> list[str]:
    """What runs the job from anywhere."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import loading_jobs; "
    return [sys.executable, "-c", start + "loading_jobs.main()", name, *map(str, arguments)]


def run_job(name: str, *arguments: str | Path | int) -> JobResult:
    """Run a job to its end."""
    done = subprocess.run(
        job_command(name, *arguments), capture_output=True, text=True, timeout=300, check=False
    )
    found = json.loads(done.stdout) if done.stdout else {}
    return JobResult(returncode=done.returncode, found=found, stderr=done.stderr)


def main() -> None:
    jobs = {
        "race": race,
        "foreign": meet_a_foreign_bus_error,
        "epoch": read_an_epoch,
        "batches": measure_batches,
    }
    print(json.dumps(jobs[sys.argv[1]](*sys.argv[2:])))


def race(folder: str, windows: str, faults: str, rounds: str) -> dict[str, object]:
    """Cut a shard while batches are read, again and again; every batch given out is compared.

    `faults`: whether faulthandler is put in place "before" lowtide, "after" it, or "never".
    """
    pristine = Path(folder)
    if faults == "before":
        faulthandler.enable()
    wanted = lowtide.TokenDataset(pristine, context=CONTEXT, windows=_kind(windows))
    wanted.batch(0, BATCH_WINDOWS)
    started = time.monotonic()
    expected = [wanted.batch(k, BATCH_WINDOWS) for k in range(4)]
    longest_delay = time.monotonic() - started
    if faults == "after":
        faulthandler.enable()
    delays = np.random.default_rng(5)
    batches = 0
    for number in range(int(rounds)):
        copy = pristine.with_name("copy")
        shutil.copytree(pristine, copy)
        begun = threading.Event()
        if number % 2:  # every other time, not even the first batch is waited for
            begun.set()
        delay = delays.uniform(0, longest_delay)
        batches += _read_until_cut(copy, _kind(windows), expected, begun, delay)
        shutil.rmtree(copy)
    return {"batches": batches}


def _kind(windows: str) -> lowtide.dataset.token_dataset.WindowKind:
    return "document" if windows == "document" else "contiguous"


def _read_until_cut(
    folder: Path,
    windows: lowtide.dataset.token_dataset.WindowKind,
    expected: list[tuple[np.ndarray, np.ndarray]],
    begun: threading.Event,
    delay: float,
) -> int:
    """How many batches were read and right before the error that must come."""
    dataset = lowtide.TokenDataset(folder, context=CONTEXT, windows=windows)
    shard = dataset.files[-1].path

    def cut() -> None:
        begun.wait()
        time.sleep(delay)
        os.truncate(shard, dataset.files[-1].header_bytes)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for k in range(100_000):
            x, y = dataset.batch(k % len(expected), BATCH_WINDOWS)
            assert np.array_equal(x, expected[k % len(expected)][0]), "a wrong token"
            assert np.array_equal(y, expected[k % len(expected)][1]), "a wrong target"
            begun.set()
    except VerificationError as error:
        if shard.name in error.problem:
            return k
        raise
    finally:
        begun.set()
        cutter.join()
    raise AssertionError("the cut was never seen")


def meet_a_foreign_bus_error(folder: str, faults: str, how: str) -> dict[str, object]:
    """Touch a cut file through a map that is not ours, or be sent the signal: must end this process."""
    if faults == "before":
        faulthandler.enable()
    dataset = lowtide.TokenDataset(folder, context=CONTEXT)
    dataset.batch(0, 4)
    if faults == "after":
        faulthandler.enable()
        dataset.batch(1, 4)
    if how == "sent":
        os.kill(os.getpid(), signal.SIGBUS)
        return {"still": "here"}
    other = Path(folder).with_name("other.bin")
    other.write_bytes(bytes(1 << 20))
    mapped = np.memmap(other, dtype=np.uint8, mode="r")
    os.truncate(other, 0)
    return {"read": int(mapped[1 << 19])}


def read_an_epoch(path: str, order: str) -> dict[str, object]:
    """Every window of one epoch: what all tokens add up to, and what that took."""
    kind = "sequential" if order == "sequential" else "shuffled"
    dataset = lowtide.TokenDataset(path, context=1024, order=kind)
    dataset.batch(0, 32)
    before = private_bytes()
    total = 0
    for x, _ in dataset.epoch(32):
        total += int(x.sum())
    return {
        "sum": total,
        "tokens": dataset.tokens,
        "grown_bytes": private_bytes() - before,
        "torch": "torch" in sys.modules,
    }


def measure_batches(path: str, windows: str, batch_size: str) -> dict[str, object]:
    """Private memory after 1, 100 and 2,000 batches."""
    dataset = lowtide.TokenDataset(path, context=1024, windows=_kind(windows))
    after = []
    for k in range(2000):
        dataset.batch(k, int(batch_size))
        if k + 1 in (1, 100, 2000):
            after.append(private_bytes())
    return {"after": after, "epochs": 2000 * int(batch_size) / dataset.window_count}
