"""The next file: the first by name of those that are whole and were never taken.

Files are opened only for their fingerprint.

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
from typing import Literal

from lowtide.errors import DataError, StorageError
from lowtide.guard.open_files import FileId, find_written
from lowtide.settings import SETTINGS_NAME
from lowtide.source.find_inputs import is_left_out, is_row_file, is_text_file
from lowtide.source.utf8 import is_encodable
from lowtide.stages.inbox.ledger import Entry, Ledger
from lowtide.stages.inbox.prepare import Inbox
from lowtide.storage.fingerprint import fingerprint_file

LOOK_SECONDS = 2.0
"""Between two looks."""
_QUIET_SECONDS = 10.0
"""What was not changed for so long needs no second look."""
_MOST_LEFT_ALONE = 20
"""Names that are told; a folder with thousands of others must not fill the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
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
class ScanResult:
    """What a look came to."""

    complete: tuple[FoundFile, ...] = ()
    """New and whole, by name."""
    settling: int = 0
    """Seen for the first time: the next look may find them whole."""
    unfinished: int = 0
    """Being written, or without their marker."""


class FolderScan:
    """Remembers what is not yet whole. `is_known` tells files that were taken before."""

    def __init__(
        self,
        folder: Path,
        *,
        marker: str | None,
        takes_text: bool,
        is_known: Callable[[FoundFile], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._marker = marker
        self._takes_text = takes_text
        self._is_known = is_known
        self._clock = clock
        self._first_seen: dict[FoundFile, float] = {}
        self._restless: set[str] = set()
        """Names whose file changed between two looks."""
        self.left_alone: dict[str, str] = {}
        """What a person may have meant to be read, at the last look: name, and why it is not."""

    def look(self) -> ScanResult:
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
        return ScanResult(
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

    def _consider(self, name: str) -> FoundFile | None:
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

    def _at_rest(self, new: list[FoundFile]) -> list[FoundFile]:
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


def find_file(path: Path) -> FoundFile | None:
    """The file behind a name; None for what is not a file, is gone, or cannot be looked at."""
    try:
        seen = path.stat()
    except OSError:  # a link that leads nowhere, a file that was renamed meanwhile
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    return FoundFile(
        path=path,
        size_bytes=seen.st_size,
        modified_ns=seen.st_mtime_ns,
        changed_ns=seen.st_ctime_ns,
        file_id=(seen.st_dev, seen.st_ino),
    )


def _is_quiet(found: FoundFile) -> bool:
    """By the clock of the machine: a file from the future, or of a drive with another clock, waits its turn."""
    return time.time() - found.changed_ns / 1e9 >= _QUIET_SECONDS


class Intake:
    """Looks into the folder, and writes into the ledger what is taken."""

    def __init__(
        self,
        inbox: Inbox,
        ledger: Ledger,
        tell: Callable[[str, Literal["info", "warning"]], None],
    ) -> None:
        self._ledger = ledger
        self._tell = tell
        self._scan = FolderScan(
            inbox.folder,
            marker=inbox.marker,
            takes_text=inbox.tokenize.examples is None,
            is_known=self._is_known,
        )
        named = (inbox.tokenize.template, inbox.tokenize.tokenizer)
        self._own = {SETTINGS_NAME, *(Path(name).name for name in named if name)}
        self._told: set[str] = set()
        """Names of which something was said already."""
        self._is_away = False
        self.seen = ScanResult()
        """What the last look came to."""

    def take(self, *, patient: bool) -> Entry | None:
        """The next file, if there is one. Who is patient waits for a folder that is away, told once."""
        try:
            self.seen = self._scan.look()
        except StorageError as reason:
            if not patient:
                raise
            if not self._is_away:
                self._tell(f"{reason.problem}; it is waited for", "warning")
            self._is_away, self.seen = True, ScanResult()
            return None
        self._is_away = False
        self._tell_left_alone()
        for found in self.seen.complete:
            fingerprint = self._fingerprint(found)
            if fingerprint is None:
                continue
            known = (found.name, found.size_bytes, found.modified_ns, fingerprint)
            if self._ledger.knows_content(*known):
                continue
            if self._ledger.knows_name(found.name):
                text = f"{found.name} has another content than before: it is a new file"
                self._tell(text, "warning")
            return self._ledger.take(*known)
        return None

    def _is_known(self, found: FoundFile) -> bool:
        return self._ledger.knows(found.name, found.size_bytes, found.modified_ns)

    def _tell_left_alone(self) -> None:
        new = self._scan.left_alone.keys() - self._told - self._own
        for name in sorted(new)[: max(0, _MOST_LEFT_ALONE - len(self._told))]:
            level: Literal["info", "warning"] = "info" if is_encodable(name) else "warning"
            self._tell(f"{name} is left alone: {self._scan.left_alone[name]}", level)
        self._told |= new

    def _fingerprint(self, found: FoundFile) -> str | None:
        """None for what may not be read: it is left where it is, which is told once."""
        try:
            return fingerprint_file(found.path)
        except DataError as reason:
            if found.name not in self._told:
                self._told.add(found.name)
                self._tell(f"{reason.problem}; it is left where it is", "warning")
            return None


def is_as_taken(path: Path, entry: Entry) -> bool:
    """Whether the file is still the one that was taken. Once its windows are counted, it may come from a copy,
    with another time: whoever goes on compares the count."""
    found = find_file(path)
    if found is None or found.size_bytes != entry.size_bytes:
        return False
    if entry.stage == "taken" and found.modified_ns != entry.modified_ns:
        return False
    try:
        return fingerprint_file(path) == entry.fingerprint
    except DataError:
        return False
