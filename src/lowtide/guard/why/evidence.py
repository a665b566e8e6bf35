"""Everything that may tell why a process died, as plain values. Gathered elsewhere, judged elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from lowtide.guard.why.death_texts import DeathText
from lowtide.guard.why.kernel_log import KernelLog
from lowtide.guard.why.recognise_tensors import Dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How it ended, as somebody saw it."""

    source: str
    code: int | None = None
    signal: int | None = None
    seen: bool = True
    """The signal was seen by who waited for the process; else concluded from a shell's code above 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReading:
    """The last look at its memory."""

    at: float | None
    private_bytes: int | None = None
    swapped_bytes: int | None = None
    available_bytes: int | None = None
    stalled_percent: float | None = None
    cgroup_limit_bytes: int | None = None
    gpu_used_bytes: int | None = None
    gpu_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldAlert:
    """What `watch` did about it."""

    at: float | None
    stage: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """The last line of a run that ended in order, or of a `watch` that saw the end."""

    at: float | None
    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    problem: str | None = None
    remedy: str | None = None
    oom_kills: int | None = None
    forced: bool = False
    """`watch` sent SIGKILL."""
    peak_private_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """What a job wrote into a file that may have been there before, and may have grown since."""

    path: str
    began_bytes: int = 0
    ended_bytes: int | None = None
    """None: to the end of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The last session of a journal: from its `start` on."""

    path: str
    kind: str
    pid: int | None = None
    """Of the job: under `watch` not of the one that writes."""
    started_at: float | None = None
    last_at: float | None = None
    command: tuple[str, ...] = ()
    settings: str = ""
    """As JSON, for whoever looks for numbers in it."""
    budget_bytes: int | None = None
    limit_bytes: int | None = None
    floor_bytes: int | None = None
    how: str = ""
    logs: tuple[LogSpan, ...] = ()
    """Files that the job wrote its output to."""
    pids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    middle: LastReading | None = None
    """Halfway, so that growth can be told from a start."""
    last: LastReading | None = None
    peak_private_bytes: int | None = None
    step: int | None = None
    alerts: tuple[ToldAlert, ...] = ()
    end: EndRecord | None = None
    torn: bool = False
    """The last line was cut short: it died while writing, or is writing now."""
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingProcess:
    """A process that is there now."""

    pid: int
    name: str
    state: str
    """`running`, `sleeping`, `stopped`, `disk-sleep`, `zombie`."""
    private_bytes: int | None = None
    process_count: int = 1


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
class Machine:
    """Where the question is asked, now."""

    now: float
    boot_at: float | None = None
    total_ram_bytes: int | None = None
    swap_bytes: int | None = None
    free_disk_bytes: int | None = None
    """Where the run, or its log, lies."""
    own_process_ids: bool = False
    """In a container: the kernel's log knows its processes by other numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All of it. What is not known is `None` or empty, and proves nothing."""

    about: str
    """What was asked about, for people."""
    machine: Machine
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
        """Last words of all logs."""
        return [text for log in self.logs for text in log.texts]

    @property
    def reading(self) -> LastReading | None:
        return self.session.last if self.session else None

    @property
    def pids(self) -> frozenset[int]:
        """Every process that belongs to it, as far as known."""
        told = {text.pid for text in self.texts if text.pid is not None}
        asked = {self.pid} if self.pid is not None else set()
        return frozenset(told | asked | (self.session.pids if self.session else frozenset()))

    @property
    def started_at(self) -> float | None:
        return self.session.started_at if self.session else None

    @property
    def ended_at(self) -> float | None:
        """When it ended, or when the last was heard of it."""
        if self.session is not None:
            return (self.session.end.at if self.session.end else None) or self.session.last_at
        times = [log.changed_at for log in self.logs if log.changed_at is not None]
        return max(times, default=None)
