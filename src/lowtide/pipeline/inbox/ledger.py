"""What became of every file that was taken: a line of JSON for each turn, on the disk before anything follows.

    taken → ready → done      trained on, and a checkpoint holds it
    taken → failed            it cannot be read, and is not tried again
    taken → released          it was changed or removed while it was read: looked at again later
    rewound                   checkpoints were removed: what they held is trained on again

A file is known by its name and its fingerprint. Another content under an old name is another file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import msgspec
import xxhash

from lowtide.errors import VerificationError
from lowtide.journal import append_whole, cut_torn_line, read_journal
from lowtide.pipeline.run_source import LEDGER_NAME
from lowtide.storage.publish import storage_errors, sync_file, sync_folder

FileStage: TypeAlias = Literal["taken", "ready", "done", "failed", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, and how far it has come."""

    number: int
    """In the order of taking, from 1."""
    name: str
    size_bytes: int
    modified_ns: int
    fingerprint: str
    stage: FileStage = "taken"
    first_step: int = 0
    """Steps of the run before the first one on this file."""
    steps: int = 0
    windows: int = 0
    examples: int = 0
    """Of the whole file, held-out ones included."""
    learnt_tokens: int = 0
    """Of those that are trained on, in one epoch."""
    reason: str = ""
    """Why it failed, or was released."""

    @property
    def last_step(self) -> int:
        """The step whose checkpoint holds all of the file."""
        return self.first_step + self.steps


