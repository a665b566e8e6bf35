"""Folders that a process works in, and what is left of them when it was killed.

Such a folder bears a mark in its name: machine, process, and when that process began. On a shared disk the same
number may be at work on another machine, and on this one it may have been given to another process since.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from pathlib import Path

import xxhash

from lowtide.guard.job import start_time

_MARK = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)(?!\d)")


def process_folder_name(prefix: str) -> str:
    """`process_folder_name(".out.")` is `".out.3f09a2c1-4711-93561"`: a folder that this process works in."""
    return f"{prefix}{_machine()}-{os.getpid()}-{_began(os.getpid())}"


def remove_orphan_folders(place: Path, prefix: str) -> None:
    """Those that a process of this machine named with `process_folder_name`, and did not live to remove.

    What another machine made stays: whether it is at work there cannot be seen from here.
    """
    for path in list(place.iterdir()) if place.is_dir() else []:
        if not path.name.startswith(prefix):
            continue
        found = _MARK.match(path.name, len(prefix))
        if found and found[1] == _machine() and not _is_at_work(int(found[2]), int(found[3])):
            shutil.rmtree(path, ignore_errors=True)


def _is_at_work(pid: int, began: int) -> bool:
    """Whether the process of that number is still the one that began then."""
    if sys.platform == "linux":
        return start_time(pid) == began
    import psutil  # type: ignore[import-untyped, unused-ignore] # seldom needed, slow to load

    try:
        return _began(pid) == began
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OverflowError):  # gone, or a number that no process has
        return False


def _began(pid: int) -> int:
    """In ticks since the machine began, which no clock moves; elsewhere than on Linux in seconds since 1970."""
    ticks = start_time(pid)
    if ticks is not None:
        return ticks
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return int(psutil.Process(pid).create_time())


def _machine() -> str:
    """Where a process number has one meaning: this machine, or this container of it."""
    known = [platform.node()]
    for path in (Path("/etc/machine-id"), Path("/proc/self/ns/pid")):
        try:
            known.append(os.fspath(path.readlink()) if path.is_symlink() else path.read_text())
        except OSError:
            known.append("")
    return xxhash.xxh32_hexdigest("\n".join(known).encode(errors="surrogateescape"))
