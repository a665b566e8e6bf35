"""What happened in a run, one JSON object a line, readable while the run lasts. The only reader of these files.

    {"event": "step", "at": 1784550000.25, "step": 12, "loss": 9.81, …}

RUN/log.jsonl of `tokenize`, `train-tokenizer`, `export` and `train`, and the timelines of `watch`. Every line
is handed to the system as soon as it is written: a killed run loses at most the line it was writing, and one
without `end` after its last `start` was killed, or still runs. `rewind` removes what happened after a
checkpoint, so that a resumed run has one record for each step.

`read_journal` yields every record, `read_session` what the last session left. Journals come from anywhere:
`whole`, `number` and `text` treat a field of another type than ours as missing.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal, Self, TypeAlias, get_args

from lowtide.errors import DataError, StorageError
from lowtide.events import (
    Advanced,
    Checkpointed,
    Evaluated,
    Event,
    Learnt,
    Note,
    Sampled,
    Saved,
    Stepped,
)
from lowtide.memory.reading import GpuReading, MemoryRead, ProcessUse, Reading
from lowtide.series import Series
from lowtide.storage.publish import partial_path, publish, storage_errors, sync_file

RecordName: TypeAlias = Literal[
    "start",
    "advanced",
    "learnt",
    "step",
    "evaluation",
    "sample",
    "note",
    "checkpoint",
    "memory",
    "reading",
    "alert",
    "forecast",
    "end",
]
Kind: TypeAlias = Literal["tokenize", "train-tokenizer", "export", "train", "watch"]
Outcome: TypeAlias = Literal["done", "stopped", "interrupted", "failed", "ended"]
Record: TypeAlias = Mapping[str, object]
LOG_NAME = "log.jsonl"
REPORT_NAME = "report.html"
"""The page that `report` makes of the log, in the same folder."""
_RECORD_NAMES: Mapping[type, RecordName] = {
    Advanced: "advanced",
    Checkpointed: "checkpoint",
    Learnt: "learnt",
    Stepped: "step",
    Evaluated: "evaluation",
    Sampled: "sample",
    Saved: "checkpoint",
    Note: "note",
    MemoryRead: "memory",
}
_PART_BYTES = 1 << 20
_GLANCE = re.compile(
    rb'\{"event": "(step|memory|evaluation)", "at": [0-9.]+, "step": (\d+), [^\\]*\}\n'
)
_MOST_PIDS = 4096
_MOST_ALERTS = 8
_FIRST_LINE_BYTES = 1 << 16
_MOST_SIZE, _MOST_VALUE = 1 << 60, 1e30
"""A larger number in a record was not written by us; sums of such would not be finite."""
_MOST_CHARACTERS, _MOST_OBJECTS = 20_000, 8
_OUR_NAMES = (
    "lowtide",
    "python",
    "python3",
    *(f"python3.{n}" for n in range(11, 16)),
    "pt_main_thread",
)
"""What the kernel may call a lowtide process."""


class Journal:
    """Appends records to a log. Holds one line.

    A line that a kill or a full disk has torn is cut off. With `on_failure`, a failing disk is reported once
    and nothing more is written: the work matters more than its log.
    """

    def __init__(
        self, path: Path, *, on_failure: Callable[[StorageError], None] | None = None
    ) -> None:
        self._path = path
        self._on_failure = on_failure
        self._file: BinaryIO | None = None
        with self._forgiving(), storage_errors(path):
            self._file = path.open("a+b", buffering=0)
            cut_torn_line(self._file)

    def write(self, event: RecordName, **fields: object) -> None:
        """One more line, with the time. Numbers that are not finite become `"nan"`, `"inf"` or `"-inf"`."""
        record = {"event": event, "at": round(time.time(), 3), **fields}
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        if self._file is not None and not self._file.closed:
            with self._forgiving(), storage_errors(self._path):
                append_whole(self._file, line.encode("ascii"))

    def write_event(self, event: Event, **fields: object) -> None:
        """Write an event as a record; `fields` stand in front, and `at` may be another time than now."""
        self.write(_RECORD_NAMES[type(event)], **{**fields, **asdict(event)})

    def close(self) -> None:
        """Sync the last line to the disk. May be called twice."""
        if self._file is None or self._file.closed:
            return
        with self._forgiving(), storage_errors(self._path):
            try:
                sync_file(self._file.fileno())
            finally:
                self._file.close()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if self._on_failure is None:
                raise
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
            report, self._on_failure = self._on_failure, lambda _error: None
            report(error)  # only the first failure is reported

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def append_whole(file: BinaryIO, line: bytes) -> None:
    """Append all of the line or nothing of it, as far as the disk allows."""
    length = os.fstat(file.fileno()).st_size
    rest = memoryview(line)
    try:
        while rest:  # a nearly full disk may take only a part
            rest = rest[file.write(rest) :]
    except OSError:
        with suppress(OSError):
            file.truncate(length)
        raise


def cut_torn_line(file: BinaryIO) -> None:
    """Remove an unfinished last line: the next record would be glued to it."""
    if not file.seekable():
        return
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _PART_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != file.seek(0, os.SEEK_END):
        file.truncate(end)


def read_journal(
    path: Path, *, on_bad: Callable[[int], None] | None = None
) -> Iterator[dict[str, object]]:
    """The records of a log in order. A last line that was cut short is left out. Holds one line.

    A line that is not a record is an error; with `on_bad` its number is passed on, and the line is left out.
    """
    with storage_errors(path, doing="read"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # torn: a kill, or a line that is being written now
            try:
                record = _parse(line, path, number)
            except DataError:
                if on_bad is None:
                    raise
                on_bad(number)
                continue
            yield record


def rewind(path: Path, step: int) -> int:
    """Remove the records of steps after `step`, and a last line that was cut short; how many were removed.

    A record without a step belongs to the last step before it. How sessions began and ended stays. The file is
    replaced whole or not at all, and not touched where there is nothing to remove. A missing log is empty.
    """
    if not path.exists():
        return 0
    dropped = sum(1 for kept, _ in _lines_to_keep(path, step) if not kept)
    if not dropped:
        return 0
    partial = partial_path(path)
    try:
        with storage_errors(path), partial.open("wb", buffering=_PART_BYTES) as file:
            for kept, line in _lines_to_keep(path, step):
                if kept:
                    file.write(line)
            file.flush()
            sync_file(file.fileno())
        publish(partial, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            partial.unlink(missing_ok=True)
        raise
    return dropped


def _lines_to_keep(path: Path, step: int) -> Iterator[tuple[bool, bytes]]:
    """Each line of the file, and whether it stays."""
    last_step = 0
    with storage_errors(path, doing="read"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                yield False, line
                return
            event, last_step = _event_and_step(line, path, number, last_step)
            yield last_step <= step or event in (b"start", b"end"), line


def _event_and_step(line: bytes, path: Path, number: int, last_step: int) -> tuple[bytes, int]:
    """Event and step of a line. Lines as `write` makes them are not parsed: a million take a minute less."""
    found = _GLANCE.match(line)
    if found is not None:
        return found[1], int(found[2])
    record = _parse(line, path, number)
    named = record.get("step")
    event = str(record.get("event")).encode()
    return event, named if isinstance(named, int) else last_step


def _parse(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise DataError(
            f"line {number} of {path} is not a JSON object",
            remedy=f"remove that line, or move {path} away: a run continues without its old log",
        )
    return record


def _plain(value: object) -> object:
    """The value as JSON can express it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Path):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """The part of a file that a job wrote: the file may have existed before, and may have grown since."""

    path: str
    began_bytes: int = 0
    ended_bytes: int | None = None
    """None: to the end of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAlert:
    """What `watch` did about the job, and why."""

    at: float | None
    stage: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEnd:
    """The last record of a run that ended in order, or of a `watch` that saw the end."""

    at: float | None
    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    problem: str | None = None
    remedy: str | None = None
    oom_kills: int | None = None
    forced: bool = False
    """`watch` sent SIGKILL."""


@dataclass(slots=True, kw_only=True)
class Session:
    """The last session of a journal: what its `start` says, and what the records after it add up to."""

    path: str
    kind: str
    pid: int | None = None
    """The job's process: under `watch` not the one that writes."""
    started_at: float | None = None
    last_at: float | None = None
    """When the newest record was written."""
    command: tuple[str, ...] = ()
    settings: str = ""
    """As JSON, to search for numbers in it."""
    budget_bytes: int | None = None
    limit_bytes: int | None = None
    how: str = ""
    logs: tuple[LogSpan, ...] = ()
    """Files that the job wrote its output to."""
    pids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    last: Reading | None = None
    alerts: tuple[RecordedAlert, ...] = ()
    """The newest ones."""
    end: RecordedEnd | None = None
    has_checkpoint: bool = False
    """Whether this session or an earlier one recorded a checkpoint."""
    torn: bool = False
    """The last line was cut short: the process died while writing, or is writing now."""
    damage: str = ""
    """Which lines could not be read."""
    _private: Series = field(default_factory=lambda: Series(64))

    @property
    def middle_bytes(self) -> int | None:
        """Private memory halfway through the session, which distinguishes growth from a large start."""
        if self.started_at is None or self.last_at is None:
            return None
        halfway = (self.started_at + self.last_at) / 2
        points = self._private.points()
        nearest = min(points, key=lambda one: abs(one.seconds - halfway), default=None)
        return None if nearest is None else round(nearest.mean)

    def add(self, record: Record) -> None:
        """Take in the next record."""
        self.last_at = number(record, "at") or self.last_at
        if whole(record, "private_bytes") is not None:
            self._add_memory(record)
        event = record.get("event")
        if event == "alert":
            alert = RecordedAlert(
                at=number(record, "at"), stage=text(record, "stage"), reason=text(record, "reason")
            )
            self.alerts = (*self.alerts, alert)[-_MOST_ALERTS:]
        elif event == "checkpoint":
            self.has_checkpoint = True
        elif event == "end":
            self.end = read_end(record)
            ends = {
                text(record, f"{name}_path"): whole(record, f"{name}_ended_bytes")
                for name in ("stdout", "stderr")
            }
            self.logs = tuple(replace(log, ended_bytes=ends.get(log.path)) for log in self.logs)

    def _add_memory(self, record: Record) -> None:
        reading = read_reading(record)
        if reading.available_bytes is None and self.last is not None:
            reading = replace(reading, available_bytes=self.last.available_bytes)
        self.last = reading
        if reading.at:
            self._private.add(reading.at, reading.private_bytes)
        if len(self.pids) < _MOST_PIDS:
            self.pids |= {one.pid for one in reading.top}
            self.names |= {one.name[:15] for one in reading.top if one.name}