class Ledger:
    """The file `RUN/inbox.jsonl`, for the process that holds the run's lock. Keeps a few words of each file."""

    def __init__(self, run: Path) -> None:
        self._path = run / LEDGER_NAME
        self._seen: dict[str, tuple[int, int]] = {}
        """Size and time of change of the last file of each name."""
        self._identities: set[int] = set()
        self.pending: list[Entry] = []
        """Taken, and neither done nor failed; in their order."""
        self.done_count = 0
        self.failed_count = 0
        self._last_number = 0
        with storage_errors(self._path):
            self._file: BinaryIO = self._path.open("a+b", buffering=0)
            cut_torn_line(self._file)
        try:
            sync_folder(run)
            for entry in read_entries(run):
                self._count(entry)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Every line is on the disk already."""
        self._file.close()

    def knows(self, name: str, size_bytes: int, modified_ns: int) -> bool:
        """Whether the last file of that name was of this size and time: a look at the folder is enough."""
        return self._seen.get(name) == (size_bytes, modified_ns)

    def knows_content(self, name: str, size_bytes: int, modified_ns: int, fingerprint: str) -> bool:
        """Whether that very file was taken before, if only touched since; remembered for the next look."""
        known = _identity(name, fingerprint) in self._identities
        if known:
            self._seen[name] = size_bytes, modified_ns
        return known

    def knows_name(self, name: str) -> bool:
        """Whether a file of that name was taken before."""
        return name in self._seen

    def take(self, name: str, size_bytes: int, modified_ns: int, fingerprint: str) -> Entry:
        """The next file in the order of the run."""
        entry = Entry(
            number=self._last_number + 1,
            name=name,
            size_bytes=size_bytes,
            modified_ns=modified_ns,
            fingerprint=fingerprint,
        )
        self._write(
            "taken",
            number=entry.number,
            name=name,
            size_bytes=size_bytes,
            modified_ns=modified_ns,
            fingerprint=fingerprint,
        )
        self._count(entry)
        return entry

    def ready(self, entry: Entry) -> Entry:
        """It is tokenized, and its steps are counted."""
        entry = replace(entry, stage="ready")
        self._write(
            "ready",
            number=entry.number,
            first_step=entry.first_step,
            steps=entry.steps,
            windows=entry.windows,
            examples=entry.examples,
            learnt_tokens=entry.learnt_tokens,
        )
        self.pending = [entry if one.number == entry.number else one for one in self.pending]
        return entry

    def finish(self, entry: Entry) -> None:
        """A checkpoint holds it."""
        self._write("done", number=entry.number)
        self._leave(entry)
        self.done_count += 1

    def fail(self, entry: Entry, reason: str) -> None:
        """It cannot be learnt from."""
        self._write("failed", number=entry.number, reason=reason)
        self._leave(entry)
        self.failed_count += 1

    def release(self, entry: Entry, reason: str) -> None:
        """Nothing was kept of it; whatever bears its name later is looked at anew."""
        self._write("released", number=entry.number, reason=reason)
        self._leave(entry)
        self._seen.pop(entry.name, None)
        self._identities.discard(_identity(entry.name, entry.fingerprint))

    def rewind(self, run: Path, step: int) -> int:
        """How many files the newest checkpoint, of this step, does not hold although they were done.

        They are pending again, and so are those that wait behind them.
        """
        entries = list(read_entries(run))
        behind = [one for one in entries if _is_behind(one, step)]
        if not behind:
            return 0
        self._write("rewound", step=step)
        undone = sum(one.stage == "done" for one in behind)
        self.done_count -= undone
        self.pending = [one for one in _rewound(entries, step) if one.stage in ("taken", "ready")]
        return undone

    def _count(self, entry: Entry) -> None:
        self._last_number = max(self._last_number, entry.number)
        if entry.stage == "released":
            return
        self._seen[entry.name] = entry.size_bytes, entry.modified_ns
        self._identities.add(_identity(entry.name, entry.fingerprint))
        self.done_count += entry.stage == "done"
        self.failed_count += entry.stage == "failed"
        if entry.stage in ("taken", "ready"):
            self.pending.append(entry)

    def _leave(self, entry: Entry) -> None:
        self.pending = [one for one in self.pending if one.number != entry.number]

    def _write(self, event: str, **fields: str | int) -> None:
        line = json.dumps({"event": event, **fields}) + "\n"
        with storage_errors(self._path):
            append_whole(self._file, line.encode("ascii"))
            sync_file(self._file.fileno())  # no step may follow from a line that a power cut takes


def read_entries(run: Path) -> Iterator[Entry]:
    """Every file that a run has taken, in order. Holds them all: a few hundred bytes each."""
    path = run / LEDGER_NAME
    entries: dict[int, Entry] = {}
    for record in read_journal(path) if path.exists() else ():
        try:
            _replay(entries, record)
        except (KeyError, msgspec.ValidationError) as cause:
            raise VerificationError(
                f"{path} does not hold what it should: {cause}",
                remedy=f"put {path.name} back from a copy, or pass `--restart` to begin again",
            ) from cause
    yield from entries.values()


def _replay(entries: dict[int, Entry], record: dict[str, object]) -> None:
    event = record.pop("event")
    if event == "rewound":
        step = record["step"]
        assert isinstance(step, int), "as it was written"
        for entry in _rewound(list(entries.values()), step):
            entries[entry.number] = entry
        return
    number = record["number"]
    before = {} if event == "taken" else msgspec.to_builtins(entries[number])  # type: ignore[index]
    entry = msgspec.convert({**before, **record, "stage": event}, Entry)
    entries[entry.number] = entry


def _is_behind(entry: Entry, step: int) -> bool:
    return (
        entry.stage in ("ready", "done")
        and entry.last_step > step
        and (entry.stage == "done" or entry.first_step > step)
    )


def _rewound(entries: list[Entry], step: int) -> list[Entry]:
    """Where the checkpoint stands inside a file, its steps are known; those of later ones are not."""
    return [
        replace(one, stage="ready" if one.first_step <= step else "taken")
        if _is_behind(one, step)
        else one
        for one in entries
    ]


def _identity(name: str, fingerprint: str) -> int:
    return xxhash.xxh3_128_intdigest(f"{fingerprint} {name}".encode(errors="surrogateescape"))


def is_inbox_run(run: Path) -> bool:
    """Whether files were taken there."""
    return os.path.lexists(run / LEDGER_NAME)


def count_stages(entries: Sequence[Entry]) -> dict[str, int]:
    """How many files have come how far."""
    stages: Iterator[str] = (entry.stage for entry in entries)
    return dict(sorted(Counter(stages).items()))
