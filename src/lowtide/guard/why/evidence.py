"""Everything that may show why a process died, as plain values, and what several rules ask of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from lowtide.guard.why.allocations import Dimensions
from lowtide.guard.why.death_texts import DeathText
from lowtide.guard.why.kernel_log import KernelLog, KernelRecord, RecordKind
from lowtide.journal import Session
from lowtide.memory.meter import NOTHING_USED, MemoryUse
from lowtide.memory.reading import Reading

INTERRUPT, KILL, TERMINATE = 2, 9, 15
"""SIGINT, SIGKILL, SIGTERM; `signal` has no SIGKILL on Windows."""
_BEFORE_SECONDS = 10.0
_AFTER_SECONDS = 120.0
"""The last sample may be long before the end: a machine that thrashes writes nothing."""
_NEAR_SECONDS = 20.0
_DAY_SECONDS = 86400.0
_TIGHT_SHARE = 0.05
_FULL_SHARE = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended, and who saw it."""

    source: str
    code: int | None = None
    signal: int | None = None
    seen: bool = True
    """Whoever waited for the process saw the signal; else it follows from a shell's code above 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingProcess:
    """A process that exists now."""

    pid: int
    name: str
    state: str
    """`running`, `sleeping`, `stopped`, `disk-sleep`, `zombie`."""
    use: MemoryUse = NOTHING_USED
    """The memory of its tree; nothing where it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLog:
    """A log of the program itself, or the last part of it."""

    path: str
    changed_at: float | None
    texts: tuple[DeathText, ...] = ()
    last_line: str = ""
    problem: str = ""
    """Why it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The machine on which `why` runs, now."""

    now: float
    boot_at: float | None = None
    total_ram_bytes: int | None = None
    swap_bytes: int | None = None
    free_disk_bytes: int | None = None
    """On the disk of the run, or of its log."""
    own_process_ids: bool = False
    """In a container: the kernel's log knows its processes by other numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMatch:
    """A record of the kernel's log that fits the process."""

    record: KernelRecord
    proven: bool
    """Number and time fit; else the one of them that is known, or name and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All evidence about one process. What is not known is `None` or empty, and proves nothing."""

    about: str
    """What the user asked about, for people."""
    machine: MachineFacts
    pid: int | None = None
    living: LivingProcess | None = None
    lock_held: bool = False
    session: Session | None = None
    exit: Exit | None = None
    logs: tuple[TextLog, ...] = ()
    kernel: KernelLog = field(default_factory=KernelLog)
    dimensions: Dimensions = field(default_factory=Dimensions)

    @property
    def texts(self) -> list[DeathText]:
        """The death texts of all logs."""
        return [text for log in self.logs for text in log.texts]

    @property
    def reading(self) -> Reading | None:
        """The last look at its memory."""
        return self.session.last if self.session else None

    @property
    def pids(self) -> frozenset[int]:
        """Every process that belongs to it, as far as known."""
        named = {text.pid for text in self.texts if text.pid is not None}
        asked = {self.pid} if self.pid is not None else set()
        return frozenset(named | asked | (self.session.pids if self.session else frozenset()))

    @property
    def started_at(self) -> float | None:
        """When the process started."""
        return self.session.started_at if self.session else None

    @property
    def ended_at(self) -> float | None:
        """When it ended, or when it last wrote something."""
        if self.session is not None:
            return (self.session.end.at if self.session.end else None) or self.session.last_at
        times = [log.changed_at for log in self.logs if log.changed_at is not None]
        return max(times, default=None)

    @property
    def ending(self) -> Exit | None:
        """How it ended: as `watch` saw it, as the command line says, or as the last lines of a log say."""
        end = self.session.end if self.session else None
        if self.session and end and (end.exit_code is not None or end.signal is not None):
            source = "timeline" if self.session.kind == "watch" else "last record"
            return exit_of(end.exit_code, end.signal, source=source)
        if self.exit is not None:
            return self.exit
        named = [text for text in self.texts if text.signal is not None and not text.went_on]
        return Exit(source="log", signal=named[-1].signal) if named else None

    @property
    def short_of(self) -> Literal["cgroup", "machine"] | None:
        """Whose memory was nearly used up at the last look; None where it was not, or nobody looked."""
        reading = self.reading
        if reading is None:
            return None
        limit = reading.cgroup_limit_bytes
        if limit and reading.private_bytes >= _FULL_SHARE * limit:
            return "cgroup"
        total, available = self.machine.total_ram_bytes, reading.available_bytes
        if total and available is not None and available < _TIGHT_SHARE * total:
            return "machine"
        return None

    @property
    def kernel_is_silent(self) -> bool:
        """A log that reaches back to the end was read, and no kill for memory in it could be this one."""
        if not self.kernel.reaches(self.ended_at):
            return False
        return not self.kernel_matches("out of memory", "memory daemon", killed=True)

    def kernel_matches(self, *kinds: RecordKind, killed: bool = False) -> list[KernelMatch]:
        """The kernel's records that are about this process, the best first.

        `killed`: it is known to have ended by a signal; only then a record that merely fits the moment counts.
        """
        found = [
            match
            for record in self.kernel.records
            if record.kind in kinds and (match := self._match(record, killed=killed))
        ]
        return sorted(found, key=lambda match: not match.proven)

    def recent_kills(self) -> list[KernelRecord]:
        """Kills for memory in the last day that may or may not be this one, the newest last."""
        since = self.machine.now - _DAY_SECONDS
        return [
            record
            for record in self.kernel.records
            if record.kind == "out of memory" and record.at is not None and record.at >= since
        ]

    def _match(self, record: KernelRecord, *, killed: bool) -> KernelMatch | None:
        """A number alone proves nothing: it is used again for later processes."""
        at, ended_at = record.at, self.ended_at
        if not self.machine.own_process_ids and record.pid is not None and self.pids:
            if record.pid not in self.pids:
                return None
            known = self.started_at if self.started_at is not None else ended_at
            saved = record.until
            if saved is not None and known is not None and saved < known - _BEFORE_SECONDS:
                return None  # the log was saved before this process had begun
            if at is None or ended_at is None:
                return KernelMatch(record=record, proven=False)
            began = self.started_at if self.started_at is not None else ended_at - _DAY_SECONDS
            if began - _BEFORE_SECONDS <= at <= ended_at + _AFTER_SECONDS:
                return KernelMatch(record=record, proven=self.started_at is not None)
            return None  # an earlier or a later process of the same number
        if at is None or ended_at is None or abs(at - ended_at) > _NEAR_SECONDS:
            return None
        names = self.session.names if self.session else frozenset()
        fits = record.name[:15] in names if names and record.name else killed
        return KernelMatch(record=record, proven=False) if fits else None


def exit_of(code: int | None, number: int | None, *, source: str) -> Exit:
    """An exit as a waiting process reports it: a shell adds 128 to a signal, Python negates it."""
    if number is None and code is not None and -65 < code < 0:
        return Exit(source=source, signal=-code)
    if number is None and code is not None and 128 < code <= 192:
        return Exit(source=source, code=code, signal=code - 128, seen=False)
    return Exit(source=source, code=code, signal=number)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
