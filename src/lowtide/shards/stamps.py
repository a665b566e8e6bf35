"""Is a file still the one that was opened? By identity, size and time of change: one look, two microseconds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from lowtide.errors import VerificationError
from lowtide.shards.payload import reading

Stamp: TypeAlias = tuple[int, int, int, int]


class StampedFiles:
    """Files with the stamps they had when this was made."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._stamps = []
        for path in paths:
            with reading(path):
                self._stamps.append(stamp_of(os.stat(path)))  # noqa: PTH116 - there may be thousands

    def size_bytes(self, number: int) -> int:
        """As it was then."""
        return self._stamps[number][2]

    def check(self, numbers: Iterable[int]) -> None:
        """VerificationError if one of these files is no longer the same."""
        for number in numbers:
            try:
                found = os.stat(self._paths[number])  # noqa: PTH116 - in the hot path
            except OSError:
                raise changed(self._paths[number]) from None
            if stamp_of(found) != self._stamps[number]:
                raise changed(self._paths[number])

    def check_opened(self, number: int, descriptor: int) -> None:
        """The same for a file that has just been opened: what is read from it is what was stamped."""
        if stamp_of(os.fstat(descriptor)) != self._stamps[number]:
            raise changed(self._paths[number])


def stamp_of(found: os.stat_result) -> Stamp:
    """What changes when a file is replaced, cut or written to."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: str | Path) -> VerificationError:
    """The error for a file that is not what it was."""
    return VerificationError(
        f"{path} was replaced, cut or rewritten while it was open",
        remedy="let nothing write to a dataset that is being read; then open it again",
    )
