"""Write outputs that are absent or whole: written beside their place, synced, renamed, the folder synced.

    write `.manifest.json.4711.tmp` → fsync → os.replace → fsync of the folder

A crash at any of these arrows leaves the old file or the new one, and at most a `.tmp` beside it,
which `remove_leftovers` removes at the next start.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lowtide.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LEFTOVER = re.compile(r"\..+\.\d+\.tmp\Z", re.DOTALL)
_FOLDERS_THAT_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
_THEN_RESUME = "then run the same command again: it resumes where it stopped"


def partial_path(path: Path) -> Path:
    """Where this process writes a file before `publish` names it; `remove_leftovers` looks for this form."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`, durably. After any failure it holds what it held before."""
    partial = partial_path(path)
    try:
        with storage_errors(path), partial.open("wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())  # the rename must not become durable before the bytes do
        publish(partial, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            partial.unlink(missing_ok=True)
        raise


def make_private(path: Path) -> None:
    """Create the file if it is missing. What is created, folders included, only its owner may read.

    It will hold command lines, and those may hold passwords.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):  # `parents=True` would apply the mode to the last one only
        folder.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def publish(partial: Path, final: Path) -> None:
    """Give a finished file its name. The caller has synced its bytes and closed it."""
    with storage_errors(final):
        os.replace(partial, final)  # noqa: PTH105 - and never os.rename: it fails on Windows
    sync_folder(final.parent)


def sync_file(file_number: int) -> None:
    """Put the bytes of an open file on the disk, past the caches of the system and the drive."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:  # macOS: fsync alone stops at the drive's own cache
        with suppress(OSError):
            fcntl.fcntl(file_number, full_sync)
            return
    os.fsync(file_number)


def reserve(file_number: int, size_bytes: int) -> None:
    """Give an open file this size, with disk space allocated for all of it.

    Without the space, writing to a mapped file kills the process when the disk is full (SIGBUS).
    """
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is not None:
        allocate(file_number, 0, size_bytes)
    else:  # macOS, Windows: sets the size without allocating space
        os.ftruncate(file_number, size_bytes)


def sync_folder(path: Path) -> None:
    """Make names that were created, replaced or removed in the folder survive a power cut."""
    if os.name == "nt":  # a folder cannot be opened there; NTFS keeps names in its own journal
        return
    with storage_errors(path):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _FOLDERS_THAT_CANNOT_SYNC:  # some network file systems
                raise
        finally:
            os.close(folder)


def remove_leftovers(folder: Path) -> int:
    """Remove the `.NAME.PID.tmp` files of a killed run, and count them. For a folder that only lowtide uses."""
    with storage_errors(folder):
        leftovers = [
            entry
            for entry in folder.iterdir()
            if _LEFTOVER.match(entry.name) and not entry.is_dir()
        ]
        for entry in leftovers:
            entry.unlink(missing_ok=True)
    return len(leftovers)


def remove_path(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path, *, doing: str = "write") -> Iterator[None]:
    """Turn every OSError of the block into a StorageError that names `path` and what to do."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, doing=doing) from error


def storage_error(error: OSError, path: Path, *, doing: str = "write") -> StorageError:
    """The system's error in words, with a remedy."""
    number = error.errno or 0
    reason = os.strerror(number) if number else str(error)
    name = errno.errorcode.get(number, "no error number")
    return StorageError(f"cannot {doing} {path}: {reason} ({name})", remedy=_remedy(number, path))


def _remedy(number: int, path: Path) -> str:
    folder = path.parent
    match number:
        case errno.ENOSPC:
            return f"free space on the disk that holds {folder}, {_THEN_RESUME}; or pass another `--out`"
        case errno.EDQUOT:
            return f"free some of your quota on {folder}, {_THEN_RESUME}; or pass another `--out`"
        case errno.EROFS:
            return "pass an `--out` on a file system that can be written to"
        case errno.EACCES | errno.EPERM:
            return (
                f"allow access to {folder} (or close what holds it open), or pass another `--out`"
            )
        case errno.EIO:
            return f"check the disk that holds {folder} (`dmesg` says more), {_THEN_RESUME}"
        case errno.ENOENT | errno.ENOTDIR:
            return f"make sure that the folder {folder} exists and is a folder, {_THEN_RESUME}"
        case errno.EISDIR | errno.ENOTEMPTY | errno.EEXIST:
            return f"move {path} away, {_THEN_RESUME}; or pass another `--out`"
        case errno.EFBIG:
            return (
                "raise the file size limit (`ulimit -f`); shards are smaller with `--shard-tokens`"
            )
        case errno.EMFILE | errno.ENFILE:
            return f"raise the limit on open files (`ulimit -n`), {_THEN_RESUME}"
        case errno.ENOLCK | errno.EOPNOTSUPP | errno.ENOSYS:
            return "pass an `--out` on a file system with locks; Lustre has them when mounted with `-o flock`"
        case errno.ENAMETOOLONG:
            return "pass an `--out` with a shorter name"
        case _:
            return f"check the disk that holds {folder}, {_THEN_RESUME}"
