"""`train-tokenizer --dry-run`: what a run would read, use and take, from a few samples."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.memory.allocator import return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.settings import TokenizerSettings
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.sample import SampledText, sample_inputs
from lowtide.stages.dry_run import DryRun, Rows, check_dry_run, look_around, predict_sum
from lowtide.stages.folder import TOKENIZER
from lowtide.stages.plan_tokenizer import plan_tokenizer
from lowtide.tokenizer.count_words import ENTRY_BYTES, CountRules, WordCounter
from lowtide.units import KIB, MIB, format_bytes, format_count

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
class TokenizerEstimate(DryRun):
    """The dry run of `train-tokenizer`."""

    distinct_words: int
    table_words: int
    """Distinct words that fit into each table; frequent ones are in all of them."""
    table_bytes: int
    merge_bytes: int
    longest_word_bytes: int

    def rows(self) -> Rows:
        """The estimate as names and sentences, each figure with where it comes from."""
        spills = self.distinct_words > self.table_words
        to_disk = "sorted runs go to disk and are merged" if spills else "none goes to disk early"
        words = (
            f"{format_count(self.distinct_words)} distinct (predicted from how the sample grows: "
            f"rough), a table holds {format_count(self.table_words)}: {to_disk}"
        )
        workers = (
            f"{self.known.workers}, a table of {format_bytes(self.table_bytes)} each; then "
            f"{format_bytes(self.merge_bytes)} for learning merges"
        )
        limits = f"lines, values and words up to {format_bytes(self.longest_word_bytes)}"
        contents = [("text", f"{format_bytes(self.text_bytes)} (predicted)"), ("words", words)]
        return self.rows_around(
            contents, written="needed for a while", workers=workers, limits=limits
        )


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
    folder = check_dry_run(inputs, out, TOKENIZER)
    prepared = plan_tokenizer(inputs, settings, out=folder, memory=memory, workers=workers)
    start_seconds = time.perf_counter() - started
    read = replace(prepared.read, block_bytes=_SAMPLE_BYTES)
    return_large_pieces()
    with plain_allocation():
        samples = sample_inputs(prepared.inputs, read, count=_SAMPLES)
        half_words, all_words, probe_seconds = _count_words(samples, prepared.rules)
    known, allowances = look_around(prepared, samples, folder), prepared.allowances
    text_bytes = predict_sum([sample.text_bytes for sample in samples], samples)
    share = text_bytes / max(1, known.sampled_bytes)
    distinct = _grown(half_words, all_words, share)
    count_seconds = probe_seconds * share / allowances.workers
    learn_seconds = distinct * _WORD_BYTES / _LEARNT_BYTES_A_SECOND
    output_bytes = sum(prepared.settings.vocab_size) * _OUTPUT_BYTES_A_TOKEN
    found = TokenizerEstimate(
        known=known,
        text_bytes=round(text_bytes),
        distinct_words=distinct,
        table_words=allowances.table_bytes // ENTRY_BYTES,
        disk_needed_bytes=3 * distinct * _WORD_BYTES + output_bytes,
        seconds=start_seconds + count_seconds + learn_seconds,
        table_bytes=allowances.table_bytes,
        merge_bytes=allowances.merge_bytes,
        longest_word_bytes=allowances.row_limit_bytes,
    )
    found.refuse_full_disk(folder)
    return found


def _count_words(samples: list[SampledText], rules: CountRules) -> tuple[int, int, float]:
    """Distinct words after every other sample and after all of them, and the seconds that it took."""
    counter = WordCounter(rules, allowance_bytes=_PROBE_TABLE_BYTES)
    seconds, half_words = 0.0, 0
    try:
        for chosen in (samples[::2], samples[1::2]):
            half_words = counter.distinct_words
            for sample in chosen:
                started = time.perf_counter()
                for block in sample.blocks:
                    counter.count(block.text)
                seconds += time.perf_counter() - started + sample.seconds
        return half_words, counter.distinct_words, seconds
    finally:
        counter.close()


def _grown(half_words: int, all_words: int, share: float) -> int:
    """Distinct words in `share` times the text: they grow with a power of its length (Heaps' law)."""
    if share <= 1 or not half_words:
        return all_words
    power: float = min(1.0, max(0.0, math.log2(all_words / half_words)))
    return int(all_words * share**power)