def is_journal(path: Path) -> bool:
    """Whether the file begins with a record of ours; everything else is a text."""
    with path.open("rb") as file:
        line = file.readline(_FIRST_LINE_BYTES)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or record.get("event") != "start":
        return False  # other programs write lines with an `event` too
    return record.get("kind") in get_args(Kind) or isinstance(record.get("settings"), dict)


def read_session(path: Path) -> Session:
    """What the last session left. Damaged lines are left out and named. Holds one line and a few readings."""
    name, bad = os.fsdecode(path), list[int]()
    session = _begin_session(name, {})
    for record in read_journal(path, on_bad=bad.append):
        if record.get("event") == "start":
            had_checkpoint = session.has_checkpoint
            session = _begin_session(name, record)
            session.has_checkpoint = had_checkpoint or (whole(record, "step") or 0) > 0
        session.add(record)
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        session.damage = f"line {bad[0]}{more} of {name} could not be read"
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            session.torn = file.read(1) != b"\n"
    return session


def _begin_session(path: str, record: Record) -> Session:
    command = record.get("command")
    words = tuple(map(str, command)) if isinstance(command, list) else ()
    logs = [
        LogSpan(
            path=text(record, f"{name}_path"),
            began_bytes=whole(record, f"{name}_began_bytes") or 0,
        )
        for name in ("stdout", "stderr")
        if text(record, f"{name}_path")
    ]
    job_pid, own_pid = whole(record, "job_pid"), whole(record, "pid")
    return Session(
        path=path,
        kind=text(record, "kind"),
        pid=job_pid or own_pid,
        started_at=number(record, "at"),
        command=words,
        settings=json.dumps(record.get("settings") or {}),
        budget_bytes=whole(record, "budget_bytes"),
        limit_bytes=whole(record, "limit_bytes"),
        how=text(record, "how"),
        logs=tuple(dict.fromkeys(logs)),
        pids=frozenset(pid for pid in (job_pid or own_pid, own_pid) if pid is not None),
        names=frozenset({Path(words[0]).name[:15]} if words else _OUR_NAMES),
    )


