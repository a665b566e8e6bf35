"""Judge how close a process tree is to its limit and its machine to running out, and what follows.

    CALM → NOTE (warn) → ASK (give caches back; a watched job is asked to stop) → END (stop; a job is ended)

One reading gives one stage, a pure function. `Steps` remembers what was reported, so that a job that hovers
around a threshold is reported once. The kernel is never left to decide: it kills without asking, and only
after the machine has been slow for minutes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import IntEnum
from operator import itemgetter

from lowtide.memory.reading import MemoryRead, ProcessUse, Reading
from lowtide.units import MIB, format_bytes

END_SHARE = 0.97
"""Share of the budget from which on a run of ours stops."""
_CALM_AGAIN = 0.95
"""Share of a threshold: below it a stage may be reported again."""
_SHORTEST_SECONDS = 0.05
_LOOK_BACK_SECONDS = 2.0
"""A job grows in jumps: between two looks it may not have grown at all."""
_FIRST_SECONDS, _FIRST_WAIT_SECONDS = 2.0, 0.1
"""At first the watch looks often, so that short jobs are not missed."""
_AHEAD = 0.5
"""Share of the time until the next threshold to wait."""


class Stage(IntEnum):
    """How grave a verdict is. Ordered: `max` of two is the one to follow."""

    CALM = 0
    NOTE = 1
    ASK = 2
    END = 3

    @property
    def in_words(self) -> str:
        """`note`, `ask` or `end`: as options and records name it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Where each stage begins. The defaults are those of a job under `watch`."""

    limit_bytes: int
    floor_bytes: int
    """MemAvailable that the machine must keep."""
    most: Stage = Stage.ASK
    """The gravest stage that is allowed."""
    limit_name: str = "limit"
    use_shares: tuple[float, float, float] = (0.80, 0.90, 1.00)
    """Shares of the limit at which NOTE, ASK and END begin."""
    floor_shares: tuple[float, float, float] = (1.5, 1.0, 0.5)
    """Multiples of the floor: each stage begins when the machine has less left."""
    stall_percent: float | None = None
    """Stalls for memory from which on there is a NOTE, and END if memory is scarce too."""
    spares_the_small: bool = True
    """Whether a job so small that ending it would not help is left alone."""


def budget_thresholds(budget_bytes: int, total_ram_bytes: int) -> Thresholds:
    """The thresholds of our own runs, which end themselves, resumable, before the budget is used up."""
    return Thresholds(
        limit_bytes=budget_bytes,
        floor_bytes=floor_bytes(total_ram_bytes),
        most=Stage.END,
        limit_name="budget",
        use_shares=(0.80, 0.85, END_SHARE),
        floor_shares=(3.0, 2.0, 1.0),
        stall_percent=40.0,
        spares_the_small=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A stage that was reached, and why."""

    stage: Stage
    reason: str
    top: tuple[ProcessUse, ...] = ()


