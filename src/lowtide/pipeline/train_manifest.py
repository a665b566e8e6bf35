"""What lies in a folder with a trained tokenizer, and where it came from: `lowtide-tokenizer.json`, sealed.

No clock, no budget, no machine, and inputs in the order of their content: same corpus, same bytes. What one
run took (time, peak, budget) lies beside it in `run.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lowtide import __version__
from lowtide.pipeline.folder import TOKENIZER
from lowtide.pipeline.job import Counts, convert_sealed
from lowtide.pipeline.job_inputs import JobInput
from lowtide.pipeline.train_settings import TrainSettings
from lowtide.storage.decode_json import InnerPath
from lowtide.storage.sealed_json import write_sealed
from lowtide.tokenizer.word_runs import WordTotals

RUN_NAME = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """One input, by its content first."""

    fingerprint: str
    size_bytes: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file of the tokenizer, by its path inside the folder."""

    name: InnerPath
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntSize:
    """One vocabulary that was learnt."""

    vocab_size: int
    """As asked for."""
    tokens: int
    """As learnt: fewer when the corpus has no more pairs."""
    merges: int
    bytes_per_token: float
    """Of the whole corpus, exact."""
    whole_words: float
    """Share of the corpus's words that are a single token, exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainManifest:
    """Everything that can be said about the tokenizer without saying how it was run."""

    format_version: int = 1
    tool_version: str = __version__
    settings: TrainSettings
    corpus: tuple[CorpusFile, ...]
    documents: int
    text_bytes: int
    words: int
    distinct_words: int
    longest_word_bytes: int
    bad_rows: int
    empty_documents: int
    learnt: tuple[LearntSize, ...]
    files: tuple[OutputFile, ...]


def describe_corpus(inputs: Sequence[JobInput]) -> tuple[CorpusFile, ...]:
    """The inputs without their order."""
    files = [
        CorpusFile(
            fingerprint=item.fingerprint,
            size_bytes=item.size_bytes,
            kind=item.kind,
            name=item.name,
        )
        for item in inputs
    ]
    return tuple(sorted(files, key=lambda file: (file.fingerprint, file.size_bytes, file.name)))


def corpus_inputs(manifest: TrainManifest, now: Sequence[JobInput]) -> tuple[JobInput, ...]:
    """The inputs a folder was made from, by name; times of writing are not kept, so those of `now` stand in."""
    times = {item.name: item.modified_ns for item in now}
    inputs = [
        JobInput(
            name=file.name,
            kind=file.kind,
            size_bytes=file.size_bytes,
            modified_ns=times.get(file.name, 0),
            fingerprint=file.fingerprint,
        )
        for file in manifest.corpus
    ]
    return tuple(sorted(inputs, key=lambda item: item.name))


def make_train_manifest(
    settings: TrainSettings,
    inputs: Sequence[JobInput],
    counts: Counts,
    totals: WordTotals,
    learnt: Sequence[LearntSize],
    files: Sequence[OutputFile],
) -> TrainManifest:
    """The manifest of a run that is done."""
    return TrainManifest(
        settings=settings,
        corpus=describe_corpus(inputs),
        documents=counts.documents,
        text_bytes=totals.text_bytes,
        words=totals.words,
        distinct_words=totals.distinct_words,
        longest_word_bytes=totals.longest_bytes,
        bad_rows=counts.bad_count,
        empty_documents=counts.empty_documents,
        learnt=tuple(learnt),
        files=tuple(files),
    )


def write_train_manifest(folder: Path, manifest: TrainManifest) -> None:
    """Publish it; the folder is finished from here on."""
    write_sealed(folder / TOKENIZER.manifest_name, msgspec.to_builtins(manifest))


def read_train_manifest(folder: Path) -> TrainManifest:
    """The manifest of a finished folder; VerificationError where it is not as it was written."""
    return convert_sealed(folder / TOKENIZER.manifest_name, TrainManifest)
