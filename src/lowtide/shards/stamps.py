"""Whether a file is still the one that was opened: its identity, size and time of change, in a microsecond.

A file that is rewritten in place with its time set back goes unnoticed. The time of its status would
tell, but a hard link changes that too: a backup must not end training after weeks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np

from lowtide.errors import UsageError, VerificationError
from lowtide.native import load_native
from lowtide.shards.layout import EndArray
from lowtide.shards.payload import reading

Stamp: TypeAlias = tuple[int, int, int, int]

_FEW = 4
"""Up to this many files, `os.stat` from Python is as fast as one native call."""


class StampedFiles:
    """Files with the stamps they had when this object was made."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._stamps: list[Stamp] = []
        for path in paths:
            with reading(path):
                self._stamps.append(stamp_of(os.stat(path)))  # noqa: PTH116 - there may be thousands

    def size_bytes(self, number: int) -> int:
        """Size of a file when it was stamped."""
        return self._stamps[number][2]

    def times(self) -> list[tuple[int, int]]:
        """Size and time of change of each file: what stays the same on another machine."""
        return [(size_bytes, changed_at) for _, _, size_bytes, changed_at in self._stamps]

    def check(self, numbers: Sequence[int]) -> None:
        """Raise VerificationError if one of these files has changed."""
        many = self._many if len(numbers) > _FEW else None
        found = many.first_changed(numbers) if many else self.first_changed(numbers)
        if found < len(numbers):
            raise changed(self._paths[numbers[found]])

    def first_changed(self, numbers: Sequence[int]) -> int:
        """Place among `numbers` of the first changed file, or their count if none has changed."""
        for at, number in enumerate(numbers):
            try:
                found = os.stat(self._paths[number])  # noqa: PTH116 - in the hot path
            except OSError:
                return at
            if stamp_of(found) != self._stamps[number]:
                return at
        return len(numbers)

    @cached_property
    def _many(self) -> NativeStamps | None:
        if os.name != "posix":
            return None
        try:
            return NativeStamps(self._paths, self._stamps)
        except UsageError:  # no compiled part
            return None

    def check_opened(self, number: int, descriptor: int) -> None:
        """Raise VerificationError if a file just opened is not the one that was stamped."""
        if stamp_of(os.fstat(descriptor)) != self._stamps[number]:
            raise changed(self._paths[number])


class NativeStamps:
    """The stamps in the compiled part: a third of the time, where a batch comes from many files."""

    def __init__(self, paths: Sequence[str], stamps: Sequence[Stamp]) -> None:
        self._native = load_native()
        encoded = [os.fsencode(path) + b"\0" for path in paths]
        ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
        self._text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        self._places: EndArray = starts + self._text.ctypes.data
        # Before 1970 time is negative: all 64 bits as they are.
        numbers = [[number % (1 << 64) for number in stamp] for stamp in stamps]
        self._stamps = np.array(numbers, dtype=np.uint64)

    def first_changed(self, numbers: Sequence[int]) -> int:
        """Place among `numbers` of the first changed file; equals `StampedFiles.first_changed`."""
        chosen = np.array(numbers, dtype=np.int64)
        addresses = (chosen.ctypes.data, self._places.ctypes.data, self._stamps.ctypes.data)
        return int(self._native.lt_first_changed(len(chosen), *addresses))


def stamp_of(found: os.stat_result) -> Stamp:
    """What changes when a file is replaced, cut or written to."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: str | Path) -> VerificationError:
    """The error for a file that has changed."""
    return VerificationError(
        f"{path} was replaced, cut, rewritten or touched while it was open",
        remedy="let nothing write to a dataset that is being read; then open it again",
    )
