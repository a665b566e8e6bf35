"""`tokenize --dry-run`: what a run would read, write, use and take, from a few samples of the input."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import DataError
from lowtide.memory.allocator import return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.settings import TokenizeSettings
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.blocks import Block, ReadSettings
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.sample import SampledText, count_documents, sample_inputs
from lowtide.stages.dry_run import DryRun, Known, Rows, check_dry_run, look_around, predict_sum
from lowtide.stages.encode_blocks import arrange_block
from lowtide.stages.folder import SHARDS
from lowtide.stages.job import ExampleCounts
from lowtide.stages.prepare import Prepared, describe_held_out, prepare
from lowtide.stages.read_inputs import describe_inputs
from lowtide.tokenizer.encode import Encoder
from lowtide.units import KIB, format_bytes, format_count

_SAMPLES = 64
_SAMPLE_BYTES = 64 * KIB
_STANDARD_ERRORS = 2.0
_LEAST_SPREAD = 0.01
"""Samples begin at lines and end with them, which is not quite chance."""
_FOLDER_SECONDS = 0.12
"""For locking, syncing and sealing a folder, and for starting the workers: 0.1 to 0.15 s were measured."""
_FINGERPRINTED = 32
"""Inputs whose fingerprints are timed, about."""
_INDEX_ENTRY_BYTES = 8
_MANIFEST_BYTES, _MANIFEST_INPUT_BYTES = 2 * KIB, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(DryRun):
    """The dry run of `tokenize`."""

    tokens: int
    tokens_spread: float
    """How far `tokens` may be off in 19 of 20 cases, as a share of it; 0 when everything was sampled."""
    documents: int
    held_out: str
    """What is kept for validation, in words."""
    longest_line_bytes: int
    longest_word_bytes: int
    learnt_tokens: int | None = None
    """None for text, of which all are."""
    too_long: int | None = None
    """Examples of more tokens than fit; None for text."""

    def rows(self) -> Rows:
        """The estimate as names and sentences, each figure with where it comes from."""
        spread = f"± {100 * self.tokens_spread:.1f} %"
        contents = [
            ("tokens", f"{format_count(self.tokens)} {spread} (predicted from the sample)"),
            *self._document_rows(),
            ("held out", self.held_out),
        ]
        limits = (
            f"lines and values up to {format_bytes(self.longest_line_bytes)}, stretches without a "
            f"safe cut up to {format_bytes(self.longest_word_bytes)}"
        )
        return self.rows_around(contents, written="needed", limits=limits)

    def _document_rows(self) -> Rows:
        if self.learnt_tokens is None or self.too_long is None:
            return [("documents", f"{format_count(self.documents)} (predicted)")]
        share = 100 * self.learnt_tokens / max(1, self.tokens)
        learnt = f"{format_count(self.learnt_tokens)}, {share:.0f} % of the tokens (predicted)"
        return [
            ("examples", f"{format_count(self.documents)} (predicted)"),
            ("learnt", learnt),
            ("too long", f"{format_count(self.too_long)} examples (predicted)"),
        ]


def estimate(
    inputs: Sequence[str],
    out: str | Path | None,
    settings: TokenizeSettings,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Predict a run from a few MiB; refuse (exit 3) what cannot fit on the disk.

    Without `out` the disk is the current folder's. `seed` draws the places that are read.
    """
    started = time.perf_counter()
    folder = check_dry_run(inputs, out, SHARDS)
    prepared = prepare(inputs, settings, out=folder, memory=memory, workers=workers)
    return_large_pieces()
    with closing(prepared), plain_allocation():
        encoder = Encoder(
            prepared.recipe.encode, allowance_bytes=prepared.allowances.reference_allowance_bytes
        )
        start_seconds = time.perf_counter() - started
        read = replace(prepared.read, block_bytes=_SAMPLE_BYTES, tail=None)
        samples = sample_inputs(prepared.inputs, read, count=_SAMPLES, seed=seed)
        documents = _predict_documents(prepared, read, samples, seed)
        with closing(encoder):
            probe = _probe(samples, encoder, prepared)
        start_seconds += _time_fingerprints(prepared.inputs)
    if not any(sample.text_bytes for sample in samples):
        raise DataError(
            "no text was found in the inputs",
            remedy="check the paths and `--column` or `--separator`",
        )
    known = look_around(prepared, samples, folder)
    found = _predict(prepared, samples, probe, documents, start_seconds, known)
    found.refuse_full_disk(folder)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """What encoding the samples showed, of each."""

    tokens: list[int]
    encode_seconds: float
    """For encoding all of them."""
    warm_up_seconds: float
    """For encoding the first one: an encoder makes its tables then."""
    learnt_tokens: list[int]
    too_long: list[int]


