"""Clearing away: what is no longer wanted, and folders that bear the number of a process that was killed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def remove_path(path: Path) -> None:
    """A file, a link, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_folders_of_the_dead(place: Path, pattern: re.Pattern[str]) -> None:
    """Those whose whole name matches, and whose process, the first group, is no more."""
    import psutil  # type: ignore[import-untyped, unused-ignore] # seldom needed, slow to load

    for path in list(place.iterdir()) if place.is_dir() else []:
        found = pattern.fullmatch(path.name)
        if found and not psutil.pid_exists(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)
