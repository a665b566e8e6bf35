"""The story of `train-tokenizer --dry-run`: what a run would read, use and take, from a few samples."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lowtide.memory.allocator import return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.stages.estimate import free_bytes, refuse_full_disk, refuse_stdin
from lowtide.stages.folder import TOKENIZER, check_folder
from lowtide.stages.plan_tokenizer import TokenizerPlan, plan_tokenizer
from lowtide.settings import TokenizerSettings
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.find_inputs import Skipped, describe_skipped
from lowtide.source.sample import SampledText, sample_inputs
from lowtide.storage.paths import as_path
from lowtide.tokenizer.count_words import ENTRY_BYTES, WordCounter
from lowtide.units import KIB, MIB, format_bytes, format_count, format_seconds

_SAMPLES = 16
_SAMPLE_BYTES = 256 * KIB
_PROBE_TABLE_BYTES = 16 * MIB
_WORD_BYTES = 10
"""Of a distinct word, as it lies in a run: assumed. 9 were measured on source code, 11 on prose."""
_LEARNT_BYTES_A_SECOND = 15_000_000
"""Bytes of distinct words that merges are learnt from in a second: measured on source code."""
_OUTPUT_BYTES_A_TOKEN = 96
"""Of all files together, for each token: measured with 8,000 and 32,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerEstimate:
    """Figures before the work. Sizes of inputs and free disk are measured, the rest is predicted."""

    inputs: int
    skipped: tuple[Skipped, ...]
    """Files of the folders and globs that would not be read."""
    input_bytes: int
    sampled_bytes: int
    text_bytes: int
    distinct_words: int
    table_words: int
    """So many distinct words fit into each table; frequent ones are in all of them."""
    disk_needed_bytes: int
    disk_free_bytes: int
    seconds: float
    budget: str
    spending: dict[str, int]
    workers: int
    table_bytes: int
    merge_bytes: int
    longest_word_bytes: int

    def as_record(self) -> dict[str, object]:
        """All figures under their names, for `--json`."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The estimate as names and sentences, each figure with where it comes from."""
        files = "1 file" if self.inputs == 1 else f"{self.inputs} files"
        spent = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.spending.items())
        spills = self.distinct_words > self.table_words
        disk = "sorted runs go to disk and are merged" if spills else "none goes to disk early"
        return [
            ("input", f"{files}, {format_bytes(self.input_bytes)} (measured)"),
            *([("skipped", describe_skipped(self.skipped))] if self.skipped else []),
            ("sample", f"{format_bytes(self.sampled_bytes)} of text read"),
            ("text", f"{format_bytes(self.text_bytes)} (predicted)"),
            (
                "words",
                f"{format_count(self.distinct_words)} distinct (predicted from how the sample grows: "
                f"rough), a table holds {format_count(self.table_words)}: {disk}",
            ),
            (
                "disk",
                f"{format_bytes(self.disk_needed_bytes)} needed for a while (predicted), "
                f"{format_bytes(self.disk_free_bytes)} free (measured)",
            ),
            ("time", f"{format_seconds(self.seconds)} (predicted from a short probe)"),
            ("memory", f"budget {self.budget}"),
            (
                "workers",
                f"{self.workers}, a table of {format_bytes(self.table_bytes)} each; then "
                f"{format_bytes(self.merge_bytes)} for learning merges",
            ),
            ("spent on", spent),
            ("limits", f"lines, values and words up to {format_bytes(self.longest_word_bytes)}"),
        ]


def estimate_tokenizer(
    inputs: Sequence[str],
    out: str | Path | None,
    settings: TokenizerSettings,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
) -> TokenizerEstimate:
    """Predict a run from a few hundred KiB; refuse (exit 3) what cannot fit on the disk."""
    started = time.perf_counter()
    refuse_stdin(inputs)
    folder = None if out is None else as_path(out)
    if folder is not None:
        check_folder(folder, TOKENIZER)
    prepared = plan_tokenizer(inputs, settings, out=folder, memory=memory, workers=workers)
    start_seconds = time.perf_counter() - started
    read = replace(prepared.read, block_bytes=_SAMPLE_BYTES)
    return_large_pieces()
    with plain_allocation():
        samples = sample_inputs(prepared.inputs, read, count=_SAMPLES)
        probe = _probe(samples, prepared)
    found = _predict(prepared, samples, probe, start_seconds, free_bytes(folder))
    refuse_full_disk(found.disk_needed_bytes, found.disk_free_bytes, folder)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """What counting the samples showed."""

    half_words: int
    """Distinct words after every other sample."""
    all_words: int
    seconds: float


def _probe(samples: list[SampledText], prepared: TokenizerPlan) -> _Probe:
    counter = WordCounter(prepared.rules, allowance_bytes=_PROBE_TABLE_BYTES)
    seconds, half_words = 0.0, 0
    try:
        for chosen in (samples[::2], samples[1::2]):
            half_words = counter.distinct_words
            for sample in chosen:
                started = time.perf_counter()
                for block in sample.blocks:
                    counter.count(block.text)
                seconds += time.perf_counter() - started + sample.seconds
        return _Probe(half_words=half_words, all_words=counter.distinct_words, seconds=seconds)
    finally:
        counter.close()


def _predict(
    prepared: TokenizerPlan,
    samples: list[SampledText],
    probe: _Probe,
    start_seconds: float,
    disk_free_bytes: int,
) -> TokenizerEstimate:
    allowances = prepared.allowances
    sampled_bytes = sum(sample.text_bytes for sample in samples)
    text_bytes = sum(sample.text_bytes * sample.stands_for for sample in samples)
    share = text_bytes / max(1, sampled_bytes)
    distinct = _grown(probe, share)
    distinct_bytes = distinct * _WORD_BYTES
    sizes = prepared.settings.vocab_size
    learn_seconds = distinct_bytes / _LEARNT_BYTES_A_SECOND
    return TokenizerEstimate(
        inputs=len(prepared.inputs),
        skipped=prepared.skipped,
        input_bytes=prepared.total_bytes,
        sampled_bytes=sampled_bytes,
        text_bytes=round(text_bytes),
        distinct_words=distinct,
        table_words=allowances.table_bytes // ENTRY_BYTES,
        disk_needed_bytes=3 * distinct_bytes + sum(sizes) * _OUTPUT_BYTES_A_TOKEN,
        disk_free_bytes=disk_free_bytes,
        seconds=start_seconds + probe.seconds * share / allowances.workers + learn_seconds,
        budget=prepared.budget.in_words,
        spending=allowances.needs,
        workers=allowances.workers,
        table_bytes=allowances.table_bytes,
        merge_bytes=allowances.merge_bytes,
        longest_word_bytes=allowances.row_limit_bytes,
    )


def _grown(probe: _Probe, share: float) -> int:
    """Distinct words of a text so many times as long: they grow with a power of its length (Heaps' law)."""
    if share <= 1 or not probe.half_words:
        return probe.all_words
    power: float = min(1.0, max(0.0, math.log2(probe.all_words / probe.half_words)))
    return int(probe.all_words * share**power)
