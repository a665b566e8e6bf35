"""Prove the budget: hard inputs, each inside a memory cgroup as large as the budget.

    python bench/corpus.py --out /tmp/corpus --megabytes 1000
    python bench/budget.py /tmp/corpus

A job passes when it finishes with exit code 0 and no OOM kill, or refuses with exit code 1 or 3 and a hint
where the input cannot fit. Where no cgroup can be made, memory is only sampled, and the table says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lowtide.units import MIB, format_bytes, parse_bytes
from tests.boxes import BoxResult, drop_from_page_cache, run_in_box

SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A hard input: how to make it, and whether it must finish or may be refused."""

    name: str
    make: Callable[[Path, Path], Path]
    flags: tuple[str, ...] = ()
    may_refuse: bool = False


def from_corpus(kind: str) -> Callable[[Path, Path], Path]:
    """A file of bench/corpus.py as it is."""
    return lambda corpus, _folder: corpus / f"corpus.{kind}"


def front_of_text(corpus: Path, folder: Path) -> Path:
    """The first 100 MB of the text, cut at a document's end."""
    return _front(corpus / "corpus.txt", folder / "front.txt", SEPARATOR.encode())


def front_of_jsonl(corpus: Path, folder: Path) -> Path:
    """The first 100 MB of the JSONL file, cut at a line's end."""
    return _front(corpus / "corpus.jsonl", folder / "front.jsonl", b"\n")


def front_of_parquet(corpus: Path, folder: Path) -> Path:
    """The row groups that hold the first 100 MB of text, as they are."""
    source = pq.ParquetFile(corpus / "corpus.parquet")
    path = folder / "front.parquet"
    size = 0
    with pq.ParquetWriter(path, source.schema_arrow, compression="zstd") as writer:
        for group in range(source.num_row_groups):
            table = source.read_row_group(group)
            writer.write_table(table)
            size += table.nbytes
            if size > 100_000_000:
                break
    return path


def _front(source: Path, path: Path, end: bytes) -> Path:
    with source.open("rb") as file:
        data = file.read(100_000_000)
    path.write_bytes(data[: data.rindex(end) + len(end)])
    return path


def without_separator(corpus: Path, folder: Path) -> Path:
    """One text of 500 MB that is one document."""
    path = folder / "one.txt"
    left = 500_000_000
    with (corpus / "corpus.txt").open("rb") as file, path.open("wb") as out:
        while left > 0:
            data = file.read(8 << 20).replace(SEPARATOR.encode(), b"\n")
            out.write(data)
            left -= len(data)
    return path


def one_row_group(corpus: Path, folder: Path) -> Path:
    """500 MB in one parquet row group of ordinary rows."""
    path = folder / "group.parquet"
    rows: list[str] = []
    size = 0
    with (corpus / "corpus.jsonl").open() as lines:
        for line in lines:
            rows.append(json.loads(line)["text"])
            size += len(rows[-1])
            if size > 500_000_000:
                break
    table = pa.table({"text": pa.array(rows, pa.large_string())})
    pq.write_table(table, path, row_group_size=len(rows), compression="zstd")
    assert pq.ParquetFile(path).num_row_groups == 1
    return path


def new_words(_corpus: Path, folder: Path) -> Path:
    """400 MB in which no word comes twice: eight letters that spell a number, each number once."""
    path = folder / "words.txt"
    places = 26 ** np.arange(8)
    with path.open("wb") as out:
        for start in range(0, 44_500_000, 500_000):
            numbers = np.arange(start, start + 500_000) * 4_826_809_333 % 26**8  # coprime to 26
            spelled = np.full((len(numbers), 9), ord(" "), dtype=np.uint8)
            spelled[:, :8] = ord("a") + numbers[:, None] // places % 26
            out.write(spelled.tobytes())
    return path


def giant_line(_corpus: Path, folder: Path) -> Path:
    """A JSONL file whose second line is 300 MB long."""
    path = folder / "giant.jsonl"
    with path.open("w") as out:
        out.write('{"text": "small"}\n{"text": "')
        for _ in range(300):
            out.write("some words that repeat. " * 41_667)
        out.write('"}\n')
    return path


def giant_value(_corpus: Path, folder: Path) -> Path:
    """A parquet file with one value of 300 MB."""
    path = folder / "giant.parquet"
    value = "some words that repeat. " * 12_500_000
    pq.write_table(pa.table({"text": ["small", value, "small"]}), path, use_dictionary=False)
    return path


JOBS = (
    Job(name="100 MB of text", make=front_of_text, flags=("--separator", SEPARATOR)),
    Job(name="1 GB of text", make=from_corpus("txt"), flags=("--separator", SEPARATOR)),
    Job(name="100 MB of JSONL", make=front_of_jsonl),
    Job(name="1 GB of JSONL", make=from_corpus("jsonl")),
    Job(name="100 MB of parquet", make=front_of_parquet),
    Job(name="1 GB of parquet", make=from_corpus("parquet")),
    Job(name="one row group of 500 MB", make=one_row_group),
    Job(name="400 MB of words never seen before", make=new_words),
    Job(name="500 MB of text without a separator", make=without_separator),
    Job(name="a JSON line of 300 MB", make=giant_line, may_refuse=True),
    Job(name="a parquet value of 300 MB", make=giant_value, may_refuse=True),
)


def run(job: Job, path: Path, memory: str) -> BoxResult:
    """Tokenize one input inside a box as large as the budget, with a cold page cache."""
    drop_from_page_cache(path)
    with tempfile.TemporaryDirectory(prefix="lowtide-budget-") as out:
        command = [sys.executable, "-m", "lowtide", "tokenize", str(path), "--memory", memory]
        command += ["--out", f"{out}/tokens", *job.flags]
        return run_in_box(command, limit_bytes=parse_bytes(memory), timeout=1800)


def verdict(job: Job, result: BoxResult) -> str:
    """`finished`, `refused` where that is allowed, or what went wrong."""
    if result.oom_kills:
        return "OOM KILL"
    if result.returncode == 0:
        return "finished"
    refused = result.returncode in (1, 3) and "hint:" in result.stderr
    return "refused with a hint" if job.may_refuse and refused else f"FAILED ({result.returncode})"


@contextmanager
def made(job: Job, corpus: Path) -> Iterator[Path]:
    """The job's input, removed afterwards if it was made for it."""
    folder = Path(tempfile.mkdtemp(prefix="lowtide-budget-"))
    try:
        yield job.make(corpus, folder)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="folder made by bench/corpus.py")
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--only", default="", help="run only the jobs whose name contains this")
    chosen = parser.parse_args()
    print(f"| input, in {chosen.memory} | outcome | peak private | charged | proven by |")
    print("|---|---|--:|--:|---|")
    failed = False
    for job in JOBS:
        if chosen.only not in job.name:
            continue
        with made(job, chosen.corpus) as path:
            result = run(job, path, chosen.memory)
        outcome = verdict(job, result)
        failed = failed or outcome.isupper() or outcome.startswith(("OOM", "FAILED"))
        charged = result.peak_charged_bytes or 0
        print(
            f"| {job.name} | {outcome} | {result.peak_private_bytes / MIB:.0f} MiB | "
            f"{format_bytes(charged)} | {result.how} |",
            flush=True,
        )
        if outcome.startswith(("OOM", "FAILED")):
            print(result.stderr[-2000:], file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
