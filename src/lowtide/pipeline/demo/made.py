"""What a stage made, file by file: only what is still as the demo left it is the demo's to remove."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path


def list_made(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Every file below these paths of the folder, with its size. Links are nobody's."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for name in names
        for path in _files_below(folder / name)
    }


def is_as_left(folder: Path, made: Mapping[str, int]) -> bool:
    """Whether every file is there in its size."""
    return all(_size(folder / name) == size for name, size in made.items())


def remove_made(folder: Path, made: Mapping[str, int]) -> None:
    """The files that are as they were left, and folders that are empty then."""
    for name, size in made.items():
        if _size(folder / name) == size:
            (folder / name).unlink()
    inside = {parent for name in made for parent in Path(name).parents} - {Path()}
    for parent in sorted(inside, key=lambda path: -len(path.parts)):
        _remove_empty(folder / parent)


def _remove_empty(folder: Path) -> None:
    """The folder and those in it, as far as they hold no file."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        _remove_empty(path)
    with suppress(OSError):  # something is in it
        folder.rmdir()


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        return
    if path.is_file():
        yield path
    for parent, _, names in os.walk(path):
        for name in names:
            found = Path(parent, name)
            if not found.is_symlink():
                yield found


def _size(path: Path) -> int | None:
    try:
        return None if path.is_symlink() else path.stat().st_size
    except OSError:
        return None
