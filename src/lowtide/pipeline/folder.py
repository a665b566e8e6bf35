"""The output folder: who may write into it, whether a run goes on in it, and how it is emptied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lowtide.errors import UsageError, VerificationError
from lowtide.pipeline.job import ASIDE_NAME, JOB_NAME, PROGRESS_NAME, load_job, load_progress
from lowtide.shards.export import EXPORT_PROGRESS_NAME
from lowtide.shards.layout import (
    MANIFEST_NAME,
    SPLITS,
    WORK_FOLDER,
    ShardLayout,
    companion_name,
    documents_name,
    shard_number,
)
from lowtide.shards.manifest import file_names, read_manifest
from lowtide.storage.publish import remove_leftovers, storage_errors, sync_folder

STOP_NAME = ".stop"
_LOCK_NAME = "lock"


def check_folder(folder: Path) -> None:
    """Refuse a folder that is none, or that holds other things; nothing is changed."""
    with storage_errors(folder, doing="read"):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file", remedy="pass a folder as `--out`")
        names = {entry.name for entry in folder.iterdir()} - {STOP_NAME}
        work = folder / WORK_FOLDER
        if names and MANIFEST_NAME not in names and WORK_FOLDER not in names:
            other = min(names)
        elif work.is_symlink():
            other = f"{WORK_FOLDER}, which is a link"
        elif (work / EXPORT_PROGRESS_NAME).exists():
            other = "an unfinished export"
        else:
            return
    raise UsageError(
        f"{folder} already holds something else, such as {other}",
        remedy="pass a new or empty folder as `--out`",
    )


def make_folder(folder: Path) -> None:
    """The folder and its work folder exist afterwards; one that holds other things is refused."""
    check_folder(folder)
    with storage_errors(folder):
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WORK_FOLDER).mkdir(exist_ok=True)
    sync_folder(folder)
    for path in missing:
        sync_folder(path.parent)  # else a power cut takes the folder with everything in it


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """One run at a time in a folder. The lock dies with its process, however that dies."""
    path = folder / WORK_FOLDER / _LOCK_NAME
    with storage_errors(path):
        file = path.open("a+b")
    try:
        if not (_try_lock(file.fileno()) and _is_at(path, file.fileno())):
            raise UsageError(
                f"another run is writing into {folder}",
                remedy="wait for it, stop it, or pass another `--out`",
            )
        yield
    finally:
        with storage_errors(path):
            file.close()


def remove_killed_writes(folder: Path) -> None:
    """Clear away what a run was writing when it was killed. For the holder of the lock: else it is in use."""
    remove_leftovers(folder / WORK_FOLDER)
    remove_leftovers(folder)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file still has its name: a run that just ended may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _try_lock(descriptor: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
        return _names_of_manifest(folder / WORK_FOLDER) | _names_of_checkpoint(folder)
    except VerificationError:
        return {
            entry.name for entry in folder.iterdir() if _is_called_like_ours(entry.name, layout)
        }


def _names_of_manifest(work: Path) -> set[str]:
    return set(file_names(read_manifest(work))) if (work / MANIFEST_NAME).exists() else set()


def _names_of_checkpoint(folder: Path) -> set[str]:
    job, progress = load_job(folder), load_progress(folder, ASIDE_NAME)
    own: set[str] = set()
    if job is None or progress is None:
        return own
    for mark in (progress.train, progress.val):
        own |= {record.name for record in (*mark.finished, mark.open, mark.index) if record}
        if job.settings.format == "megatron":
            own.add(f"{mark.split}.idx")
    return own


def _is_called_like_ours(name: str, layout: ShardLayout) -> bool:
    return any(
        shard_number(layout, split, name) is not None
        or name in (documents_name(split), companion_name(layout, split))
        for split in SPLITS
    )


def finish_folder(folder: Path) -> None:
    """After the manifest stands, the work folder is not needed, and a `.stop` came too late."""
    take_stop_file(folder)
    shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)


def abandon_folder(folder: Path) -> None:
    """After an error before the first token: as if the run had never been, for all that is ours."""
    finish_folder(folder)
    with suppress(OSError):  # it holds something, and so it stays
        folder.rmdir()


def take_stop_file(folder: Path) -> bool:
    """Whether someone left a `.stop` file; it is consumed, so that the next run goes on."""
    path = folder / STOP_NAME
    with storage_errors(path):
        if not path.exists():
            return False
        path.unlink(missing_ok=True)
    return True
