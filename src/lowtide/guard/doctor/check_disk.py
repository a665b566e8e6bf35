"""Where files go: how much room there is, on what, and how fast it really takes bytes."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from lowtide.guard.doctor.checks import Check, advice, ok, problem
from lowtide.memory.proc_files import read_text
from lowtide.units import GIB, MIB, format_bytes, format_seconds

MOST_BYTES = 256 * MIB
MOST_SECONDS = 1.0
_FIRST_PIECE_BYTES = MIB
_LARGEST_PIECE_BYTES = 32 * MIB
_QUICK_PIECE_SECONDS = 0.1
_SLOW_BYTES_PER_SECOND = 50 * MIB
_LITTLE_BYTES, _SCARCE_BYTES = 10 * GIB, GIB
_SMALL_SHM_BYTES = GIB
IN_MEMORY = ("tmpfs", "ramfs")
_OF_THE_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs")
_OF_WINDOWS = ("9p", "drvfs")
_NAMES_OF_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the disk of a folder says of itself."""

    free_bytes: int
    total_bytes: int
    free_files: int | None
    """None where files need no numbers (btrfs, Windows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A trial: so many bytes, written and synced."""

    total_bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.total_bytes / max(self.seconds, 1e-9)


def read_room(folder: Path) -> Room:
    """The disk below the folder, as a user without privileges has it."""
    use, free_files = shutil.disk_usage(folder), None
    if hasattr(os, "statvfs"):
        told = os.statvfs(folder)
        free_files = told.f_favail if told.f_files else None
    return Room(free_bytes=use.free, total_bytes=use.total, free_files=free_files)


def file_system(folder: Path, root: Path) -> str | None:
    """Its kind, such as `ext4`; None where `/proc` does not tell."""
    best, kind = -1, None
    for place, found in _mounts(read_text(root / "proc/self/mountinfo") or ""):
        inside = folder == place or place in folder.parents
        if inside and len(place.parts) >= best:  # the last mounted on a place hides the others
            best, kind = len(place.parts), found
    return kind


def _mounts(text: str) -> Iterator[tuple[Path, str]]:
    """`31 23 0:28 TOP FOLDER rw … - KIND source OPTIONS`, one per line."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        before = left.split(" ")
        if len(before) >= 5 and right:
            place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before[4])
            yield Path(place), right.split(" ")[0]


def check_space(room: Room, folder: Path) -> Check:
    """Room for tokens and checkpoints."""
    told = f"{format_bytes(room.free_bytes)} free of {format_bytes(room.total_bytes)}, at {folder}"
    remedy = "free some, or ask about another disk with `--path DIR` and write there"
    if room.free_files is not None and room.free_files < 1000:
        return problem("disk space", f"{told}, but only {room.free_files} more files", remedy)
    if room.free_bytes < _SCARCE_BYTES:
        return problem("disk space", told, remedy)
    if room.free_bytes < _LITTLE_BYTES:
        return advice("disk space", f"{told}: a billion tokens take 1.9 GiB or more", remedy)
    return ok("disk space", told)


def check_file_system(kind: str | None, *, container: str | None) -> Check | None:
    """What lies under the folder, and whether it stays."""
    if kind is None:
        return None
    if kind in IN_MEMORY:
        told = f"{kind}: files written here take RAM, and are gone after a restart"
        return advice("file system", told, "write to a folder on a disk")
    if kind == "overlay" and container:
        told = "overlay: what is written here is gone when the container is removed"
        return advice(
            "file system", told, "mount a folder of the host and write there: `-v DIR:DIR`"
        )
    if kind in _OF_WINDOWS:
        told = f"{kind}: files of the host behind a slow door"
        return advice("file system", told, "keep data on the Linux side, such as in your home")
    if kind in _OF_THE_NETWORK:
        return ok("file system", f"{kind}: over the network, as fast as that is")
    return ok("file system", kind)


def check_temporary(folder: Path, kind: str | None, *, other: Path | None) -> Check | None:
    """Where programs put what they need for a while; `other` lies on a disk."""
    if kind is None:
        return None
    if kind not in IN_MEMORY:
        return ok("temporary files", f"{folder}, on {kind}")
    told = f"{folder} is {kind}: temporary files take RAM"
    return advice("temporary files", told, f"`export TMPDIR={other or 'DIR'}`, a folder on a disk")


def find_wrong_temporary(environ: Mapping[str, str], *, used: Path) -> Check | None:
    """None where the folder that was asked for is there, or none was asked for; `used` is taken instead."""
    name = next((name for name in _NAMES_OF_TEMPORARY if environ.get(name)), None)
    if name is None or Path(environ[name]).is_dir():
        return None
    folder = environ[name]
    if Path(folder).exists():
        what, remedy = "not a folder", f"`unset {name}`, or name a folder"
    else:
        what, remedy = "not there", f"`mkdir -p {shlex.quote(folder)}`, or `unset {name}`"
    told = f"{name} is {folder}, which is {what}: some programs fail, others use {used}"
    return advice("temporary files", told, remedy)


def check_shared_memory(total_bytes: int | None, *, container: str | None) -> Check | None:
    """`/dev/shm`: torch's data workers hand batches over there, and die of a bus error when it is full."""
    if total_bytes is None:
        return None
    told = f"/dev/shm holds {format_bytes(total_bytes)}"
    if total_bytes >= _SMALL_SHM_BYTES:
        return ok("shared memory", told)
    remedy = "as root: `mount -o remount,size=4G /dev/shm`"
    if container:
        remedy = "start the container with `--shm-size=4g` or `--ipc=host`"
    return advice("shared memory", f"{told}: torch's data workers die when it is full", remedy)


def measure_writing(
    folder: Path, *, most_bytes: int, most_seconds: float = MOST_SECONDS
) -> Written:
    """Write and sync, piece by piece, until either bound is reached; the file never has a name.

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
    return Written(total_bytes=done_bytes, seconds=seconds)


def find_refusal(folder: Path) -> Check | None:
    """None where a file can be made. The trial has no name and holds nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return judge_refusal(folder, error)


def check_writing(folder: Path, room: Room, kind: str | None) -> Check:
    """Writes at most 256 MiB, a tenth of what is free, for about a second, and keeps none of it."""
    if kind in IN_MEMORY:
        return ok("write speed", f"not tried: {kind} is memory")
    most_bytes = min(MOST_BYTES, room.free_bytes // 10)
    if most_bytes < _FIRST_PIECE_BYTES:
        return ok("write speed", "not tried: the disk is full")
    try:
        written = measure_writing(folder, most_bytes=most_bytes)
    except OSError as error:
        return judge_refusal(folder, error)
    return judge_speed(written)


def judge_refusal(folder: Path, error: OSError) -> Check:
    """The disk said no."""
    reason = (error.strerror or str(error)).lower()
    told = f"{folder} cannot be written: {reason}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return problem("write speed", told, "free some space, or have your quota raised")
    return problem("write speed", told, "pass a folder of your own with `--path DIR`")


def judge_speed(written: Written) -> Check:
    rate = format_bytes(int(written.bytes_per_second))
    how = f"{format_bytes(written.total_bytes)} written and synced in {format_seconds(written.seconds)}"
    told = f"{rate}/s (measured: {how})"
    if written.bytes_per_second >= _SLOW_BYTES_PER_SECOND:
        return ok("write speed", told)
    return advice(
        "write speed", f"{told}: slow", "write to a faster disk; `--path DIR` measures it"
    )