def _probe(samples: list[SampledText], encoder: Encoder, prepared: Prepared) -> _Probe:
    tokens, learnt_tokens, too_long = [], [], []
    warm_up_seconds = encode_seconds = 0.0
    if samples:
        started = time.perf_counter()
        _encode(samples[0].blocks[0], encoder, prepared)
        warm_up_seconds = time.perf_counter() - started
    for sample in samples:
        started = time.perf_counter()
        found = [_encode(block, encoder, prepared) for block in sample.blocks]
        encode_seconds += time.perf_counter() - started
        tokens.append(sum(count for count, _ in found))
        learnt_tokens.append(sum(examples.learnt_tokens for _, examples in found))
        too_long.append(sum(examples.too_long for _, examples in found))
    return _Probe(
        tokens=tokens,
        encode_seconds=encode_seconds,
        warm_up_seconds=warm_up_seconds,
        learnt_tokens=learnt_tokens,
        too_long=too_long,
    )


def _encode(block: Block, encoder: Encoder, prepared: Prepared) -> tuple[int, ExampleCounts]:
    """The tokens of a block, and what became of its examples."""
    encoded = encoder.encode(block.text, document_count=block.document_count)
    if prepared.recipe.examples:
        made = arrange_block(block, encoded, prepared.recipe, continues=False)
        return len(made.arranged.tokens), made.examples or ExampleCounts()
    delimiters = block.document_count if prepared.settings.placement == "none" else 0
    return len(encoded.ids) - delimiters, ExampleCounts()


def _predict(
    prepared: Prepared,
    samples: list[SampledText],
    probe: _Probe,
    documents: int,
    start_seconds: float,
    known: Known,
) -> Estimate:
    tokens = round(predict_sum(probe.tokens, samples))
    parts = [
        count * sample.stretch_bytes / sample.input_bytes
        for count, sample in zip(probe.tokens, samples, strict=True)
    ]
    text_bytes = predict_sum([sample.text_bytes for sample in samples], samples)
    is_whole = all(sample.stands_for == 1 for sample in samples)
    # by the text, not by weights: a short sample has a long start
    whole = text_bytes / max(1, known.sampled_bytes)
    read_seconds = whole * sum(sample.seconds for sample in samples)
    all_seconds = read_seconds + whole * probe.encode_seconds
    work_seconds = max(read_seconds, all_seconds / prepared.allowances.workers)  # one thread reads
    has_bits = prepared.recipe.examples is not None
    return Estimate(
        known=known,
        tokens=tokens,
        tokens_spread=0.0 if is_whole else _spread(parts),
        documents=documents,
        text_bytes=round(text_bytes),
        disk_needed_bytes=tokens * prepared.layout.token_bytes
        + documents * _INDEX_ENTRY_BYTES
        + (tokens // 8 if has_bits else 0)
        + len(prepared.inputs) * _MANIFEST_INPUT_BYTES
        + _MANIFEST_BYTES,
        seconds=start_seconds + _FOLDER_SECONDS + probe.warm_up_seconds + work_seconds,
        held_out=describe_held_out(prepared),
        longest_line_bytes=prepared.allowances.row_limit_bytes,
        longest_word_bytes=prepared.allowances.word_limit_bytes,
        learnt_tokens=round(predict_sum(probe.learnt_tokens, samples)) if has_bits else None,
        too_long=round(predict_sum(probe.too_long, samples)) if has_bits else None,
    )


def _time_fingerprints(inputs: Sequence[InputFile]) -> float:
    """How long it takes to fingerprint all inputs, from some of them."""
    some = inputs[:: max(1, len(inputs) // _FINGERPRINTED)]
    started = time.perf_counter()
    describe_inputs(some)
    return (time.perf_counter() - started) * len(inputs) / len(some)


def _predict_documents(
    prepared: Prepared, read: ReadSettings, samples: list[SampledText], seed: int
) -> int:
    """Where every text file is a document, a sample sees no ends, and files are counted."""
    only_text = all(item.kind is InputKind.TEXT for item in prepared.inputs)
    if only_text and prepared.settings.separator == "file":
        cut = prepared.read.tail is not None  # a document of which the tail is held out becomes two
        return sum(item.size_bytes > 0 for item in prepared.inputs) + cut
    return count_documents(prepared.inputs, read, samples, seed=seed)


def _spread(parts: list[float]) -> float:
    """How far the sum may lie from the truth in 19 of 20 cases, as a share of it.

    Neighbours lie in neighbouring stretches of the input: what they differ by is chance, where a trend over
    all of it is none, for each stretch has its sample.
    """
    if len(parts) < 2 or not (total := sum(parts)):
        return 0.0
    squares = math.fsum((one - other) ** 2 for one, other in itertools.pairwise(parts))
    variance = squares / 2 * len(parts) / (len(parts) - 1)
    return max(_LEAST_SPREAD, _STANDARD_ERRORS * math.sqrt(variance) / total)
