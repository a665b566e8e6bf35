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
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self, TypeAlias

from lowtide.errors import DataError
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
RECORD_NAMES: Mapping[type, RecordName] = {
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


class Journal:
    """Appends records to a log. Holds one line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with storage_errors(path):
            self._file: BinaryIO = path.open("ab", buffering=0)

    def write(self, event: RecordName, **fields: object) -> None:
        """One more line, with the time. Numbers that are not finite become `"nan"`, `"inf"` or `"-inf"`."""
        record = {"event": event, "at": round(time.time(), 3), **fields}
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        rest = memoryview(line.encode("ascii"))
        with storage_errors(self._path):
            while rest:  # a nearly full disk may take only a part
                rest = rest[self._file.write(rest) :]

    def write_event(self, event: Event, **fields: object) -> None:
        """What a stage said, as a record; `fields` stand in front."""
        self.write(RECORD_NAMES[type(event)], **{**fields, **asdict(event)})

    def close(self) -> None:
        """The last line is on the disk afterwards. May be called twice."""
        if self._file.closed:
            return
        with storage_errors(self._path):
            try:
                sync_file(self._file.fileno())
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_journal(path: Path) -> Iterator[dict[str, object]]:
    """The records of a log in order. A last line that was cut short is left out. Holds one line."""
    with storage_errors(path, doing="read"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # torn: a kill, or a line that is being written now
            yield _parse(line, path, number)


def rewind(path: Path, step: int) -> int:
    """How many records were taken back: those of steps after `step`, and a last line that was cut short.

    A record without a step belongs to the last step told before it. The file is replaced whole or not at
    all, and not touched where there is nothing to take back. A log that is not there is empty.
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
            named = _parse(line, path, number).get("step")
            if isinstance(named, int):
                told_step = named
            yield told_step <= step, line


def _parse(line: bytes, path: Path, number: int) -> dict[str, object]:
    try:
        record = json.loads(line)
    except ValueError:
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
