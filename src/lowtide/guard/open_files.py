"""Which files does some process hold open for writing? Only Linux shows it."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import TypeAlias

from lowtide.memory.proc_files import read_text

FileId: TypeAlias = tuple[int, int]
"""Device and inode."""
_PROC = Path("/proc")
_ACCESS = 3
"""The bits of `flags` that say how a file was opened; 0 is reading alone."""


def find_written(files: Set[FileId]) -> set[FileId]:
    """Those of the files that a process has open for writing.

    Empty where the system does not show it. Processes that we may not look into are passed over. One pass over
    all open files of the machine: a few milliseconds for a thousand of them.
    """
    if not files or not _PROC.is_dir():
        return set()
    written = set()
    for pid in (name for name in _names(_PROC) if name.isdigit()):
        for number in _names(_PROC / pid / "fd"):
            try:
                found = os.stat(f"{_PROC}/{pid}/fd/{number}")  # noqa: PTH116 - thousands of times
            except OSError:  # closed meanwhile, or not ours to see
                continue
            identity = (found.st_dev, found.st_ino)
            if identity in files and _is_for_writing(pid, number):
                written.add(identity)
    return written


def _is_for_writing(pid: str, number: str) -> bool:
    text = read_text(_PROC / pid / "fdinfo" / number) or ""
    flags = [line.split()[1] for line in text.splitlines() if line.startswith("flags:")]
    return bool(flags) and bool(int(flags[0], 8) & _ACCESS)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone, thousands of times
    except OSError:
        return []
