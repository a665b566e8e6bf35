"""A folder of shards, whoever made it: are its files there, and what may be removed from it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lowtide.errors import VerificationError
from lowtide.journal import LOG_NAME
from lowtide.settings import Format
from lowtide.shards.layout import (
    MANIFEST_NAME,
    SPLITS,
    WORK_FOLDER,
    ShardLayout,
    companion_name,
    documents_name,
    learnt_name,
    shard_number,
)
from lowtide.shards.manifest import file_names, read_manifest
from lowtide.shards.read import open_dataset
from lowtide.shards.write import WriterMark
from lowtide.stages.folder import FolderKind
from lowtide.stages.job import load_record
from lowtide.storage.publish import storage_errors, sync_folder

_ASIDE_NAME = "removed_progress.json"
"""The checkpoint of a run that is being removed: nobody resumes from it."""


class _Job(Protocol):
    @property
    def format(self) -> Format:
        """The names of shards follow from it."""


class _Progress(Protocol):
    @property
    def marks(self) -> tuple[WriterMark, ...]:
        """How far each split was written."""


class ShardStage(Protocol):
    """A stage that makes shards."""

    @property
    def kind(self) -> FolderKind: ...
    @property
    def job_type(self) -> type[_Job]: ...
    @property
    def progress_type(self) -> type[_Progress]: ...


def refuse_missing_files(folder: Path) -> None:
    """VerificationError if a file that the manifest names is gone, or of another size."""
    try:
        open_dataset(folder)
    except VerificationError as error:
        remedy = "pass `--restart` to make it again, or put the file back from a copy"
        raise VerificationError(error.problem, remedy=remedy) from error


def empty_folder(folder: Path, stage: ShardStage, layout: ShardLayout) -> None:
    """Remove what the stage made here, finished or not, and nothing else.

    Neither manifest nor checkpoint may outlive the shards it promises, so they go first; but only aside,
    for a restart that is cut off must still know what was ours. They are removed last.
    """
    work = folder / WORK_FOLDER
    with storage_errors(folder):
        _set_aside(folder / MANIFEST_NAME, work / MANIFEST_NAME)
        _set_aside(work / stage.kind.progress_name, work / _ASIDE_NAME)
        sync_folder(folder)
        sync_folder(work)
        for name in _own_names(folder, stage, layout):
            (folder / name).unlink(missing_ok=True)
        (folder / LOG_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        for entry in list(work.iterdir()):
            if entry.name.endswith(".partial"):
                entry.unlink()
        for name in (stage.kind.work_name, MANIFEST_NAME, _ASIDE_NAME):
            (work / name).unlink(missing_ok=True)


def _set_aside(path: Path, aside: Path) -> None:
    """By its name alone: a restart may be what a full disk needs."""
    if path.exists():
        path.replace(aside)


def _own_names(folder: Path, stage: ShardStage, layout: ShardLayout) -> set[str]:
    """The files that a manifest or checkpoint set aside promises: ours, whatever else lies beside them.

    Where one of them cannot be read any more, those that a run with this layout would write.
    """
    work = folder / WORK_FOLDER
    try:
        own = set(file_names(read_manifest(work))) if (work / MANIFEST_NAME).exists() else set()
        return own | _names_of_checkpoint(work, stage)
    except VerificationError:
        return {
            entry.name for entry in folder.iterdir() if _is_called_like_ours(entry.name, layout)
        }


def _names_of_checkpoint(work: Path, stage: ShardStage) -> set[str]:
    own: set[str] = set()
    if not (work / stage.kind.work_name).exists():
        return own
    job = load_record(work / stage.kind.work_name, stage.job_type)
    if not (work / _ASIDE_NAME).exists():
        return own
    layout = ShardLayout(format=job.format, vocabulary_size=1)  # names follow from the format alone
    for mark in load_record(work / _ASIDE_NAME, stage.progress_type).marks:
        mark.check_names(layout, work / _ASIDE_NAME)
        companion = companion_name(layout, mark.split)
        own |= mark.names | ({companion} if companion else set())
    return own


def _is_called_like_ours(name: str, layout: ShardLayout) -> bool:
    return any(
        shard_number(layout, split, name) is not None
        or name in (documents_name(split), learnt_name(split), companion_name(layout, split))
        for split in SPLITS
    )
