"""Tokenize the same corpus with lowtide and with the usual ways, in one run, and print the table.

    python bench/corpus.py --out /tmp/corpus --megabytes 1000
    python bench/tokenize.py /tmp/corpus

Each way runs alone in a process of its own, the ways taking turns for `--repeats` rounds. CPU seconds and
peak private memory are those of the whole process tree, start-up and the last fsync included. What is not
installed is left out and named: `pip install -r bench/requirements-tokenize.txt` brings it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path[:1] = []  # this file is called like a standard module, and would hide it

import argparse
import importlib.util
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lowtide.memory.meter import PeakMeter
from lowtide.units import format_bytes

SEPARATOR = "<|endoftext|>"

GIGATOKEN = """
import sys, numpy as np, gigatoken
tokenizer = gigatoken.Tokenizer.from_tiktoken(sys.argv[2])
source = gigatoken.TextFileSource([sys.argv[1]], separator=b"<|endoftext|>")
ids = tokenizer.encode_files(source).layout.content.data
ids.astype(np.uint16).tofile(sys.argv[3] + "/train.bin")
"""
GIGATOKEN_BLOCKS = """
import sys, numpy as np, gigatoken
tokenizer = gigatoken.Tokenizer.from_tiktoken(sys.argv[2])
with open(sys.argv[1], "rb", buffering=0) as text, open(sys.argv[3] + "/train.bin", "wb") as out:
    while block := text.read(8 << 20):
        found = tokenizer.encode_batch(gigatoken.BytesSource(block, b"<|endoftext|>"))
        found.layout.content.data.astype(np.uint16).tofile(out)
"""
NANOGPT = """
import sys, numpy as np, tiktoken
from datasets import Dataset
from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks
from lowtide.tokenizer.patterns import PATTERNS
gpt2 = load_vocabulary("gpt2")
encoding = tiktoken.Encoding("gpt2", pat_str=PATTERNS["gpt2"],
    mergeable_ranks=parse_ranks(gpt2.content, name="gpt2"), special_tokens=gpt2.special_tokens)
def process(example):
    ids = encoding.encode_ordinary(example["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}
if __name__ == "__main__":
    dataset = Dataset.from_parquet(sys.argv[1], cache_dir=sys.argv[3] + "/cache")
    dataset = dataset.map(process, remove_columns=dataset.column_names, num_proc=2)
    total = np.sum(dataset["len"], dtype=np.uint64)
    out = np.memmap(sys.argv[3] + "/train.bin", dtype=np.uint16, mode="w+", shape=(int(total),))
    at = 0
    for number in range(256):
        batch = dataset.shard(num_shards=256, index=number, contiguous=True).with_format("numpy")
        ids = np.concatenate(batch["ids"])
        out[at : at + len(ids)] = ids
        at += len(ids)
    out.flush()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to tokenize: a name, the file it reads, and the command that does it."""

    name: str
    text_bytes: int
    command: Callable[[Path], list[str]]
    needs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a way."""

    cpu_seconds: float
    wall_seconds: float
    peak_private_bytes: int


def ways(corpus: Path, ranks: Path, memory: str) -> list[Way]:
    """Everything that is compared; lowtide's own three first."""
    text, jsonl, parquet = (corpus / f"corpus.{kind}" for kind in ("txt", "jsonl", "parquet"))
    size = text.stat().st_size

    def lowtide(path: Path, *more: str) -> Callable[[Path], list[str]]:
        base = [
            sys.executable,
            "-m",
            "lowtide",
            "tokenize",
            str(path),
            "--quiet",
            "--memory",
            memory,
        ]
        return lambda out: [*base, "--out", str(out / "tokens"), *more]

    def script(code: str, path: Path) -> Callable[[Path], list[str]]:
        return lambda out: [sys.executable, "-c", code, str(path), str(ranks), str(out)]

    return [
        Way(name="lowtide, text", text_bytes=size, command=lowtide(text, "--separator", SEPARATOR)),
        Way(name="lowtide, JSONL", text_bytes=size, command=lowtide(jsonl)),
        Way(name="lowtide, parquet", text_bytes=size, command=lowtide(parquet)),
        Way(name="gigatoken encode_files", text_bytes=size, command=script(GIGATOKEN, text)),
        Way(
            name="gigatoken, 8 MiB blocks", text_bytes=size, command=script(GIGATOKEN_BLOCKS, text)
        ),
        Way(
            name="nanoGPT's way",
            text_bytes=size,
            command=script(NANOGPT, parquet),
            needs="datasets",
        ),
    ]


def measure(way: Way) -> Measured:
    """Run a way in an empty folder; raises when it fails."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic()
        process = subprocess.Popen(
            way.command(Path(folder)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if way.needs else None,
        )
        with PeakMeter(process.pid, interval_seconds=0.1) as meter:
            if process.wait():
                raise SystemExit(f"{way.name} failed with exit code {process.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Measured(
            cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            wall_seconds=time.monotonic() - started,
            peak_private_bytes=meter.peak.private_bytes,
        )


def compare(chosen: list[Way], repeats: int) -> Iterator[tuple[Way, list[Measured]]]:
    """All ways, taking turns, so that a slow minute of the machine hits each of them."""
    found: dict[str, list[Measured]] = {way.name: [] for way in chosen}
    for _ in range(repeats):
        for way in chosen:
            found[way.name].append(measure(way))
    for way in chosen:
        yield way, found[way.name]


def row(way: Way, runs: list[Measured], peer_cpu: float, peer_wall: float) -> str:
    """A line of the table: medians, the range of CPU seconds, and the ratios to gigatoken."""
    cpu = [run.cpu_seconds for run in runs]
    wall = statistics.median(run.wall_seconds for run in runs)
    peak = max(run.peak_private_bytes for run in runs)
    middle = statistics.median(cpu)
    return (
        f"| {way.name} | {middle:.2f} ({min(cpu):.2f}–{max(cpu):.2f}) | {wall:.2f} | "
        f"{way.text_bytes / 1e6 / middle:.0f} | {peer_cpu / middle:.2f} | {peer_wall / wall:.2f} | "
        f"{format_bytes(peak)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="folder made by bench/corpus.py")
    parser.add_argument("--memory", default="256MiB", help="lowtide's budget")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip", default="-", help="leave out the ways whose name contains this")
    chosen = parser.parse_args()
    ranks = Path(tempfile.mkdtemp(prefix="lowtide-bench-")) / "r50k_base.tiktoken"
    _write_ranks(ranks)
    every = ways(chosen.corpus, ranks, chosen.memory)
    present = [way for way in every if not way.needs or importlib.util.find_spec(way.needs)]
    for way in every:
        if way not in present:
            print(f"left out: {way.name} (needs {way.needs})")
    wanted = [way for way in present if chosen.skip not in way.name]
    rows = list(compare(wanted, chosen.repeats))
    peer = next(runs for way, runs in rows if way.name == "gigatoken encode_files")
    peer_cpu = statistics.median(run.cpu_seconds for run in peer)
    peer_wall = statistics.median(run.wall_seconds for run in peer)
    print(
        "| way | CPU s (range) | wall s | MB per CPU s | × gigatoken, CPU | × by the clock | peak private |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for way, runs in rows:
        print(row(way, runs, peer_cpu, peer_wall))
    shutil.rmtree(ranks.parent)


def _write_ranks(path: Path) -> None:
    from lowtide.tokenizer.vocabulary import load_vocabulary

    path.write_bytes(load_vocabulary("gpt2").content)


if __name__ == "__main__":
    main()
