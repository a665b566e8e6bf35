"""Where a page is written: never over anything but a page, and with a remedy that fits a page."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowtide.errors import StorageError, UsageError
from lowtide.report.page.document import GENERATOR
from lowtide.storage.publish import storage_errors, write_atomically
from lowtide.units import printable

_GLANCE_BYTES = 4096


def check_place(page: Path) -> Path:
    """The place, with links followed; `UsageError` where the page would replace what is not a page of ours."""
    if os.fspath(page) == "-":
        raise UsageError(
            "a page is written to a file, not to stdout",
            remedy="pass `--out FILE.html`; `--json` prints what the page says",
        )
    with page_errors(page):
        page = _resolved(page)
        shown = _shown(page)
        if not page.name.lower().endswith(".html"):
            raise UsageError(
                f"{shown} is not a name for a page",
                remedy="pass an `--out` that ends in .html",
            )
        if page.exists() and not _is_page(page):
            raise UsageError(
                f"{shown} exists and is not a page of lowtide",
                remedy="pass another `--out`, a file that ends in .html, or move that one away",
            )
    return page


def write_whole(page: Path, content: bytes) -> None:
    """The page stands afterwards, or what stood before."""
    with page_errors(page):
        write_atomically(page, content)


@contextmanager
def log_errors(log: Path) -> Iterator[None]:
    """What the disk says while a log is read, with a remedy that fits."""
    try:
        with storage_errors(log, doing="read"):
            yield
    except StorageError as error:
        remedy = f"make sure that {_shown(log)} can be read, then run the command again"
        raise StorageError(printable(error.problem), remedy=remedy) from error.__cause__


@contextmanager
def page_errors(page: Path) -> Iterator[None]:
    """What the disk says to a page, with a remedy that fits: a page does not go on, it is made again."""
    try:
        with storage_errors(page):
            yield
    except StorageError as error:
        cause = error.__cause__
        number = cause.errno if isinstance(cause, OSError) else None
        raise StorageError(printable(error.problem), remedy=_remedy(number, page)) from cause


def _remedy(number: int | None, page: Path) -> str:
    folder = _shown(page.parent)
    match number:
        case errno.ENOENT:
            return f"make the folder {folder} first, or pass another `--out`"
        case errno.ENOSPC | errno.EDQUOT:
            return f"free some space in {folder}, or pass an `--out` on another disk"
        case errno.ENAMETOOLONG:
            return "pass an `--out` with a shorter name"
    return "pass an `--out` in a folder that you can write to"


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return GENERATOR in file.read(_GLANCE_BYTES)


def _resolved(page: Path) -> Path:
    try:
        return page.resolve()
    except RuntimeError as error:  # links that lead in a circle, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


def _shown(path: Path) -> str:
    return printable(os.fspath(path))
