"""The story of `--dry-run`: what a run would read, write, use and take, from a few samples of the input."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import DoesNotFitError
from lowtide.memory.budget import Budget
from lowtide.pipeline.prepare import Prepared, prepare
from lowtide.pipeline.settings import TokenizeSettings
from lowtide.source.sample import SampledText, sample_inputs
from lowtide.tokenizer.encode import Encoder
from lowtide.units import KIB, format_bytes, format_count, format_seconds

_SAMPLES = 16
_SAMPLE_BYTES = 256 * KIB
_INDEX_ENTRY_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Figures before the work. Sizes of inputs and free disk are measured, the rest is predicted."""

    inputs: int
    input_bytes: int
    sampled_bytes: int
    tokens: int
    tokens_spread: float
    """Standard error of `tokens` as a share of it; 0 when everything was sampled."""
    documents: int
    text_bytes: int
    disk_needed_bytes: int
    disk_free_bytes: int
    seconds: float
    budget: str
    spending: dict[str, int]
    workers: int
    longest_line_bytes: int
    longest_word_bytes: int

    def rows(self) -> list[tuple[str, str]]:
        """The estimate as names and sentences, each figure with where it comes from."""
        spread = f"± {100 * self.tokens_spread:.1f} %"
        spent = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.spending.items())
        return [
            ("input", f"{self.inputs} files, {format_bytes(self.input_bytes)} (measured)"),
            ("sample", f"{format_bytes(self.sampled_bytes)} of text read"),
            ("tokens", f"{format_count(self.tokens)} {spread} (predicted from the sample)"),
            ("documents", f"{format_count(self.documents)} (predicted from the sample)"),
            (
                "disk",
                f"{format_bytes(self.disk_needed_bytes)} needed (predicted), "
                f"{format_bytes(self.disk_free_bytes)} free (measured)",
            ),
            ("time", f"{format_seconds(self.seconds)} (predicted from a short probe)"),
            ("memory", f"budget {self.budget}"),
            ("spent on", spent),
            (
                "limits",
                f"lines and values up to {format_bytes(self.longest_line_bytes)}, stretches without a "
                f"safe cut up to {format_bytes(self.longest_word_bytes)}",
            ),
        ]


def estimate(
    inputs: Sequence[str],
    out: str | Path,
    settings: TokenizeSettings,
    *,
    memory: Budget | str | None = None,
    workers: int | None = None,
) -> Estimate:
    """Predict a run from a few hundred KiB; refuse (exit 3) what cannot fit on the disk."""
    prepared = prepare(inputs, settings, memory=memory, workers=workers)
    read = replace(prepared.read, block_bytes=_SAMPLE_BYTES, tail=None)
    samples = sample_inputs(prepared.inputs, read, count=_SAMPLES)
    rates, seconds = _probe(samples, prepared)
    found = _predict(prepared, samples, rates, seconds, _free_bytes(Path(out)))
    if found.disk_needed_bytes > found.disk_free_bytes:
        raise DoesNotFitError(
            f"about {format_bytes(found.disk_needed_bytes)} will be written and "
            f"{format_bytes(found.disk_free_bytes)} are free where {out} lies",
            remedy="free space or pass an `--out` on a larger disk",
        )
    return found


def _probe(samples: list[SampledText], prepared: Prepared) -> tuple[list[float], float]:
    """Tokens per input byte of each sample, and the seconds that encoding all of them took."""
    encoder = Encoder(prepared.recipe.encode)
    rates = []
    seconds = 0.0
    for sample in samples:
        started = time.perf_counter()
        encoded = encoder.encode(sample.text, document_count=sample.documents)
        seconds += time.perf_counter() - started + sample.seconds
        rates.append(len(encoded.ids) / max(1, sample.input_bytes))
    return rates, seconds


def _predict(
    prepared: Prepared,
    samples: list[SampledText],
    rates: list[float],
    seconds: float,
    free_bytes: int,
) -> Estimate:
    input_bytes = prepared.input_bytes
    sampled_input = sum(sample.input_bytes for sample in samples)
    whole = sampled_input >= input_bytes
    mean = sum(r * s.input_bytes for r, s in zip(rates, samples, strict=True)) / max(1, sampled_input)
    share = input_bytes / max(1, sampled_input)
    tokens = round(mean * input_bytes)
    documents = round(sum(sample.documents for sample in samples) * share)
    return Estimate(
        inputs=len(prepared.inputs),
        input_bytes=input_bytes,
        sampled_bytes=sum(len(sample.text) for sample in samples),
        tokens=tokens,
        tokens_spread=0.0 if whole else _standard_error(rates),
        documents=documents,
        text_bytes=round(sum(len(sample.text) for sample in samples) * share),
        disk_needed_bytes=tokens * prepared.layout.token_bytes + documents * _INDEX_ENTRY_BYTES,
        disk_free_bytes=free_bytes,
        seconds=seconds * share / prepared.allowances.workers,
        budget=prepared.budget.in_words,
        spending=prepared.allowances.needs,
        workers=prepared.allowances.workers,
        longest_line_bytes=prepared.allowances.row_limit_bytes,
        longest_word_bytes=prepared.allowances.word_limit_bytes,
    )


def _standard_error(rates: list[float]) -> float:
    """How far the mean of the samples may lie from the truth, as a share of the mean."""
    if len(rates) < 2 or not (mean := statistics.fmean(rates)):
        return 0.0
    return statistics.stdev(rates) / math.sqrt(len(rates)) / mean


def _free_bytes(out: Path) -> int:
    """Free space where the folder is, or will be."""
    while not out.exists() and out != out.parent:
        out = out.parent
    return shutil.disk_usage(out).free