def read_reading(record: Record) -> Reading:
    """The memory figures of a record of any kind; missing ones are zero or None."""
    sizes = {name: whole(record, f"{name}_bytes") or 0 for name in ("private", "mapped", "swapped")}
    return Reading(
        at=number(record, "at") or 0.0,
        private_bytes=sizes["private"],
        mapped_bytes=sizes["mapped"],
        swapped_bytes=sizes["swapped"],
        available_bytes=whole(record, "available_bytes"),
        stalled_percent=number(record, "stalled_percent"),
        cgroup_bytes=whole(record, "cgroup_bytes"),
        cgroup_limit_bytes=whole(record, "cgroup_limit_bytes"),
        gpus=tuple(
            GpuReading(
                index=whole(one, "index") or 0,
                name=text(one, "name"),
                used_bytes=whole(one, "used_bytes") or 0,
                total_bytes=whole(one, "total_bytes") or 0,
            )
            for one in objects(record, "gpus")
        ),
        top=tuple(
            ProcessUse(
                pid=whole(one, "pid") or 0,
                name=text(one, "name"),
                private_bytes=whole(one, "private_bytes") or 0,
            )
            for one in objects(record, "top")
        ),
    )


def read_end(record: Record) -> RecordedEnd:
    """How a run or a watched job came out, from its `end` record."""
    problem, remedy = record.get("problem"), record.get("remedy")
    return RecordedEnd(
        at=number(record, "at"),
        outcome=text(record, "outcome"),
        exit_code=whole(record, "exit_code"),
        signal=whole(record, "signal"),
        problem=problem if isinstance(problem, str) else None,
        remedy=remedy if isinstance(remedy, str) else None,
        oom_kills=whole(record, "oom_kills"),
        forced=record.get("forced") is True,
    )


def number(record: Record, name: str) -> float | None:
    """A finite number; None where it is missing or absurd."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MOST_VALUE else None  # false for NaN as well


def whole(record: Record, name: str) -> int | None:
    """A whole number that is not negative; None where it is missing or absurd."""
    value = number(record, name)
    return int(value) if value is not None and 0 <= value < _MOST_SIZE else None


def text(record: Record, name: str) -> str:
    """A string, cut if it is very long; empty where it is missing."""
    value = record.get(name)
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def objects(record: Record, name: str) -> list[Record]:
    """The first JSON objects of a list; empty where it is missing."""
    value = record.get(name)
    if not isinstance(value, list):
        return []
    return [one for one in value[:_MOST_OBJECTS] if isinstance(one, dict)]
