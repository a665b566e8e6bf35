"""What became of every file that was taken: a line of JSON for each turn, on the disk before anything follows.

    taken → ready → done      trained on, and a checkpoint holds it
    taken → failed            it cannot be read, and is not tried again under this name with this content
    taken → released          it was changed or removed while it was read: looked at again later
    rewound                   checkpoints were removed: what they held is trained on again
    held-out                  by which dataset the run is measured, from then on

A file is known by its name and its fingerprint. Another content under an old name is another file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import msgspec
import xxhash

from lowtide.errors import DataError, VerificationError
from lowtide.journal import append_whole, cut_torn_line, read_journal
from lowtide.shards.manifest import DatasetManifest
from lowtide.stages.run_source import LEDGER_NAME
from lowtide.storage.decode_json import FileName, convert_json
from lowtide.storage.publish import storage_errors, sync_file, sync_folder
from lowtide.units import format_count

FileStage: TypeAlias = Literal["taken", "ready", "done", "failed", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, and how far it has come."""

    number: int
    """In the order of taking, from 1."""
    name: FileName
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
    bad_rows: int = 0
    """Left out or mended, where the settings allow it."""
    too_long: int = 0
    """Examples of more tokens than a window has."""
    dropped: int = 0
    """Pieces of examples in which nothing was to be learnt."""
    reason: str = ""
    """Why it failed, or was released."""

    @property
    def last_step(self) -> int:
        """The step whose checkpoint holds all of the file."""
        return self.first_step + self.steps


_OF_READY = tuple(one.name for one in fields(Entry) if one.default == 0)
"""What is known once the file is tokenized."""


@dataclass(slots=True)
class _Told:
    """What the lines of a ledger come to."""

    entries: dict[int, Entry] = field(default_factory=dict)
    held_out_digest: str | None = None


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
        self.held_out_digest: str | None = None
        """The digest of what is held out, once something is."""
        self._last_number = 0
        if self._path.is_symlink():  # writing would truncate the file that the link leads to
            problem = f"{self._path} is a link"
            raise VerificationError(problem, remedy=remedy_for(run))
        with storage_errors(self._path):
            self._file: BinaryIO = self._path.open("a+b", buffering=0)
            cut_torn_line(self._file)
        try:
            sync_folder(run)
            told = _read_lines(run)
            self.held_out_digest = told.held_out_digest
            for entry in told.entries.values():
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
        counts = {name: getattr(entry, name) for name in _OF_READY}
        self._write("ready", number=entry.number, **counts)
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

    def release(self, entry: Entry, reason: str) -> None:
        """Nothing was kept of it; whatever bears its name later is looked at anew."""
        self._write("released", number=entry.number, reason=reason)
        self._leave(entry)
        self._seen.pop(entry.name, None)
        self._identities.discard(_identity(entry.name, entry.fingerprint))

    def keep_held_out(self, digest: str) -> None:
        """From now on, every evaluation is on the dataset with this digest."""
        self._write("held-out", digest=digest)
        self.held_out_digest = digest

    def rewind(self, run: Path, step: int) -> int:
        """How many files the newest checkpoint, of this step, does not hold although they were done.

        They are pending again, and so are those that wait behind them. VerificationError where the ledger knows
        of fewer steps than the checkpoint: going on would train on files again.
        """
        entries = list(read_entries(run))
        _refuse_lost_lines(run, entries, step)
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
    yield from _read_lines(run).entries.values()


def _read_lines(run: Path) -> _Told:
    path = run / LEDGER_NAME
    told = _Told()
    if not os.path.lexists(path):
        return told
    try:
        for number, record in enumerate(read_journal(path), start=1):
            try:
                _replay(told, record)
            except (KeyError, TypeError, msgspec.ValidationError) as cause:
                problem = f"line {number} of {path} does not hold what it should: {cause}"
                raise VerificationError(problem, remedy=remedy_for(run)) from cause
    except DataError as cause:
        raise VerificationError(cause.problem, remedy=remedy_for(run)) from cause
    return told


def remedy_for(run: Path, what: str = LEDGER_NAME) -> str:
    """What to do when a part of the run is lost that nothing can make again."""
    return (
        f"put {what} in {run} back from a copy; without one, begin a new run with another `--out` and "
        f"`--init {run}`: it goes on from these weights, and takes the files in the inbox as new ones"
    )


def _replay(told: _Told, record: dict[str, object]) -> None:
    entries, event = told.entries, record.pop("event")
    if event == "held-out":
        told.held_out_digest = convert_json(record["digest"], str)
        return
    if event == "rewound":
        step = convert_json(record["step"], int)
        for entry in _rewound(list(entries.values()), step):
            entries[entry.number] = entry
        return
    number = convert_json(record["number"], int)
    before = {} if event == "taken" else msgspec.to_builtins(entries[number])
    entry = convert_json({**before, **record, "stage": event}, Entry)
    entries[entry.number] = entry


def _refuse_lost_lines(run: Path, entries: list[Entry], step: int) -> None:
    last = max((one.last_step for one in entries if one.stage in ("ready", "done")), default=0)
    if step > last:
        raise VerificationError(
            f"the newest checkpoint is of step {step}, and {run / LEDGER_NAME} knows of files up to step "
            f"{last}: lines of it are lost",
            remedy=remedy_for(run),
        )


def _is_behind(entry: Entry, step: int) -> bool:
    return (
        entry.stage in ("ready", "done")
        and entry.steps > 0  # all of it is held out: there is nothing to train on again
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


def with_counts(entry: Entry, manifest: DatasetManifest) -> Entry:
    """The entry with what became of the file's rows."""
    train, examples = manifest.splits["train"], manifest.examples
    return replace(
        entry,
        examples=examples.examples if examples else manifest.documents,
        learnt_tokens=train.learnt.tokens if train.learnt else train.tokens,
        bad_rows=manifest.bad_rows,
        too_long=examples.too_long_count if examples else 0,
        dropped=examples.dropped_count if examples else 0,
    )


def describe_entry(entry: Entry) -> str:
    """One line about a file; what was lost of it only where something was."""
    lost = [
        f"{what}: {count:,}"
        for count, what in (
            (entry.bad_rows, "bad rows"),
            (entry.too_long, "examples that were too long"),
            (entry.dropped, "pieces with nothing to learn"),
        )
        if count
    ]
    found = (
        f"{entry.name}: {entry.examples:,} examples, {format_count(entry.learnt_tokens)} tokens to learn, "
        f"{entry.windows:,} windows, {entry.steps:,} steps"
    )
    return f"{found}; {', '.join(lost)}" if lost else found
