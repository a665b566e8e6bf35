"""Prove the trainer's budget: long texts and millions of words, each inside a cgroup as large as the budget.

    python bench/corpus.py --out /tmp/corpus --megabytes 1050
    python bench/train_budget.py /tmp/corpus

A job passes when it finishes with exit code 0, without an OOM kill, and has written what a run with
`--free-memory` writes, byte for byte. Where no cgroup can be made, memory is only sampled, and the table
says so. Twenty million distinct words are made once for both runs (530 MB, removed afterwards).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import filecmp
import subprocess
import tempfile
import time
from dataclasses import dataclass

from bench.budget import Job, from_corpus, front_of_text, made, verdict
from bench.distinct_words import distinct_words, write_documents
from bench.train_tokenizer import lowtide_command
from lowtide.units import MIB, format_bytes, parse_bytes
from tests.boxes import BoxResult, drop_from_page_cache, run_in_box

DISTINCT_WORDS = 20_000_000
OF_ONE_RUN = "run.json"
"""Tells time and memory, so it differs from run to run; all other files must not."""
_TIMEOUT_SECONDS = 7200


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """A job and the memory it gets."""

    job: Job
    memory: str


def many_words(_corpus: Path, folder: Path) -> Path:
    """Text in which twenty million words differ."""
    path = folder / "words.txt"
    write_documents(path, distinct_words(DISTINCT_WORDS, 0))
    return path


JOBS = (
    Boxed(job=Job(name="100 MB of text", make=front_of_text), memory="256MiB"),
    Boxed(job=Job(name="1 GB of text", make=from_corpus("txt")), memory="256MiB"),
    Boxed(job=Job(name="20 million distinct words", make=many_words), memory="512MiB"),
)


def same_files(out: Path, reference: Path) -> bool:
    """Whether both folders hold the same bytes, but for what the runs took."""
    names = {path.name for folder in (out, reference) for path in folder.iterdir()} - {OF_ONE_RUN}
    equal, _, _ = filecmp.cmpfiles(out, reference, sorted(names), shallow=False)
    return bool(names) and set(equal) == names


def run(boxed: Boxed, path: Path, chosen: argparse.Namespace) -> tuple[BoxResult, str, float]:
    """Train in the box with a cold page cache, then unbounded; returns outcome and seconds in the box."""
    drop_from_page_cache(path)
    with tempfile.TemporaryDirectory(prefix="lowtide-budget-", dir=chosen.scratch) as folder:
        out, free = Path(folder) / "boxed", Path(folder) / "free"
        started = time.monotonic()
        result = run_in_box(
            lowtide_command(path, out, vocab_size=chosen.vocab_size, memory=boxed.memory),
            limit_bytes=parse_bytes(boxed.memory),
            timeout=_TIMEOUT_SECONDS,
        )
        seconds = time.monotonic() - started
        outcome = verdict(boxed.job, result)
        if outcome == "finished":
            unbounded = lowtide_command(
                path, free, vocab_size=chosen.vocab_size, memory=chosen.free_memory
            )
            subprocess.run(unbounded, check=True)
            outcome = "finished, same bytes" if same_files(out, free) else "FAILED: other bytes"
    return result, outcome, seconds


def row(boxed: Boxed, result: BoxResult, outcome: str, seconds: float) -> str:
    """A line of the table."""
    return (
        f"| {boxed.job.name} | {boxed.memory} | {outcome} | {seconds:.0f} s | "
        f"{result.peak_private_bytes / MIB:.0f} MiB | "
        f"{format_bytes(result.peak_charged_bytes or 0)} | {result.how} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="folder made by bench/corpus.py")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument(
        "--free-memory", default="16GiB", help="budget of the run it is compared with"
    )
    parser.add_argument("--scratch", type=Path, help="folder for results; the system's by default")
    parser.add_argument("--only", default="", help="run only the jobs whose name contains this")
    chosen = parser.parse_args()
    print("| input | memory | outcome | time | peak private | charged | proven by |")
    print("|---|--:|---|--:|--:|--:|---|")
    failed = False
    for boxed in JOBS:
        if chosen.only not in boxed.job.name:
            continue
        with made(boxed.job, chosen.corpus) as path:
            result, outcome, seconds = run(boxed, path, chosen)
        print(row(boxed, result, outcome, seconds), flush=True)
        if not outcome.startswith("finished"):
            failed = True
            print(result.stderr[-2000:], file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
