"""What happened in a run, one JSON object a line, readable while it goes on.

    {"event": "step", "at": 1784550000.25, "step": 12, "loss": 9.81, …}

RUN/log.jsonl of `tokenize`, `train-tokenizer` and `train`, and the timelines of `watch`. Every line is handed
to the system as soon as it is written: a killed run loses at most the line it was writing, and one without
`end` after its last `start` was killed, or still runs. `rewind` takes back what happened after a checkpoint, so
that a resumed run tells its steps once.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self, TypeAlias

from lowtide.errors import DataError, StorageError
from lowtide.events import (
    Advanced,
    Checkpointed,
    Evaluated,
    Event,
    Learnt,
    MemoryRead,
    Note,
    Sampled,
    Saved,
    Stepped,
)
from lowtide.storage.publish import publish, storage_errors, sync_file

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
Kind: TypeAlias = Literal["tokenize", "train-tokenizer", "train", "watch"]
Outcome: TypeAlias = Literal["done", "stopped", "interrupted", "failed", "ended"]
LOG_NAME = "log.jsonl"
REPORT_NAME = "report.html"
"""What `report` makes of the log, beside it."""
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


class Journal:
    """Appends records to a log. Holds one line.

    A line that a kill or a full disk has torn is cut off. With `on_failure`, a disk that says no is told once,
    and the journal falls silent: what it tells of is worth more than the telling.
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
        """What a stage said, as a record; `fields` stand in front, and `at` may be another time than now."""
        self.write(_RECORD_NAMES[type(event)], **{**fields, **asdict(event)})

    def close(self) -> None:
        """The last line is on the disk afterwards. May be called twice."""
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
            tell, self._on_failure = self._on_failure, _say_nothing
            tell(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def append_whole(file: BinaryIO, line: bytes) -> None:
    """All of the line or nothing of it, as far as the disk lets us."""
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
    """What a kill left of its last line would be glued to the next one."""
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


def _say_nothing(_error: StorageError) -> None:
    """It has been said."""


def read_journal(
    path: Path, *, on_bad: Callable[[int], None] | None = None
) -> Iterator[dict[str, object]]:
    """The records of a log in order. A last line that was cut short is left out. Holds one line.

    A line that is not a record is an error; with `on_bad` it is told by its number, and left out.
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
    """How many records were taken back: those of steps after `step`, and a last line that was cut short.

    A record without a step belongs to the last step told before it. How sessions began and ended stays. The
    file is replaced whole or not at all, and not touched where there is nothing to take back. A log that is not
    there is empty.
    """
    if not path.exists():
        return 0
    dropped = sum(1 for kept, _ in _judge(path, step) if not kept)
    if not dropped:
        return 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with storage_errors(path), partial.open("wb", buffering=_PART_BYTES) as file:
            for kept, line in _judge(path, step):
                if kept:
                    file.write(line)
            file.flush()
            sync_file(file.fileno())
        publish(partial, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            partial.unlink(missing_ok=True)
        raise
    return dropped


def _judge(path: Path, step: int) -> Iterator[tuple[bool, bytes]]:
    """Each line of the file, and whether it stays."""
    told_step = 0
    with storage_errors(path, doing="read"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                yield False, line
                return
            event, told_step = _glance(line, path, number, told_step)
            yield told_step <= step or event in (b"start", b"end"), line


def _glance(line: bytes, path: Path, number: int, told_step: int) -> tuple[bytes, int]:
    """Event and step of a line: as `write` has it, without parsing: a million lines take a minute less."""
    found = _GLANCE.match(line)
    if found is not None:
        return found[1], int(found[2])
    record = _parse(line, path, number)
    named = record.get("step")
    event = str(record.get("event")).encode()
    return event, named if isinstance(named, int) else told_step


def _parse(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise DataError(
            f"line {number} of {path} is not a JSON object",
            remedy=f"remove that line, or move {path} away: a run goes on without its old log",
        )
    return record


def _plain(value: object) -> object:
    """The same value in what JSON can say."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Path):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value
