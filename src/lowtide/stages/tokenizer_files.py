"""The files of trained tokenizers, and `lowtide-tokenizer.json`, the sealed manifest that names them.

The manifest has no time, budget or machine in it, and inputs in the order of their content: same corpus, same
bytes. Time, peak and budget of a run are in `run.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from lowtide import __version__
from lowtide.errors import UsageError, VerificationError
from lowtide.journal import LOG_NAME
from lowtide.settings import TokenizerSettings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.blocks import BadRow
from lowtide.stages.curve_picture import PICTURE_NAME, draw_curve
from lowtide.stages.folder import TOKENIZER
from lowtide.stages.job import Counts, JobInput, load_record
from lowtide.stages.learn_run import Learning, LearntSize
from lowtide.stages.measure_tokenizer import Comparison, NotCompared
from lowtide.stages.plan_tokenizer import TokenizerPlan
from lowtide.storage.decode_json import InnerPath
from lowtide.storage.publish import (
    remove_leftovers,
    storage_errors,
    sync_folder,
    write_atomically,
)
from lowtide.storage.sealed_json import write_sealed
from lowtide.tokenizer.byte_pair_files import rank_file_name, tokenizer_files
from lowtide.tokenizer.byte_pairs import BytePairs
from lowtide.units import format_bytes

RUN_NAME = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """One input; its content identifies it."""

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
class TokenizerManifest:
    """Everything about the tokenizer that does not differ from run to run."""

    format_version: int = 1
    tool_version: str = __version__
    settings: TokenizerSettings
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

    @property
    def in_words(self) -> str:
        """`8000 and 16000 tokens learnt from 12.0 MiB of text`."""
        sizes = " and ".join(str(size) for size in self.settings.vocab_size)
        return f"{sizes} tokens learnt from {format_bytes(self.text_bytes)} of text"

    def __repr__(self) -> str:
        return f"<TokenizerManifest {self.in_words}>"


def make_tokenizer_manifest(
    settings: TokenizerSettings,
    inputs: Sequence[JobInput],
    counts: Counts,
    learning: Learning,
    files: Sequence[OutputFile],
) -> TokenizerManifest:
    """The manifest of a run that is done."""
    totals = learning.totals
    corpus = [
        CorpusFile(
            fingerprint=item.fingerprint,
            size_bytes=item.size_bytes,
            kind=item.kind,
            name=item.name,
        )
        for item in inputs
    ]
    corpus.sort(key=lambda file: (file.fingerprint, file.size_bytes, file.name))
    return TokenizerManifest(
        settings=settings,
        corpus=tuple(corpus),
        documents=counts.documents,
        text_bytes=totals.text_bytes,
        words=totals.words,
        distinct_words=totals.distinct_words,
        longest_word_bytes=totals.longest_bytes,
        bad_rows=counts.bad_count,
        empty_documents=counts.empty_documents,
        learnt=tuple(learning.describe(size) for size in settings.vocab_size),
        files=tuple(files),
    )


def size_folder(settings: TokenizerSettings, vocab_size: int) -> str:
    """The folder of a vocabulary in the output folder: none, or named by its size when there are several."""
    return "" if len(settings.vocab_size) == 1 else str(vocab_size)


def refuse_linked_folders(folder: Path, settings: TokenizerSettings) -> None:
    """UsageError for a link in place of a size's folder: its target would be written to."""
    for size in settings.vocab_size:
        inside = folder / size_folder(settings, size)
        if inside != folder and inside.is_symlink():
            raise UsageError(
                f"{folder} already holds something else, such as {inside.name}, which is a link",
                remedy=f"remove the link {inside}, or pass a new or empty folder as `--out`",
            )


def write_vocabulary(
    folder: Path, settings: TokenizerSettings, vocab_size: int, pairs: BytePairs
) -> list[OutputFile]:
    """Write all files of one size. They count only once the manifest names them."""
    inside = size_folder(settings, vocab_size)
    if inside:
        refuse_linked_folders(folder, settings)  # counting took long, and one may have come since
        with storage_errors(folder / inside):
            (folder / inside).mkdir(exist_ok=True)
        remove_leftovers(folder / inside)  # of a run that was killed while it wrote here
        sync_folder(folder)
    return [
        _write(folder, f"{inside}/{name}" if inside else name, data)
        for name, data in tokenizer_files(pairs).items()
    ]


def write_picture(folder: Path, learning: Learning) -> OutputFile:
    """Draw bytes per token over vocabulary size."""
    return _write(folder, PICTURE_NAME, draw_curve(learning).encode())


def _write(folder: Path, name: str, data: bytes) -> OutputFile:
    write_atomically(folder / name, data)
    return OutputFile(
        name=name, size_bytes=len(data), digest=str(xxhash.xxh3_128(data).hexdigest())
    )


def write_run_record(
    folder: Path,
    prepared: TokenizerPlan,
    comparison: Comparison | NotCompared,
    *,
    bad: Sequence[BadRow],
    seconds: float,
    peak_private_bytes: int,
) -> None:
    """Write what differs from run to run, and so is not in the manifest."""
    write_sealed(
        folder / RUN_NAME,
        {
            "seconds": round(seconds, 3),
            "peak_private_bytes": peak_private_bytes,
            "budget_bytes": prepared.budget.total_bytes,
            "workers": prepared.allowances.workers,
            "inputs": [str(item.path) for item in prepared.inputs],
            "skipped": msgspec.to_builtins(prepared.skipped),
            "compared": msgspec.to_builtins(comparison),
            "first_bad_rows": msgspec.to_builtins(tuple(bad)),
        },
    )


def read_tokenizer_manifest(folder: Path) -> TokenizerManifest:
    """The manifest of a finished folder; VerificationError if it was changed."""
    return load_record(folder / TOKENIZER.manifest_name, TokenizerManifest)


def verify_files(folder: Path, manifest: TokenizerManifest) -> None:
    """VerificationError if a file that the manifest names is missing or was changed."""
    for file in manifest.files:
        path = folder / file.name
        if not path.is_file() or xxhash.xxh3_128(path.read_bytes()).hexdigest() != file.digest:
            raise VerificationError(
                f"{path} is missing or not as it was written",
                remedy="pass `--restart` to make it again, or put the file back from a copy",
            )


def remove_tokenizer(folder: Path, made_by: Sequence[TokenizerSettings]) -> None:
    """Remove the files of tokenizers with these settings, the manifest first, and nothing else."""
    with storage_errors(folder):
        (folder / TOKENIZER.manifest_name).unlink(missing_ok=True)
        sync_folder(folder)
        for settings in made_by:
            names = ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"]
            names.append(rank_file_name(settings.pattern))
            for size in settings.vocab_size:
                inside = folder / size_folder(settings, size)
                if inside != folder and inside.is_symlink():
                    continue  # what it leads to is not in this folder
                for name in names:
                    (inside / name).unlink(missing_ok=True)
                if inside != folder and inside.is_dir():
                    remove_leftovers(inside)
                    if not any(inside.iterdir()):
                        inside.rmdir()
        for name in (RUN_NAME, PICTURE_NAME, LOG_NAME):
            (folder / name).unlink(missing_ok=True)


def empty_work_folder(folder: Path) -> None:
    """Remove what counting leaves in the work folder, the file that identifies it last."""
    work = folder / WORK_FOLDER
    with storage_errors(work):
        for path in work.iterdir():
            if path.suffix in (".words", ".text", ".tmp") or path.name == TOKENIZER.progress_name:
                path.unlink()
        sync_folder(work)
        (work / TOKENIZER.work_name).unlink(missing_ok=True)
