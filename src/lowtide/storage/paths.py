"""Check paths that people give."""

from __future__ import annotations

import os
from pathlib import Path

from lowtide.errors import UsageError


def as_path(name: str | os.PathLike[str]) -> Path:
    """The path; UsageError for text that cannot be a file's name: NUL, or half of a surrogate pair."""
    path = Path(name)
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UsageError(
            f"{str(path)!r} cannot be the name of a file: it holds NUL, or text that is not Unicode",
            remedy="pass another path",
        )
    return path
