"""How near a job is to its limit, what follows (note → ask it to stop → end it), and when to look again.

One reading gives one stage, a pure function. `Steps` remembers what was reported, so that a job that hovers
around a threshold is reported once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import IntEnum

from lowtide.guard.reading import ProcessUse, Reading
from lowtide.units import format_bytes

NOTE_SHARE, ASK_SHARE, END_SHARE = 0.80, 0.90, 1.00
"""Shares of the limit at which each stage begins."""
_NOTE_FLOORS, _ASK_FLOORS, _END_FLOORS = 1.5, 1.0, 0.5
"""Multiples of the floor: each stage begins when the machine has less left."""
_CALM_AGAIN = 0.95
"""Share of a threshold: below it the job may be reported again."""
_SHORTEST_SECONDS = 0.05
_LOOK_BACK_SECONDS = 2.0
"""A job grows in jumps: between two looks it may not have grown at all."""
_FIRST_SECONDS, _FIRST_WAIT_SECONDS = 2.0, 0.1
"""At first it looks often: short jobs are not missed."""
_AHEAD = 0.5
"""Share of the time until the next threshold to wait."""


class Response(IntEnum):
    """What the guard does about a job, in order of gravity."""

    CALM = 0
    NOTE = 1
    ASK = 2
    END = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """What the user allows the job to take, and the guard to do."""

    limit_bytes: int
    floor_bytes: int
    """MemAvailable that the machine must keep."""
    most: Response = Response.ASK
    """The gravest thing that may be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something to tell the user."""

    stage: Response
    reason: str
    top: tuple[ProcessUse, ...]


def judge_reading(reading: Reading, lines: Lines) -> tuple[Response, str]:
    """The graver of both stages, at most what is allowed, and its reason. CALM's reason is empty."""
    stage, reason = max(
        _judge_use(reading, lines.limit_bytes),
        _judge_room(reading, lines.floor_bytes),
        key=lambda verdict: verdict[0],
    )
    return min(stage, lines.most), reason


class Steps:
    """Reports every stage once, until the job has been clearly below it.

    A job that is not ended at its limit is reported there, and again at each doubling.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._next_bytes = lines.limit_bytes
        """The use beyond the last stage at which the next report is due."""
        self.stage = Response.CALM

    def would_rise(self, reading: Reading) -> bool:
        """Whether this reading is worth a second, exact one."""
        return judge_reading(reading, self._lines)[0] > self.stage or self._is_beyond(reading)

    def see(self, reading: Reading) -> Alert | None:
        """Take in a reading; an alert if it reaches a new stage."""
        stage, reason = judge_reading(reading, self._lines)
        if stage > self.stage or self._is_beyond(reading):
            self.stage = max(stage, self.stage)
            while self._is_beyond(reading):
                self._next_bytes *= 2
            return Alert(stage=stage, reason=reason, top=reading.top)
        calmer = replace(  # as if the job used more and the machine had less
            reading,
            private_bytes=round(reading.private_bytes / _CALM_AGAIN),
            available_bytes=round(reading.available_bytes * _CALM_AGAIN),
        )
        if stage < self.stage and judge_reading(calmer, self._lines)[0] < self.stage:
            self.stage = stage
        while self._next_bytes > max(2 * calmer.used_bytes, self._lines.limit_bytes):
            self._next_bytes //= 2
        return None

    def _is_beyond(self, reading: Reading) -> bool:
        may_go_on = self._lines.most < Response.END
        return may_go_on and reading.used_bytes >= self._next_bytes


def _judge_use(reading: Reading, limit_bytes: int) -> tuple[Response, str]:
    stage = Response.CALM
    for share, reached in (
        (NOTE_SHARE, Response.NOTE),
        (ASK_SHARE, Response.ASK),
        (END_SHARE, Response.END),
    ):
        stage = reached if reading.used_bytes >= share * limit_bytes else stage
    used, limit = format_bytes(reading.used_bytes), format_bytes(limit_bytes)
    return stage, f"the job uses {used} of its limit of {limit}" if stage else ""


def _judge_room(reading: Reading, floor_bytes: int) -> tuple[Response, str]:
    if not floor_bytes or reading.available_bytes >= _NOTE_FLOORS * floor_bytes:
        return Response.CALM, ""
    times = reading.available_bytes / floor_bytes
    left, floor = format_bytes(reading.available_bytes), format_bytes(floor_bytes)
    reason = f"the machine has {left} left, and {floor} were to stay free"
    if reading.used_bytes < floor_bytes - reading.available_bytes:
        return Response.NOTE, f"{reason}; ending this job would not bring them back"
    if times < _END_FLOORS:
        return Response.END, reason
    return (Response.ASK if times < _ASK_FLOORS else Response.NOTE), reason


class Pace:
    """When to look again: as usual, or sooner where the next threshold would be passed before that."""

    def __init__(self, lines: Lines, usual_seconds: float) -> None:
        self._usual = usual_seconds
        shares = (NOTE_SHARE, ASK_SHARE, END_SHARE)
        self._lines = [share * lines.limit_bytes for share in shares]
        self._first: float | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def wait_seconds(self, reading: Reading | None) -> float:
        """How long to wait after this reading."""
        if reading is None:
            return _SHORTEST_SECONDS
        self._seen.append((reading.at, reading.used_bytes))
        while reading.at - self._seen[0][0] > _LOOK_BACK_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        ahead = [line - reading.used_bytes for line in self._lines if line > reading.used_bytes]
        at, used_bytes = self._seen[0]
        if self._first is None:
            self._first = reading.at
        if reading.at - self._first < _FIRST_SECONDS:
            return min(self._usual, _FIRST_WAIT_SECONDS)
        if not ahead or reading.at <= at or reading.used_bytes <= used_bytes:
            return self._usual
        growth = (reading.used_bytes - used_bytes) / (reading.at - at)
        return min(self._usual, max(_SHORTEST_SECONDS, _AHEAD * min(ahead) / growth))
