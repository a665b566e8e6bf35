"""The next file: the first by name of those that are whole and were never taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowtide.errors import DataError
from lowtide.pipeline.inbox.ledger import Entry, Ledger
from lowtide.pipeline.inbox.look import Found, Looked, Lookout, find_file
from lowtide.pipeline.inbox.prepare import PreparedInbox
from lowtide.storage.fingerprint import fingerprint_file


class Intake:
    """Looks into the folder, and writes into the ledger what is taken. `say` is told what is unusual."""

    def __init__(self, inbox: PreparedInbox, ledger: Ledger, say: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._say = say
        self._lookout = Lookout(
            inbox.folder,
            marker=inbox.settings.marker,
            takes_text=inbox.settings.examples == "none",
            is_known=self._is_known,
        )
        self._unreadable: set[str] = set()
        self.looked = Looked()
        """What the last look came to."""

    def take(self) -> Entry | None:
        """The next file, if there is one."""
        self.looked = self._lookout.look()
        for found in self.looked.complete:
            fingerprint = self._fingerprint(found)
            if fingerprint is None:
                continue
            known = (found.name, found.size_bytes, found.modified_ns, fingerprint)
            if self._ledger.knows_content(*known):
                continue
            if self._ledger.knows_name(found.name):
                self._say(f"{found.name} has another content than before: it is a new file")
            return self._ledger.take(*known)
        return None

    def _is_known(self, found: Found) -> bool:
        return self._ledger.knows(found.name, found.size_bytes, found.modified_ns)

    def _fingerprint(self, found: Found) -> str | None:
        """None for what may not be read: it is left where it is, which is told once."""
        try:
            return fingerprint_file(found.path)
        except DataError as reason:
            if found.name not in self._unreadable:
                self._unreadable.add(found.name)
                self._say(f"{reason.problem}; it is left where it is")
            return None


def is_as_taken(path: Path, entry: Entry) -> bool:
    """Whether the file is still the one that was taken."""
    found = find_file(path)
    if found is None or found.size_bytes != entry.size_bytes:
        return False
    if found.modified_ns != entry.modified_ns:
        return False
    try:
        return fingerprint_file(path) == entry.fingerprint
    except DataError:
        return False
