"""The next file: the first by name of those that are whole and were never taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowtide.errors import DataError, StorageError
from lowtide.pipeline.inbox.ledger import Entry, Ledger
from lowtide.pipeline.inbox.look import Found, Looked, Lookout, find_file
from lowtide.pipeline.inbox.prepare import PreparedInbox
from lowtide.pipeline.inbox.settings import SETTINGS_NAME
from lowtide.source.utf8 import is_encodable
from lowtide.storage.fingerprint import fingerprint_file

_MOST_LEFT_ALONE = 20
"""Names that are told; a folder with thousands of others must not fill the log."""


class Intake:
    """Looks into the folder, and writes into the ledger what is taken; `warn` is told what is unusual."""

    def __init__(
        self,
        inbox: PreparedInbox,
        ledger: Ledger,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._say = say
        self._warn = warn
        self._lookout = Lookout(
            inbox.folder,
            marker=inbox.settings.marker,
            takes_text=inbox.settings.examples == "none",
            is_known=self._is_known,
        )
        self._own = {SETTINGS_NAME, inbox.settings.template, inbox.settings.tokenizer}
        self._told: set[str] = set()
        """Names of which something was said already."""
        self._is_away = False
        self.looked = Looked()
        """What the last look came to."""

    def take(self, *, patient: bool) -> Entry | None:
        """The next file, if there is one. Who is patient waits for a folder that is away, told once."""
        try:
            self.looked = self._lookout.look()
        except StorageError as reason:
            if not patient:
                raise
            if not self._is_away:
                self._warn(f"{reason.problem}; it is waited for")
            self._is_away, self.looked = True, Looked()
            return None
        self._is_away = False
        self._tell_left_alone()
        for found in self.looked.complete:
            fingerprint = self._fingerprint(found)
            if fingerprint is None:
                continue
            known = (found.name, found.size_bytes, found.modified_ns, fingerprint)
            if self._ledger.knows_content(*known):
                continue
            if self._ledger.knows_name(found.name):
                self._warn(f"{found.name} has another content than before: it is a new file")
            return self._ledger.take(*known)
        return None

    def _is_known(self, found: Found) -> bool:
        return self._ledger.knows(found.name, found.size_bytes, found.modified_ns)

    def _tell_left_alone(self) -> None:
        new = self._lookout.left_alone.keys() - self._told - self._own
        for name in sorted(new)[: max(0, _MOST_LEFT_ALONE - len(self._told))]:
            tell = self._say if is_encodable(name) else self._warn
            tell(f"{name} is left alone: {self._lookout.left_alone[name]}")
        self._told |= new

    def _fingerprint(self, found: Found) -> str | None:
        """None for what may not be read: it is left where it is, which is told once."""
        try:
            return fingerprint_file(found.path)
        except DataError as reason:
            if found.name not in self._told:
                self._told.add(found.name)
                self._warn(f"{reason.problem}; it is left where it is")
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
