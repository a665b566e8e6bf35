"""The last session of a journal, folded into one value while it is read. Holds one line and a few readings.

Journals come from anywhere: a field of another kind than ours is as good as missing.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from lowtide.guard.why.evidence import EndRecord, LastReading, LogSpan, Session, ToldAlert
from lowtide.journal import Kind, read_journal

_MOST_PIDS = 4096
_OUR_NAMES = (
    "lowtide",
    "python",
    "python3",
    *(f"python3.{n}" for n in range(11, 16)),
    "pt_main_thread",
)
"""What the kernel may call a run of ours."""
_MOST_ALERTS = 8
_MOST_READINGS = 128
_FIRST_BYTES = 1 << 16
_MOST = 1 << 62
"""Of a size: what is larger was not written by us."""

Record = Mapping[str, object]


def is_journal(path: Path) -> bool:
    """Whether the file begins with a record of ours; everything else is a text."""
    with path.open("rb") as file:
        line = file.readline(_FIRST_BYTES)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or record.get("event") != "start":
        return False  # other programs write lines with an `event` too
    return record.get("kind") in get_args(Kind) or isinstance(record.get("settings"), dict)


def read_session(path: Path) -> Session:
    """What the last session left. Damaged lines are left out, and told."""
    fold = _Fold(os.fsdecode(path))
    bad: list[int] = []
    for record in read_journal(path, on_bad=bad.append):
        fold.take(record)
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        fold.damage = f"line {bad[0]}{more} of {os.fsdecode(path)} could not be read"
    return fold.session(torn=_is_torn(path))


class _Fold:
    """Takes records in order; begins anew at each `start`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.damage = ""
        self._begin({})

    def _begin(self, record: Record) -> None:
        command = record.get("command")
        words = tuple(map(str, command)) if isinstance(command, list) else ()
        logs = [_log_of(record, name) for name in ("stdout", "stderr")]
        self._session = Session(
            path=self._path,
            kind=_text(record, "kind"),
            pid=whole(record, "job_pid") or whole(record, "pid"),
            started_at=number(record, "at"),
            command=words,
            settings=json.dumps(record.get("settings") or {}),
            budget_bytes=whole(record, "budget_bytes"),
            limit_bytes=whole(record, "limit_bytes"),
            floor_bytes=whole(record, "floor_bytes"),
            how=_text(record, "how"),
            logs=tuple(dict.fromkeys(log for log in logs if log is not None)),
        )
        self._pids = {self._session.pid, whole(record, "pid")} - {None}
        self._names = {Path(words[0]).name[:15]} if words else set(_OUR_NAMES)
        self._alerts: deque[ToldAlert] = deque(maxlen=_MOST_ALERTS)
        self._some: list[LastReading] = []
        self._count, self._stride = 0, 1
        self._last: LastReading | None = None
        self._peak: int | None = None
        self._step: int | None = None
        self._end: EndRecord | None = None
        self._ended: dict[str, int | None] = {}
        self._last_at: float | None = None

    def take(self, record: Record) -> None:
        event = record.get("event")
        if event == "start":
            self._begin(record)
        self._last_at = number(record, "at") or self._last_at
        self._step = whole(record, "step") if whole(record, "step") is not None else self._step
        if whole(record, "private_bytes") is not None:
            self._take_reading(record)
        if event == "alert":
            at, stage = number(record, "at"), _text(record, "stage")
            self._alerts.append(ToldAlert(at=at, stage=stage, reason=_text(record, "reason")))
        elif event == "end":
            self._end = _end_of(record)
            ends = {_text(record, f"{name}_path"): name for name in ("stdout", "stderr")}
            self._ended = {
                path: whole(record, f"{name}_ended_bytes") for path, name in ends.items()
            }

    def _take_reading(self, record: Record) -> None:
        reading = _reading_of(record)
        if reading.available_bytes is None and self._last is not None:
            reading = replace(reading, available_bytes=self._last.available_bytes)
        self._last = reading
        self._keep_some(reading)
        self._peak = max(self._peak or 0, reading.private_bytes or 0)
        top = record.get("top")
        for process in top if isinstance(top, list) else []:
            if isinstance(process, dict) and len(self._pids) < _MOST_PIDS:
                self._pids |= {whole(process, "pid")} - {None}
                self._names |= {_text(process, "name")[:15]} - {""}

    def _keep_some(self, reading: LastReading) -> None:
        """About evenly spread over the session, however long it is."""
        self._count += 1
        if self._count % self._stride == 0:
            self._some.append(reading)
        if len(self._some) > _MOST_READINGS:
            self._some, self._stride = self._some[::2], 2 * self._stride

    def _middle(self) -> LastReading | None:
        begin, end = self._session.started_at, self._last_at
        if begin is None or end is None:
            return None
        timed = [one for one in self._some if one.at is not None]
        return min(timed, key=lambda one: abs((one.at or 0) - (begin + end) / 2), default=None)

    def session(self, *, torn: bool) -> Session:
        end_peak = self._end.peak_private_bytes if self._end else None
        return replace(
            self._session,
            last_at=self._last_at,
            pids=frozenset(pid for pid in self._pids if pid is not None),
            names=frozenset(self._names),
            middle=self._middle(),
            last=self._last,
            peak_private_bytes=max(filter(None, (self._peak, end_peak)), default=None),
            step=self._step,
            alerts=tuple(self._alerts),
            end=self._end,
            logs=tuple(
                replace(log, ended_bytes=self._ended.get(log.path)) for log in self._session.logs
            ),
            torn=torn,
            damage=self.damage,
        )


def whole(record: Record, name: str) -> int | None:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < _MOST else None


def number(record: Record, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e15 else None


def _log_of(record: Record, name: str) -> LogSpan | None:
    path = _text(record, f"{name}_path")
    return (
        LogSpan(path=path, began_bytes=whole(record, f"{name}_began_bytes") or 0) if path else None
    )


def _text(record: Record, name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


def _reading_of(record: Record) -> LastReading:
    gpus = record.get("gpus")
    cards = [one for one in gpus if isinstance(one, dict)] if isinstance(gpus, list) else []
    fullest = max(cards, key=lambda one: whole(one, "used_bytes") or 0, default={})
    return LastReading(
        at=number(record, "at"),
        private_bytes=whole(record, "private_bytes"),
        swapped_bytes=whole(record, "swapped_bytes"),
        available_bytes=whole(record, "available_bytes"),
        stalled_percent=number(record, "stalled_percent"),
        cgroup_limit_bytes=whole(record, "cgroup_limit_bytes"),
        gpu_used_bytes=whole(fullest, "used_bytes"),
        gpu_total_bytes=whole(fullest, "total_bytes"),
    )


def _end_of(record: Record) -> EndRecord:
    problem, remedy = record.get("problem"), record.get("remedy")
    return EndRecord(
        at=number(record, "at"),
        outcome=_text(record, "outcome"),
        exit_code=whole(record, "exit_code"),
        signal=whole(record, "signal"),
        problem=problem if isinstance(problem, str) else None,
        remedy=remedy if isinstance(remedy, str) else None,
        oom_kills=whole(record, "oom_kills"),
        forced=record.get("forced") is True,
        peak_private_bytes=whole(record, "peak_private_bytes"),
    )


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
