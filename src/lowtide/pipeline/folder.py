"""The output folder: who may write into it, whether a run goes on in it, and how it is emptied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowtide.errors import UsageError, VerificationError
from lowtide.pipeline.job import PROGRESS_NAME
from lowtide.shards.layout import MANIFEST_NAME, SPLITS, WORK_FOLDER, documents_name
from lowtide.shards.manifest import file_names, read_manifest
from lowtide.storage.publish import remove_leftovers, storage_errors, sync_folder

STOP_NAME = ".stop"
_LOCK_NAME = "lock"


def make_folder(folder: Path) -> None:
    """The folder and its work folder exist afterwards; one that holds other things is refused."""
    with storage_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file", remedy="pass a folder as `--out`")
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()} - {STOP_NAME}
        if names and MANIFEST_NAME not in names and WORK_FOLDER not in names:
            raise UsageError(
                f"{folder} already holds something else, such as {min(names)}",
                remedy="pass a new or empty folder as `--out`",
            )
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
        if not _try_lock(file.fileno()):
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


def empty_folder(folder: Path) -> None:
    """`--restart`: remove what lowtide made here and nothing else; what promises shards goes first."""
    work = folder / WORK_FOLDER
    with storage_errors(folder):
        names = _own_names(folder)
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        (work / PROGRESS_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        sync_folder(work)  # neither manifest nor checkpoint may outlive the shards it promises
        for name in names:
            (folder / name).unlink(missing_ok=True)
        for entry in list(work.iterdir()):
            if entry.name != _LOCK_NAME:
                entry.unlink()
    sync_folder(folder)


def _own_names(folder: Path) -> set[str]:
    own = {documents_name(split) for split in SPLITS}
    try:
        own |= set(file_names(read_manifest(folder)))
    except VerificationError:
        pass  # unfinished or damaged: the names that our writers give must do
    for entry in folder.iterdir():
        stem, _, suffix = entry.name.partition(".")
        split, _, number = stem.partition("_")
        numbered = len(number) == 6 and number.isdigit() and suffix in ("npy", "bin")
        single = not number and suffix in ("bin", "idx")
        if split in SPLITS and (numbered or single):
            own.add(entry.name)
    return own


def finish_folder(folder: Path) -> None:
    """After the manifest stands, the work folder is not needed, and a `.stop` came too late."""
    take_stop_file(folder)
    shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)


def take_stop_file(folder: Path) -> bool:
    """Whether someone left a `.stop` file; it is consumed, so that the next run goes on."""
    path = folder / STOP_NAME
    with storage_errors(path):
        if not path.exists():
            return False
        path.unlink(missing_ok=True)
    return True
