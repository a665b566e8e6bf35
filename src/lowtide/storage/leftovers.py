"""Clearing away what is no longer wanted."""

from __future__ import annotations

import shutil
from pathlib import Path


def remove_path(path: Path) -> None:
    """A file, a link, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
