"""Paths as people give them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from lowtide.errors import UsageError


def as_path(name: str | os.PathLike[str]) -> Path:
    """The path; UsageError for text that no file can be called by: nothing, NUL, half of a surrogate pair."""
    if not os.fspath(name):  # Path would make the current folder of it
        raise UsageError(
            "an empty name was given where a path belongs",
            remedy="name a path; `.` is the current folder",
        )
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
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"{str(path)[:60]!r}… is too long for the name of a file ({len(str(path))} characters)",
                remedy="pass a shorter path",
            ) from error
    return path