def floor_bytes(total_ram_bytes: int) -> int:
    """Memory that must stay free on a machine: 2 % of it, 512 MiB at most."""
    return min(total_ram_bytes // 50, 512 * MIB)


def judge(read: MemoryRead, thresholds: Thresholds) -> tuple[Stage, str]:
    """The gravest stage, at most what is allowed, and its reason. CALM's reason is empty."""
    verdicts = (
        _judge_use(read, thresholds),
        _judge_floor(read, thresholds),
        _judge_stall(read, thresholds),
    )
    stage, reason = max(verdicts, key=itemgetter(0))
    return min(stage, thresholds.most), reason


def _judge_use(read: MemoryRead, thresholds: Thresholds) -> tuple[Stage, str]:
    stage = Stage(
        sum(read.used_bytes >= share * thresholds.limit_bytes for share in thresholds.use_shares)
    )
    used, limit = format_bytes(read.used_bytes), format_bytes(thresholds.limit_bytes)
    return stage, f"the job uses {used} of its {thresholds.limit_name} of {limit}" if stage else ""


def _judge_floor(read: MemoryRead, thresholds: Thresholds) -> tuple[Stage, str]:
    left, floor = read.available_bytes, thresholds.floor_bytes
    if left is None or left >= thresholds.floor_shares[0] * floor:
        return Stage.CALM, ""
    stage = Stage(sum(left < share * floor for share in thresholds.floor_shares))
    reason = (
        f"the machine has {format_bytes(left)} left, and {format_bytes(floor)} should stay free"
    )
    if thresholds.spares_the_small and read.used_bytes < floor - left:
        return Stage.NOTE, f"{reason}; ending this job would not free enough"
    return stage, reason


def _judge_stall(read: MemoryRead, thresholds: Thresholds) -> tuple[Stage, str]:
    """A stall alone may be page cache reclaimed in a tight cgroup; with little free memory it is not."""
    stalled, least, left = read.stalled_percent, thresholds.stall_percent, read.available_bytes
    if stalled is None or least is None or stalled < least:
        return Stage.CALM, ""
    reason = f"the machine stood still for memory {stalled:.0f} % of ten seconds"
    scarce = left is not None and left < 4 * thresholds.floor_bytes
    return (Stage.END if scarce else Stage.NOTE), reason


class Steps:
    """Reports every stage once, until the job has been clearly below it.

    A job that is not ended at its limit is reported there, and again at each doubling.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._next_bytes = thresholds.limit_bytes
        """The use beyond the last stage at which the next report is due."""
        self.stage = Stage.CALM

    def would_rise(self, read: MemoryRead) -> bool:
        """Whether this reading is worth a second, exact one."""
        return judge(read, self._thresholds)[0] > self.stage or self._is_beyond(read)

    def see(self, read: MemoryRead) -> Alert | None:
        """Take in a reading; an alert if it reaches a new stage."""
        stage, reason = judge(read, self._thresholds)
        if stage > self.stage or self._is_beyond(read):
            self.stage = max(stage, self.stage)
            while self._is_beyond(read):
                self._next_bytes *= 2
            top = read.top if isinstance(read, Reading) else ()
            return Alert(stage=stage, reason=reason, top=top)
        left = read.available_bytes
        calmer = replace(  # as if the job used more and the machine had less
            read,
            private_bytes=round(read.private_bytes / _CALM_AGAIN),
            available_bytes=None if left is None else round(left * _CALM_AGAIN),
        )
        if stage < self.stage and judge(calmer, self._thresholds)[0] < self.stage:
            self.stage = stage
        while self._next_bytes > max(2 * calmer.used_bytes, self._thresholds.limit_bytes):
            self._next_bytes //= 2
        return None

    def _is_beyond(self, read: MemoryRead) -> bool:
        return self._thresholds.most < Stage.END and read.used_bytes >= self._next_bytes


class Pace:
    """When to look again: as usual, or sooner where the next threshold would be passed before that."""

    def __init__(self, thresholds: Thresholds, usual_seconds: float) -> None:
        self._usual = usual_seconds
        self._thresholds = [share * thresholds.limit_bytes for share in thresholds.use_shares]
        self._first: float | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def wait_seconds(self, reading: Reading | None) -> float:
        """How long to wait after this reading."""
        if reading is None:
            return _SHORTEST_SECONDS
        self._seen.append((reading.at, reading.used_bytes))
        while reading.at - self._seen[0][0] > _LOOK_BACK_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        ahead = [
            line - reading.used_bytes for line in self._thresholds if line > reading.used_bytes
        ]
        at, used_bytes = self._seen[0]
        if self._first is None:
            self._first = reading.at
        if reading.at - self._first < _FIRST_SECONDS:
            return min(self._usual, _FIRST_WAIT_SECONDS)
        if not ahead or reading.at <= at or reading.used_bytes <= used_bytes:
            return self._usual
        growth = (reading.used_bytes - used_bytes) / (reading.at - at)
        return min(self._usual, max(_SHORTEST_SECONDS, _AHEAD * min(ahead) / growth))
