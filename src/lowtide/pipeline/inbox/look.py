"""Which files are whole? One look at the folder after another, and nothing is opened but to be fingerprinted.

With a marker: those beside which NAME.done stands. Without: those that were the same in two looks at least two
seconds apart, or whose last change lies ten seconds back; and that no process holds open for writing, where the
system tells. Hidden and half-written names (`.part`, `.tmp` and so on), folders, sockets and names that say no
format are left alone. A link to a file is the file, under the link's name.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import StorageError
from lowtide.guard.open_files import FileId, find_written
from lowtide.source.find_inputs import is_left_out, is_row_file, is_text_file
from lowtide.source.utf8 import is_encodable

LOOK_SECONDS = 2.0
"""Between two looks."""
_QUIET_SECONDS = 10.0
"""What was not changed for so long needs no second look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file as it was at one look."""

    path: Path
    size_bytes: int
    modified_ns: int
    changed_ns: int
    file_id: FileId

    @property
    def name(self) -> str:
        """By which it is known and ordered."""
        return self.path.name

    def is_still_so(self) -> bool:
        """Whether nobody has touched it since."""
        return find_file(self.path) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look came to."""

    complete: tuple[Found, ...] = ()
    """New and whole, by name."""
    settling: int = 0
    """Seen for the first time: the next look may find them whole."""
    unfinished: int = 0
    """Being written, or without their marker."""


class Lookout:
    """Remembers what is not yet whole. `is_known` tells files that were taken before."""

    def __init__(
        self,
        folder: Path,
        *,
        marker: str | None,
        takes_text: bool,
        is_known: Callable[[Found], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._marker = marker
        self._takes_text = takes_text
        self._is_known = is_known
        self._clock = clock
        self._first_seen: dict[Found, float] = {}
        self._restless: set[str] = set()
        """Names whose file changed between two looks."""
        self.left_alone: dict[str, str] = {}
        """What a person may have meant to be read, at the last look: name, and why it is not."""

    def look(self) -> Looked:
        """What is there now."""
        names = self._names()
        self.left_alone = {}
        new = [found for name in sorted(names) if (found := self._consider(name)) is not None]
        if self._marker is not None:
            whole = [found for found in new if f"{found.name}{self._marker}" in names]
        else:
            whole = self._at_rest(new)
        written = find_written({found.file_id for found in whole})
        complete = tuple(found for found in whole if found.file_id not in written)
        settling = 0
        if self._marker is None:
            settling = sum(one not in whole and one.name not in self._restless for one in new)
        return Looked(
            complete=complete,
            settling=settling,
            unfinished=len(new) - len(complete) - settling,
        )

    def _names(self) -> set[str]:
        try:
            return set(os.listdir(self._folder))  # noqa: PTH208 - names alone
        except OSError as cause:
            raise StorageError(
                f"the inbox {self._folder} cannot be looked into: {cause.strerror}",
                remedy="bring it back, or allow this user to read it, and run the same command again",
            ) from cause

    def _consider(self, name: str) -> Found | None:
        path = self._folder / name
        if is_left_out(path) or (self._marker is not None and name.endswith(self._marker)):
            return None
        if not is_encodable(name):
            self.left_alone[name] = "its name is not UTF-8"
            return None
        if not is_row_file(path) and not (self._takes_text and is_text_file(path)):
            self.left_alone[name] = "its name does not end like a format that is read"
            return None
        found = find_file(path)
        if found is None and os.path.lexists(path):
            self.left_alone[name] = "it is not a file"
        return None if found is None or self._is_known(found) else found

    def _at_rest(self, new: list[Found]) -> list[Found]:
        now = self._clock()
        earlier = {found.name: found for found in self._first_seen}
        self._restless &= {found.name for found in new}
        self._restless |= {one.name for one in new if earlier.get(one.name, one) != one}
        self._first_seen = {found: self._first_seen.get(found, now) for found in new}
        return [
            found
            for found in new
            if now - self._first_seen[found] >= LOOK_SECONDS or _is_quiet(found)
        ]


def find_file(path: Path) -> Found | None:
    """The file behind a name; None for what is not a file, is gone, or cannot be looked at."""
    try:
        seen = path.stat()
    except OSError:  # a link that leads nowhere, a file that was renamed meanwhile
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    return Found(
        path=path,
        size_bytes=seen.st_size,
        modified_ns=seen.st_mtime_ns,
        changed_ns=seen.st_ctime_ns,
        file_id=(seen.st_dev, seen.st_ino),
    )


def _is_quiet(found: Found) -> bool:
    """By the clock of the machine: a file from the future, or of a drive with another clock, waits its turn."""
    return time.time() - found.changed_ns / 1e9 >= _QUIET_SECONDS
