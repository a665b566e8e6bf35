"""Emptying a folder of shards: `--restart` removes what lowtide made there, and nothing else."""

from __future__ import annotations

from pathlib import Path

from lowtide.errors import VerificationError
from lowtide.journal import LOG_NAME
from lowtide.pipeline.job import ASIDE_NAME, JOB_NAME, PROGRESS_NAME, load_job, load_progress
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
from lowtide.storage.publish import storage_errors, sync_folder


def empty_folder(folder: Path, layout: ShardLayout) -> None:
    """`--restart`: remove what lowtide made here and nothing else.

    Neither manifest nor checkpoint may outlive the shards it promises, so they go first; but only aside,
    for a restart that is cut off must still know what was ours. They are removed last.
    """
    work = folder / WORK_FOLDER
    with storage_errors(folder):
        _set_aside(folder / MANIFEST_NAME, work / MANIFEST_NAME)
        _set_aside(work / PROGRESS_NAME, work / ASIDE_NAME)
        sync_folder(folder)
        sync_folder(work)
        for name in _own_names(folder, layout):
            (folder / name).unlink(missing_ok=True)
        (folder / LOG_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        for entry in list(work.iterdir()):
            if entry.name.endswith(".partial"):
                entry.unlink()
        for name in (JOB_NAME, MANIFEST_NAME, ASIDE_NAME):
            (work / name).unlink(missing_ok=True)


def _set_aside(path: Path, aside: Path) -> None:
    """By its name alone: a restart may be what a full disk needs."""
    if path.exists():
        path.replace(aside)


def _own_names(folder: Path, layout: ShardLayout) -> set[str]:
    """The files that a manifest or checkpoint set aside promises: ours, whatever else lies beside them.

    Where one of them cannot be read any more, those that a run with this layout would write.
    """
    try:
        return _names_of_manifest(folder / WORK_FOLDER) | _names_of_checkpoint(folder, layout)
    except VerificationError:
        return {
            entry.name for entry in folder.iterdir() if _is_called_like_ours(entry.name, layout)
        }


def _names_of_manifest(work: Path) -> set[str]:
    return set(file_names(read_manifest(work))) if (work / MANIFEST_NAME).exists() else set()


def _names_of_checkpoint(folder: Path, layout: ShardLayout) -> set[str]:
    job, progress = load_job(folder), load_progress(folder, ASIDE_NAME)
    own: set[str] = set()
    if job is None or progress is None:
        return own
    before = ShardLayout(
        format=job.settings.format, vocabulary_size=layout.vocabulary_size
    )  # another than this run's, perhaps: names follow from the format alone
    for mark in (progress.train, progress.val):
        mark.check_names(before, folder / WORK_FOLDER / ASIDE_NAME)
        companion = companion_name(before, mark.split)
        own |= mark.names | ({companion} if companion else set())
    return own


def _is_called_like_ours(name: str, layout: ShardLayout) -> bool:
    return any(
        shard_number(layout, split, name) is not None
        or name in (documents_name(split), learnt_name(split), companion_name(layout, split))
        for split in SPLITS
    )
