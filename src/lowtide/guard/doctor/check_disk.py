"""Where files go: how much space there is, on what, and how fast it really takes bytes."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from lowtide.guard.doctor.checks import NOT_TRIED, Check, Examination, advice, ok, problem
from lowtide.memory.proc_files import read_mounts
from lowtide.units import GIB, MIB, format_bytes, format_seconds

MOST_BYTES = 256 * MIB
MOST_SECONDS = 1.0
_FIRST_PIECE_BYTES = MIB
_LARGEST_PIECE_BYTES = 32 * MIB
_QUICK_PIECE_SECONDS = 0.1
_SLOW_BYTES_PER_SECOND = 50 * MIB
_LITTLE_BYTES, _SCARCE_BYTES = 10 * GIB, GIB
_SMALL_SHM_BYTES = GIB
_FEW_FILES = 1000
IN_MEMORY = ("tmpfs", "ramfs")
_RAM = (
    "files written here take RAM, and are gone after a restart",
    "write to a folder on a disk",
)
_NETWORK = ("over the network, as fast as that is", None)
_WINDOWS = (
    "the host's files, reached slowly",
    "keep data on the Linux side, such as in your home",
)
_FILE_SYSTEMS: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(IN_MEMORY, _RAM),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"), _NETWORK),
    **dict.fromkeys(("9p", "drvfs"), _WINDOWS),
}
"""What to know of a kind of file system, and what to do instead; all others are fine."""
_TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """What the disk of a folder has left."""

    free_bytes: int
    total_bytes: int
    free_files: int | None
    """None where files need no numbers (btrfs, Windows)."""


def read_disk_space(folder: Path) -> DiskSpace:
    """The disk below the folder, as a user without privileges has it."""
    use, free_files = shutil.disk_usage(folder), None
    if hasattr(os, "statvfs"):
        found = os.statvfs(folder)
        free_files = found.f_favail if found.f_files else None
    return DiskSpace(free_bytes=use.free, total_bytes=use.total, free_files=free_files)


def file_system(folder: Path, root: Path) -> str | None:
    """The kind of file system, such as `ext4`; None where `/proc` does not say."""
    best, kind = -1, None
    for mount in read_mounts(root):
        place = Path(mount.place)
        inside = folder == place or place in folder.parents
        if inside and len(place.parts) >= best:  # the last mounted on a place hides the others
            best, kind = len(place.parts), mount.kind
    return kind


def check_space(examination: Examination) -> Check:
    """Space for tokens and checkpoints."""
    space = examination.space
    assert space is not None, "the disk is read before it is judged"
    left = f"{format_bytes(space.free_bytes)} free of {format_bytes(space.total_bytes)}"
    finding = f"{left}, at {examination.folder}"
    remedy = "free some, or ask about another disk with `--path DIR` and write there"
    if space.free_files is not None and space.free_files < _FEW_FILES:
        return problem("disk space", f"{finding}, but only {space.free_files} more files", remedy)
    if space.free_bytes < _SCARCE_BYTES:
        return problem("disk space", finding, remedy)
    if space.free_bytes < _LITTLE_BYTES:
        return advice("disk space", f"{finding}: a billion tokens take 1.9 GiB or more", remedy)
    return ok("disk space", finding)


def check_file_system(examination: Examination) -> Check | None:
    """What lies under the folder, and whether it stays."""
    kind = examination.file_system
    if kind is None:
        return None
    finding, remedy = _FILE_SYSTEMS.get(kind, ("", None))
    if kind == "overlay" and examination.container:
        finding = "what is written here is gone when the container is removed"
        remedy = "mount a folder of the host and write there: `-v DIR:DIR`"
    finding = f"{kind}: {finding}" if finding else kind
    return advice("file system", finding, remedy) if remedy else ok("file system", finding)


def check_temporary(examination: Examination) -> Check | None:
    """Where programs put temporary files."""
    try:
        folder = Path(tempfile.gettempdir()).resolve()
    except FileNotFoundError:
        finding = "there is no folder for them: neither TMPDIR nor /tmp can be written"
        return problem("temporary files", finding, "`export TMPDIR=DIR`, a folder of your own")
    wrong = find_wrong_temporary(examination.environ, used=folder)
    if wrong is not None:
        return wrong
    other = Path("/var/tmp")
    other_kind = file_system(other, examination.root) if other.is_dir() else None
    is_on_disk = other_kind not in (*IN_MEMORY, None)
    kind = file_system(folder, examination.root)
    return judge_temporary(folder, kind, other=other if is_on_disk else None)


def judge_temporary(folder: Path, kind: str | None, *, other: Path | None) -> Check | None:
    """Whether temporary files take RAM; `other` is a folder on a disk."""
    if kind is None:
        return None
    if kind not in IN_MEMORY:
        return ok("temporary files", f"{folder}, on {kind}")
    finding = f"{folder} is {kind}: temporary files take RAM"
    return advice(
        "temporary files", finding, f"`export TMPDIR={other or 'DIR'}`, a folder on a disk"
    )


def find_wrong_temporary(environ: Mapping[str, str], *, used: Path) -> Check | None:
    """None where the folder that a variable names exists, or no variable names one; else `used` is taken."""
    name = next((name for name in _TEMPORARY_VARIABLES if environ.get(name)), None)
    if name is None or Path(environ[name]).is_dir():
        return None
    folder = environ[name]
    if Path(folder).exists():
        what, remedy = "not a folder", f"`unset {name}`, or name a folder"
    else:
        what, remedy = "not there", f"`mkdir -p {shlex.quote(folder)}`, or `unset {name}`"
    finding = f"{name} is {folder}, which is {what}: some programs fail, others use {used}"
    return advice("temporary files", finding, remedy)


def check_shared_memory(examination: Examination) -> Check | None:
    """`/dev/shm`: torch's data workers hand batches over there, and die of a bus error when it is full."""
    total_bytes = examination.shared_memory_bytes
    if total_bytes is None:
        return None
    finding = f"/dev/shm holds {format_bytes(total_bytes)}"
    if total_bytes >= _SMALL_SHM_BYTES:
        return ok("shared memory", finding)
    remedy = "as root: `mount -o remount,size=4G /dev/shm`"
    if examination.container:
        remedy = "start the container with `--shm-size=4g` or `--ipc=host`"
    return advice("shared memory", f"{finding}: torch's data workers die when it is full", remedy)


