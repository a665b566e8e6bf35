"""How near a job is to its limit, and what follows: note → ask it to stop → end it.

One reading gives one verdict, a pure function. `Steps` remembers what was told, so that a job that hovers
around a line is told about once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from lowtide.guard.reading import ProcessUse, Reading
from lowtide.units import format_bytes

NOTE_SHARE, ASK_SHARE, END_SHARE = 0.80, 0.90, 1.00
"""Of the limit."""
_NOTE_FLOORS, _ASK_FLOORS, _END_FLOORS = 1.5, 1.0, 0.5
"""Times the floor, of what the machine has left."""
_CALM_AGAIN = 0.95
"""Of the line: below it the job may be told again."""


class Response(IntEnum):
    """What the guard does about a job. Ordered: the gravest counts."""

    CALM = 0
    NOTE = 1
    ASK = 2
    END = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """What the user allows."""

    limit_bytes: int
    floor_bytes: int
    """Of MemAvailable, that the machine keeps."""
    most: Response = Response.ASK
    """The gravest thing that may be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that a person should hear of."""

    stage: Response
    reason: str
    top: tuple[ProcessUse, ...]


def judge_reading(reading: Reading, lines: Lines) -> tuple[Response, str]:
    """The gravest of both verdicts and its reason, held down to what is allowed. CALM's reason is empty."""
    stage, reason = max(
        _judge_use(reading, lines.limit_bytes),
        _judge_room(reading, lines.floor_bytes),
        key=lambda verdict: verdict[0],
    )
    return min(stage, lines.most), reason


class Steps:
    """Tells of every stage once, until the job has been clearly below it.

    A job that is not ended at its limit is told of there, and again at each doubling.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._next_bytes = lines.limit_bytes
        """The use beyond the last stage that is told of next."""
        self.stage = Response.CALM

    def would_rise(self, reading: Reading) -> bool:
        """Whether this reading is worth a second, exact one."""
        return judge_reading(reading, self._lines)[0] > self.stage or self._is_beyond(reading)

    def see(self, reading: Reading) -> Alert | None:
        """What is new, or None."""
        stage, reason = judge_reading(reading, self._lines)
        if stage > self.stage or self._is_beyond(reading):
            self.stage = max(stage, self.stage)
            while self._is_beyond(reading):
                self._next_bytes *= 2
            return Alert(stage=stage, reason=reason, top=reading.top)
        calmer = _a_little_more(reading)
        if stage < self.stage and judge_reading(calmer, self._lines)[0] < self.stage:
            self.stage = stage
        while self._next_bytes > max(2 * calmer.used_bytes, self._lines.limit_bytes):
            self._next_bytes //= 2
        return None

    def _is_beyond(self, reading: Reading) -> bool:
        may_go_on = self._lines.most < Response.END
        return may_go_on and reading.used_bytes >= self._next_bytes


def _a_little_more(reading: Reading) -> Reading:
    """As if the job used more and the machine had less."""
    return replace(
        reading,
        private_bytes=round(reading.private_bytes / _CALM_AGAIN),
        available_bytes=round(reading.available_bytes * _CALM_AGAIN),
    )


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
    stage = (
        Response.END
        if times < _END_FLOORS
        else Response.ASK
        if times < _ASK_FLOORS
        else Response.NOTE
    )
    return stage, reason
