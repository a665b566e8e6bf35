"""Clearing away: what is no longer wanted, and folders of processes that were killed.

Such a folder bears a mark in its name: machine, process, and when that process began. On a shared disk the same
number may be at work on another machine, and on this one it may have been given to another process since.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

import xxhash

_MARK = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)(?!\d)")
_SLACK_SECONDS = 5
"""The system's idea of when a process began moves with its clock."""


def remove_path(path: Path) -> None:
    """A file, a link, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def name_of_ours(prefix: str) -> str:
    """`name_of_ours(".out.")` is `".out.3f09a2c1-4711-1794856841"`: a folder that this process works in."""
    import psutil  # type: ignore[import-untyped, unused-ignore] # seldom needed, slow to load

    began = int(psutil.Process().create_time())
    return f"{prefix}{_machine()}-{os.getpid()}-{began}"


def remove_folders_of_the_dead(place: Path, prefix: str) -> None:
    """Those that a process of this machine made with `name_of_ours`, and did not live to remove.

    What another machine made stays: whether it is at work there cannot be seen from here.
    """
    for path in list(place.iterdir()) if place.is_dir() else []:
        if not path.name.startswith(prefix):
            continue
        found = _MARK.match(path.name, len(prefix))
        if found and found[1] == _machine() and not _is_alive(int(found[2]), int(found[3])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int, began: int) -> bool:
    """Whether the process of that number is still the one that began then."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        return abs(float(psutil.Process(pid).create_time()) - began) <= _SLACK_SECONDS
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OverflowError):  # gone, or a number that no process has
        return False


def _machine() -> str:
    """Where a process number has one meaning: this machine, or this container of it."""
    known = [platform.node()]
    for path in (Path("/etc/machine-id"), Path("/proc/self/ns/pid")):
        try:
            known.append(os.fspath(path.readlink()) if path.is_symlink() else path.read_text())
        except OSError:
            known.append("")
    return xxhash.xxh32_hexdigest("\n".join(known).encode(errors="surrogateescape"))
