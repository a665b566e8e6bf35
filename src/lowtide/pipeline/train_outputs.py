"""The files of a trained tokenizer: written, described, found again, and removed for a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import xxhash

from lowtide.errors import UsageError, VerificationError
from lowtide.journal import LOG_NAME
from lowtide.pipeline.curve_picture import PICTURE_NAME, draw_curve
from lowtide.pipeline.folder import TOKENIZER
from lowtide.pipeline.learn_run import Learning
from lowtide.pipeline.measure_tokenizer import Comparison, NotCompared
from lowtide.pipeline.train_job import (
    COUNTING_NAME,
    TrainJob,
    load_train_job,
    refuse_train_changes,
)
from lowtide.pipeline.train_manifest import (
    RUN_NAME,
    OutputFile,
    TrainManifest,
    corpus_inputs,
    read_train_manifest,
    write_train_manifest,
)
from lowtide.pipeline.train_prepare import TrainPrepared
from lowtide.pipeline.train_settings import TrainSettings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.blocks import BadRow
from lowtide.storage.publish import (
    remove_leftovers,
    storage_errors,
    sync_folder,
    write_atomically,
)
from lowtide.storage.sealed_json import write_sealed
from lowtide.tokenizer.byte_pair_files import rank_file_name, tokenizer_files
from lowtide.tokenizer.byte_pairs import BytePairs


def size_folder(settings: TrainSettings, vocab_size: int) -> str:
    """Where a vocabulary lies inside the output folder: in it, or by its size when there are several."""
    return "" if len(settings.vocab_size) == 1 else str(vocab_size)


def refuse_linked_folders(folder: Path, settings: TrainSettings) -> None:
    """UsageError where a link stands in place of a size's folder: what it leads to would be written into."""
    for size in settings.vocab_size:
        inside = folder / size_folder(settings, size)
        if inside != folder and inside.is_symlink():
            raise UsageError(
                f"{folder} already holds something else, such as {inside.name}, which is a link",
                remedy=f"remove the link {inside}, or pass a new or empty folder as `--out`",
            )


def write_vocabulary(
    folder: Path, settings: TrainSettings, vocab_size: int, pairs: BytePairs
) -> list[OutputFile]:
    """Write all files of one size; none is announced before the manifest stands."""
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
    """Draw bytes a token over vocabulary size."""
    return _write(folder, PICTURE_NAME, draw_curve(learning).encode())


def _write(folder: Path, name: str, data: bytes) -> OutputFile:
    write_atomically(folder / name, data)
    return OutputFile(
        name=name, size_bytes=len(data), digest=str(xxhash.xxh3_128(data).hexdigest())
    )


def publish_tokenizer(
    folder: Path,
    manifest: TrainManifest,
    prepared: TrainPrepared,
    comparison: Comparison | NotCompared,
    *,
    bad: Sequence[BadRow],
    seconds: float,
    peak_private_bytes: int,
) -> None:
    """What the run took and met, and last of all the manifest."""
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
    write_train_manifest(folder, manifest)


def find_finished(folder: Path, job: TrainJob) -> TrainManifest:
    """The manifest of a finished folder, if it was made by this very job and its files are there."""
    manifest = read_train_manifest(folder)
    before = TrainJob(settings=manifest.settings, inputs=corpus_inputs(manifest, job.inputs))
    by_name = tuple(sorted(job.inputs, key=lambda item: item.name))
    refuse_train_changes(before, replace(job, inputs=by_name), folder)
    if any(item.fingerprint == "" for item in job.inputs):
        raise UsageError(
            f"{folder} holds a finished run over standard input; whether this is the same text is not known",
            remedy="pass `--restart` to begin again, or choose another `--out`",
        )
    for file in manifest.files:
        path = folder / file.name
        if not path.is_file() or xxhash.xxh3_128(path.read_bytes()).hexdigest() != file.digest:
            raise VerificationError(
                f"{path} is missing or not as it was written",
                remedy="pass `--restart` to make it again, or put the file back from a copy",
            )
    return manifest


def empty_tokenizer_folder(folder: Path, now: TrainSettings) -> None:
    """`--restart`: remove what lowtide made here and nothing else. The manifest goes first, the job last."""
    made_by = _settings_in(folder, now)
    with storage_errors(folder):
        (folder / TOKENIZER.manifest_name).unlink(missing_ok=True)
        sync_folder(folder)
        for settings in made_by:
            _remove_outputs(folder, settings)
    empty_work_folder(folder)


def empty_work_folder(folder: Path) -> None:
    """Remove what counting leaves in the work folder; what says whose folder it is goes last."""
    work = folder / WORK_FOLDER
    with storage_errors(work):
        for path in work.iterdir():
            if path.suffix in (".words", ".text", ".tmp") or path.name == COUNTING_NAME:
                path.unlink()
        sync_folder(work)
        (work / TOKENIZER.work_name).unlink(missing_ok=True)


def _settings_in(folder: Path, now: TrainSettings) -> list[TrainSettings]:
    """Of the runs that wrote into this folder. Where they cannot be read any more, those of this run."""
    found = []
    try:
        if (folder / TOKENIZER.manifest_name).exists():
            found.append(read_train_manifest(folder).settings)
        job = load_train_job(folder)
    except VerificationError:
        return [now]
    return found + ([job.settings] if job else [])


def _remove_outputs(folder: Path, settings: TrainSettings) -> None:
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
        if inside != folder and inside.is_dir() and not any(inside.iterdir()):
            inside.rmdir()
    for name in (RUN_NAME, PICTURE_NAME, LOG_NAME):
        (folder / name).unlink(missing_ok=True)
