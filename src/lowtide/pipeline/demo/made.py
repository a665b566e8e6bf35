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
    return all(_size(folder, name) == size for name, size in made.items())


def remove_made(folder: Path, made: Mapping[str, int]) -> None:
    """The files that are as they were left, and folders that are empty then."""
    for name, size in made.items():
        if _size(folder, name) == size:
            (folder / name).unlink()
    tops = {Path(name).parts[0] for name in made if len(Path(name).parts) > 1}
    for top in tops - {"..", os.sep}:
        _remove_empty(folder / top)


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


def _size(folder: Path, name: str) -> int | None:
    """None for what is not there, or lies elsewhere: behind a link, or by its name."""
    path = folder / name
    try:
        lies_inside = path.resolve().relative_to(folder.resolve()) == Path(name)
        return path.stat().st_size if lies_inside else None
    except (OSError, ValueError):
        return None
