"""How near `tokenize --dry-run` comes, on six corpora that are hard to predict: predicted beside measured.

    python bench/dry_run.py --out /tmp/dry-run --megabytes 40

Each corpus is made once, tokenized once, and predicted with as many seeds as `--seeds` says.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import gzip
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from bench.distinct_words import distinct_words
from lowtide.settings import TokenizeSettings
from lowtide.stages.estimate import Estimate, estimate
from lowtide.stages.tokenize import tokenize


def write_parquet(path: Path, texts: list[str]) -> None:
    """Row groups of 1 to 4,000 rows: first many short rows, then few long ones."""
    texts = [*sorted(texts[::2], key=len), *texts[1::2]]
    chance = random.Random(1)
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
        while texts:
            count = int(4000 ** chance.random())
            writer.write_table(pa.table({"text": texts[:count]}))
            texts = texts[count:]


def write_sorted_lines(path: Path, texts: list[str]) -> None:
    """JSON lines, the shortest first."""
    rows = (
        json.dumps({"id": row, "text": text}) for row, text in enumerate(sorted(texts, key=len))
    )
    path.write_text("\n".join([*rows, ""]))


def write_padded_lines(path: Path, texts: list[str]) -> None:
    """JSON lines, the shortest first; every other one, by chance, has 30,000 bytes in another field."""
    chance = random.Random(1)
    with path.open("w") as file:
        for text in sorted(texts, key=len):
            note = "x" * 30_000 * chance.randrange(2)
            file.write(json.dumps({"note": note, "text": text}) + "\n")


def write_text(path: Path, texts: list[str]) -> None:
    """One document."""
    path.write_text("\n".join(texts))


def write_many(path: Path, texts: list[str]) -> None:
    """A folder with a file for every eight documents."""
    path.mkdir()
    for number in range(0, len(texts), 8):
        (path / f"{number:06}.txt").write_text("\n".join(texts[number : number + 8]))


def write_gz(path: Path, texts: list[str]) -> None:
    """Packed JSON lines, in which prose comes before code."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for text in sorted(texts, key=lambda text: "_" in text[:2000]):
            file.write(json.dumps({"text": text}) + "\n")


CORPORA: dict[str, Callable[[Path, list[str]], None]] = {
    "uneven.parquet": write_parquet,
    "sorted.jsonl": write_sorted_lines,
    "padded.jsonl": write_padded_lines,
    "one.txt": write_text,
    "many": write_many,
    "packed.jsonl.gz": write_gz,
}


def make_texts(megabytes: int, seed: int = 0) -> list[str]:
    """Documents of 20 to 60,000 characters, short ones far more often; a third of them read like code."""
    chance = random.Random(seed)
    pool = b" ".join(distinct_words(40_000, seed)).decode()
    words = " ".join(word for word in pool.split(" ")[:60_000] if word.isalpha())
    texts = []
    left = megabytes * 10**6
    while left > 0:
        length = int(20 * 3000 ** chance.random())
        source = pool if chance.random() < 1 / 3 else words
        start = chance.randrange(len(source) - length)
        texts.append(source[start : start + length])
        left -= length
    return texts


def make_corpora(folder: Path, megabytes: int) -> list[Path]:
    """Every corpus of the same documents, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in CORPORA]
    if not all(path.exists() for path in paths):
        texts = make_texts(megabytes)
        for path, write in zip(paths, CORPORA.values(), strict=True):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            write(path, texts)
    return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Predictions of one corpus beside what it came to."""

    name: str
    estimates: list[Estimate]
    took_seconds: list[float]
    """Of each prediction."""
    tokens: int
    documents: int
    seconds: float

    @property
    def covered(self) -> float:
        """Share of the predictions whose stated spread holds the tokens."""
        return statistics.fmean(
            abs(one.tokens - self.tokens) <= one.tokens_spread * one.tokens
            for one in self.estimates
        )

    @property
    def time_error(self) -> float:
        """Of the prediction that was made last before the run, as a share of what was measured."""
        return abs(self.estimates[-1].seconds / self.seconds - 1)

    def worst(self, figure: str) -> float:
        """The largest error of a figure over all seeds, as a share of what was measured."""
        truth = getattr(self, figure)
        return max(abs(getattr(one, figure) / truth - 1) for one in self.estimates)

    def row(self) -> str:
        """Of the table in docs/benchmarks.md; of the time, the prediction right before the run counts."""
        spread = statistics.median(one.tokens_spread for one in self.estimates)
        last = self.estimates[-1]
        return (
            f"| {self.name} | {100 * self.worst('tokens'):.1f} % | ± {100 * spread:.1f} % "
            f"| {100 * self.covered:.0f} of 100 | {100 * self.worst('documents'):.1f} % "
            f"| {last.seconds:.1f} s | {self.seconds:.1f} s "
            f"| {statistics.median(self.took_seconds):.2f} s |"
        )


def compare(path: Path, out: Path, *, seeds: int) -> Compared:
    """Predict a corpus with several seeds, then tokenize it."""
    settings = TokenizeSettings()
    estimates, took = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        estimates.append(estimate([str(path)], out, settings, memory="512MiB", seed=seed))
        took.append(time.perf_counter() - started)
    started = time.perf_counter()
    real = tokenize([str(path)], out, settings, memory="512MiB")
    seconds = time.perf_counter() - started
    shutil.rmtree(out)
    return Compared(
        name=path.name,
        estimates=estimates,
        took_seconds=took,
        tokens=real.manifest.tokens,
        documents=real.manifest.documents,
        seconds=seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=100)
    chosen = parser.parse_args()
    print(
        "| corpus | tokens, worst error | spread | it holds the truth | documents, worst error ",
        end="",
    )
    print("| time predicted | measured | the prediction takes |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for path in make_corpora(chosen.out / "corpora", chosen.megabytes):
        print(compare(path, chosen.out / "tokens", seeds=chosen.seeds).row(), flush=True)


if __name__ == "__main__":
    main()
