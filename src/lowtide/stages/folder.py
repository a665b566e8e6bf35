"""The output folder: which command may write into it, its lock, and the file that asks a run to stop."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.events import Note, Stop, StopReason
from lowtide.journal import LOG_NAME
from lowtide.shards.layout import MANIFEST_NAME, WORK_FOLDER
from lowtide.storage.publish import remove_leftovers, storage_errors, sync_folder
from lowtide.tokenizer.byte_pair_files import TRAINED_MANIFEST_NAME
from lowtide.training.run_folder import CHECKPOINTS, RUN_NAME
from lowtide.training.run_folder import TOKENIZER as RUN_TOKENIZER

STOP_NAME = ".stop"
LOCK_NAME = "lock"
ASIDE = ".replaced"
"""Folder for a run that is being replaced, until the new one has a checkpoint."""
_HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
"""Error numbers of a file that another process has locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderKind:
    """What a command leaves in its output folder: by that, folders of different commands are distinguished."""

    manifest_name: str
    work_name: str
    """The file in the work folder that shows which command is making the folder."""
    in_words: str
    written: tuple[str, ...] = ()
    """Folders inside it that are written to and cleared."""
    progress_name: str = ""
    """The file in the work folder with the newest checkpoint of a stage."""


SHARDS = FolderKind(
    manifest_name=MANIFEST_NAME,
    work_name="job.json",
    progress_name="progress.json",
    in_words="an unfinished `tokenize`",
)
TOKENIZER = FolderKind(
    manifest_name=TRAINED_MANIFEST_NAME,
    work_name="training.json",
    progress_name="counting.json",
    in_words="an unfinished `train-tokenizer`",
)
RUN = FolderKind(
    manifest_name=RUN_NAME,
    work_name="run",
    in_words="a training run",
    written=(RUN_TOKENIZER, CHECKPOINTS, ASIDE, f"{CHECKPOINTS}/{ASIDE}"),
)
EXPORT = FolderKind(
    manifest_name=MANIFEST_NAME,
    work_name="export.json",
    progress_name="export_progress.json",
    in_words="an unfinished `export`",
)


def check_folder(folder: Path, kind: FolderKind = SHARDS) -> None:
    """UsageError for a file, and for a folder that holds other things. Changes nothing."""
    with storage_errors(folder, doing="read"):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file", remedy="pass a folder as `--out`")
        other = _find_other(folder, kind)
    if other:
        raise UsageError(
            f"{folder} already holds something else, such as {other}",
            remedy="pass a new or empty folder as `--out`",
        )


def _find_other(folder: Path, kind: FolderKind) -> str | None:
    """Something in the folder that a run of this kind did not leave there."""
    names = {entry.name for entry in folder.iterdir()} - {STOP_NAME}
    work = folder / WORK_FOLDER
    if names and kind.manifest_name not in names and WORK_FOLDER not in names:
        return min(names)
    written = [folder / LOG_NAME, work, *(folder / name for name in kind.written)]
    written += work.iterdir() if work.is_dir() else []
    if CHECKPOINTS in kind.written and (folder / CHECKPOINTS).is_dir():
        written += (folder / CHECKPOINTS).glob("step-*")
        written += (folder / CHECKPOINTS).glob(".step-*")
    for path in written:
        if path.is_symlink():  # not ours: writing would change the file that the link leads to
            return f"{path.relative_to(folder)}, which is a link"
    for begun in (SHARDS, TOKENIZER, EXPORT, RUN):
        if begun.work_name != kind.work_name and (work / begun.work_name).exists():
            return begun.in_words
    return None


def make_folder(folder: Path, kind: FolderKind = SHARDS) -> None:
    """Make the folder and its work folder, unless it holds other things."""
    check_folder(folder, kind)
    with storage_errors(folder):
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WORK_FOLDER).mkdir(exist_ok=True)
    sync_folder(folder)
    for path in missing:
        sync_folder(path.parent)  # else a power cut takes the folder with everything in it


def nearest_folder(path: Path) -> Path:
    """The path itself or the first folder above it that exists: its disk will hold what is made at `path`."""
    return next(one for one in (path, *path.absolute().parents) if one.exists())


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """One run at a time in a folder. The lock dies with its process, however that dies."""
    path = folder / WORK_FOLDER / LOCK_NAME
    with storage_errors(path):
        file = path.open("a+b")
    try:
        with storage_errors(path, doing="lock"):
            is_ours = try_lock(file.fileno()) and _is_at(path, file.fileno())
        if not is_ours:
            raise UsageError(
                f"another run is writing into {folder}",
                remedy="wait for it, stop it, or pass another `--out`",
            )
        yield
    finally:
        with storage_errors(path):
            file.close()


def remove_killed_writes(folder: Path) -> None:
    """Remove what a run was writing when it was killed. Only the holder of the lock may: else it is in use."""
    remove_leftovers(folder / WORK_FOLDER)
    remove_leftovers(folder)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file still has its name: a run that just ended may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def try_lock(descriptor: int) -> bool:
    """Lock the open file for as long as it, or a copy that a child inherits, is open; False if another has it.

    OSError where the file system keeps no locks.
    """
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:
            raise
        return False
    return True


def resuming_after(done: str) -> Note:
    """What a run says when it goes on with the work that it finds in its folder, such as `98.1M tokens`."""
    return Note(text=f"resuming after {done}: what is there is verified")


def finish_folder(folder: Path) -> None:
    """Remove the work folder, which a finished folder does not need, and a `.stop` that came too late."""
    take_stop_file(folder)
    shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)


def abandon_folder(folder: Path) -> None:
    """Remove everything of a run that failed before its first token."""
    (folder / LOG_NAME).unlink(missing_ok=True)
    finish_folder(folder)
    with suppress(OSError):  # it holds something, and so it stays
        folder.rmdir()


def find_stop(folder: Path, reason: StopReason | None) -> Stop | None:
    """Why to stop: for the reason that a signal gave, or because of a `.stop` file, which is consumed."""
    if reason is not None:
        return Stop(reason, "interrupted" if reason == "interrupted" else "asked to end")
    found = take_stop_file(folder)
    return None if found is None else Stop("terminated", found)


def take_stop_file(folder: Path) -> str | None:
    """The reason to stop, if there is a `.stop`. It is removed, so that the next run does not stop too.

    A folder of that name, or a file that only its owner may remove, is a stop as well.
    """
    path = folder / STOP_NAME
    with storage_errors(path, doing="read"):
        if not os.path.lexists(path):
            return None
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"a .stop was found that cannot be removed ({error.strerror}): remove it before the next start"
    return "a .stop file was found"
