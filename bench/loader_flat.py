"""Prove that reading is flat: a shuffled epoch of gigabytes, inside a cgroup far smaller than they are.

    python bench/loader_flat.py
    python bench/loader_flat.py --gigabytes 0.3 --limit 64MiB --scratch /tmp

The dataset (random ids, a shard for every 100 million) is written to `--scratch`, forgotten by the page
cache, and read once by `TokenDataset.batch` in a box, without torch. It passes when the process ends with exit
code 0, without an OOM kill, and the sum of all tokens that it was given is the sum of those that were
written. A second process, without a box, tells its private memory after 1, 100 and 10,000 batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lowtide.shards.layout import WORK_FOLDER, ShardLayout, TokenArray
from lowtide.shards.manifest import write_manifest
from lowtide.shards.write import SplitWriter
from lowtide.units import format_bytes, format_count, parse_bytes
from tests.boxes import BoxResult, drop_from_page_cache, run_in_box
from tests.shards.streams import NARROW, manifest_of

_BLOCK_TOKENS = 32_000_000
_TIMEOUT_SECONDS = 3600

READ_EPOCH = """
import json, sys, time
started = time.monotonic()
from lowtide import TokenDataset
path, batch_size, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
train = TokenDataset(path, context=context)
total = windows = 0
whole, rest = divmod(train.window_count, batch_size)
for k in range(whole):
    x, y = train.batch(k, batch_size)
    total += int(x.sum())
    windows += len(x)
if rest:
    x, y = train.read(whole * batch_size, rest)
    total += int(x.sum())
    windows += len(x)
assert "torch" not in sys.modules
seconds = time.monotonic() - started
print(json.dumps({"total": total, "windows": windows, "seconds": seconds}))
"""
TELL_PRIVATE = """
import json, sys
from lowtide import TokenDataset
from lowtide.memory.meter import private_bytes
path, batch_size, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
found = {"nothing opened": private_bytes()}
train = TokenDataset(path, context=context)
found["0"] = private_bytes()
for k in range(10_000):
    x, y = train.batch(k, batch_size)
    if k + 1 in (1, 100, 10_000):
        found[f"{k + 1:,}"] = private_bytes()
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was made, and by what it is known again."""

    tokens: int
    total: int
    """The sum of all ids: padding is 0 in `x`, so an exact epoch gives it again."""


def blocks(tokens: int) -> Iterator[TokenArray]:
    """One random block again and again, each time with other bits turned: cheap, and no two are alike."""
    block = np.random.default_rng(0).integers(0, 1 << 15, _BLOCK_TOKENS, dtype=np.uint16)
    for number, start in enumerate(range(0, tokens, _BLOCK_TOKENS)):
        yield block[: min(_BLOCK_TOKENS, tokens - start)] ^ np.uint16(number % (1 << 15))


def write_dataset(folder: Path, tokens: int) -> Written:
    """A folder of lowtide, without an index of documents."""
    layout = ShardLayout(format="npy", vocabulary_size=NARROW)
    total, no_ends = 0, np.empty(0, dtype=np.int64)
    folder.mkdir()
    with SplitWriter.start(folder, layout, "train") as writer:
        for block in blocks(tokens):
            writer.append(block, no_ends)
            total += int(block.sum(dtype=np.int64))
        record = writer.seal()
    write_manifest(folder, manifest_of(layout, {"train": record}))
    (folder / WORK_FOLDER).rmdir()
    return Written(tokens=tokens, total=total)


def forget(folder: Path) -> None:
    """Every file out of the page cache, so that the box is charged for each page that it reads."""
    for path in folder.iterdir():
        drop_from_page_cache(path)


def command(code: str, folder: Path, chosen: argparse.Namespace) -> list[str]:
    return [sys.executable, "-c", code, str(folder), str(chosen.batch), str(chosen.context)]


def verdict(result: BoxResult, written: Written) -> str:
    """`finished, every token once`, or what went wrong."""
    if result.oom_kills:
        return "OOM KILL"
    if result.returncode:
        return f"FAILED ({result.returncode})"
    same = json.loads(result.stdout)["total"] == written.total
    return "finished, every token once" if same else "FAILED: other tokens"


def print_box(
    result: BoxResult, outcome: str, written: Written, chosen: argparse.Namespace
) -> None:
    said = json.loads(result.stdout) if not result.returncode else {}
    seconds = said.get("seconds", float("nan"))
    size_bytes = 2 * written.tokens
    print(
        "| tokens | on disk | limit | outcome | windows | time | MB/s | peak private | charged "
        "| OOM kills | proven by |"
    )
    print("|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|---|")
    print(
        f"| {format_count(written.tokens)} | {size_bytes / 1e9:.1f} GB | {chosen.limit} | "
        f"{outcome} | {said.get('windows', 0):,} | {seconds:.0f} s | "
        f"{size_bytes / 1e6 / seconds:.0f} | {format_bytes(result.peak_private_bytes)} | "
        f"{format_bytes(result.peak_charged_bytes or 0)} | {result.oom_kills} | {result.how} |"
    )


def print_private(folder: Path, chosen: argparse.Namespace) -> None:
    """Private memory of a process that reads without a box."""
    told = subprocess.run(
        command(TELL_PRIVATE, folder, chosen), check=True, capture_output=True, text=True
    )
    print("\n| batches read, without a box | private memory |\n|--:|--:|")
    for batches, private_bytes in json.loads(told.stdout).items():
        print(f"| {batches} | {format_bytes(private_bytes)} |")


def check_room(scratch: Path, wanted_bytes: int) -> None:
    free = shutil.disk_usage(scratch).free
    if free < wanted_bytes + (1 << 30):
        raise SystemExit(
            f"{scratch} has {format_bytes(free)} free, and {format_bytes(wanted_bytes)} are wanted: "
            "pass another --scratch, or fewer --gigabytes"
        )


def choose() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4, help="of uint16 tokens, decimal")
    parser.add_argument("--limit", default="200MiB", help="of the box")
    parser.add_argument("--batch", type=int, default=32, help="windows in a batch")
    parser.add_argument("--context", type=int, default=1024, help="tokens in a window")
    parser.add_argument("--scratch", type=Path, help="folder for the dataset; the system's else")
    return parser.parse_args()


def main() -> None:
    chosen = choose()
    scratch = chosen.scratch or Path(tempfile.gettempdir())
    tokens = int(chosen.gigabytes * 1e9) // 2
    check_room(scratch, 2 * tokens)
    with tempfile.TemporaryDirectory(prefix="lowtide-flat-", dir=scratch) as temporary:
        folder = Path(temporary) / "tokens"
        started = time.monotonic()
        written = write_dataset(folder, tokens)
        forget(folder)
        print(f"written in {time.monotonic() - started:.0f} s", file=sys.stderr)
        print(
            f"an epoch in shuffled order, batches of {chosen.batch} × {chosen.context}, cold page "
            f"cache; {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before\n",
            flush=True,
        )
        result = run_in_box(
            command(READ_EPOCH, folder, chosen),
            limit_bytes=parse_bytes(chosen.limit),
            timeout=_TIMEOUT_SECONDS,
        )
        outcome = verdict(result, written)
        print_box(result, outcome, written, chosen)
        print(result.stderr[-2000:], file=sys.stderr, end="")
        print_private(folder, chosen)
    sys.exit(0 if outcome.startswith("finished") else 1)


if __name__ == "__main__":
    main()