def check_writing(examination: Examination) -> Check:
    """Whether files can be made in the folder, and how fast the disk takes bytes.

    Writes at most 256 MiB, a tenth of what is free, for about a second, and keeps none of it.
    """
    folder, kind, space = examination.folder, examination.file_system, examination.space
    assert space is not None, "the disk is read before it is tried"
    most_bytes = min(MOST_BYTES, space.free_bytes // 10)
    try:
        with tempfile.TemporaryFile(dir=folder):  # has no name and holds nothing
            pass
        if examination.quick:
            return ok("write speed", NOT_TRIED)
        if kind in IN_MEMORY:
            return ok("write speed", f"not tried: {kind} is memory")
        if most_bytes < _FIRST_PIECE_BYTES:
            return ok("write speed", "not tried: the disk is full")
        return judge_speed(*measure_writing(folder, most_bytes=most_bytes))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        remedy = "pass a folder of your own with `--path DIR`"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space, or have your quota raised"
        return problem("write speed", f"{folder} cannot be written: {reason}", remedy)


def measure_writing(
    folder: Path, *, most_bytes: int, most_seconds: float = MOST_SECONDS
) -> tuple[int, float]:
    """Write and sync, piece by piece, until either bound is reached: bytes and seconds. No file has a name.

    Each piece is synced, so that the time is the disk's and not memory's. Pieces grow only while they are
    quick: a disk of 1 MiB/s is done after one.
    """
    noise = os.urandom(_FIRST_PIECE_BYTES)  # zeros would be squeezed to nothing by some disks
    piece_bytes, done_bytes, begun = _FIRST_PIECE_BYTES, 0, perf_counter()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:  # gone even after SIGKILL
        while done_bytes < most_bytes and perf_counter() - begun < most_seconds:
            piece_bytes = min(piece_bytes, most_bytes - done_bytes)
            piece_begun = perf_counter()
            for _ in range(-(-piece_bytes // len(noise))):
                done_bytes += file.write(noise) or 0
            os.fsync(file.fileno())
            if perf_counter() - piece_begun < _QUICK_PIECE_SECONDS:
                piece_bytes = min(2 * piece_bytes, _LARGEST_PIECE_BYTES)
        seconds = perf_counter() - begun
    return done_bytes, seconds


def judge_speed(written_bytes: int, seconds: float) -> Check:
    """Whether the disk is fast enough."""
    rate = written_bytes / max(seconds, 1e-9)
    how = f"{format_bytes(written_bytes)} written and synced in {format_seconds(seconds)}"
    finding = f"{format_bytes(int(rate))}/s (measured: {how})"
    if rate >= _SLOW_BYTES_PER_SECOND:
        return ok("write speed", finding)
    return advice(
        "write speed", f"{finding}: slow", "write to a faster disk; `--path DIR` measures it"
    )
