"""What the kernel wrote about deaths: out of memory, segmentation faults, faults of an NVIDIA card.

    Memory cgroup out of memory: Killed process 28717 (python) total-vm:217316kB, anon-rss:97024kB, …

Also the two daemons that kill before the kernel does, systemd-oomd and earlyoom, where their lines are in the
same log. Process ids are used again and again: a record says when it happened, and whoever asks compares.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from lowtide.units import KIB

RecordKind = Literal["out of memory", "memory daemon", "crash", "gpu fault"]
Scope = Literal["cgroup", "machine"]

_LONGEST_LINE = 2000
_CLOCKS_APART_SECONDS = 3600.0
"""A machine that slept counts fewer seconds since its boot than have passed; never more by so much."""
_SECONDS_APART = 5.0
"""The same event in two logs, whose clocks differ a little."""
_SINCE_BOOT = re.compile(r"\[\s*(\d+\.\d+)\]")
_STAMPED = re.compile(r"\[|[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-|\d{9,}\.")
"""How a line begins that bears a time of its own, even one that cannot be read."""
_UNIX = re.compile(r"^(\d{9,11}\.\d+)\s")
_ISO = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\b")
_SYSLOG = re.compile(r"^([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\s")
_CALENDAR = re.compile(r"^\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]")
_CONSTRAINT = re.compile(r"oom-kill:constraint=(CONSTRAINT_\w+)")
_TASK = re.compile(r"(?:task_memcg=([^,]*),)?task=(.{0,64}?),pid=(\d+)")
_KILL = re.compile(
    r"(?:(Memory cgroup out of memory|Out of memory)[^:]{0,60}: )?"
    r"(Killed|Kill) process (\d+)(?:, UID \d+,)? ?\((.{0,64}?)\)(?=[ ,]|$)"
)
_ANONYMOUS = re.compile(r"anon-rss:([\d,]+)kB")
_LIMIT_OF = re.compile(r"Task in \S+ killed as a result of limit of (\S+)")
_SEGFAULT = re.compile(
    r"(?:traps: )?(\S[^\[\]:]{0,63})\[(\d+)\]:? (segfault at|general protection|trap \w+)"
)
_LIBRARY = re.compile(r" in ([^\[\s]+)\[")
_XID = re.compile(
    r"NVRM: Xid \([^)]*\): (\d+)(?:, pid='?(\d+|<unknown>)'?)?(?:, name=([^,]*))?,? ?(.*)"
)
_EARLYOOM = re.compile(
    r"(?:sending SIG\w+ to|[Kk]illing) process (\d+)(?: uid \d+)? \"(.{0,64}?)\""
)
_OOMD = re.compile(r"systemd-oomd(?:\[\d+\])?: Killed (\S+) due to (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One death, or one fault of a card, as a log tells it."""

    kind: RecordKind
    line: str
    source: str
    at: float | None = None
    """Unix seconds; `None` where the line bears no time."""
    until: float | None = None
    """When the log was last written to: it cannot have happened later."""
    pid: int | None = None
    name: str = ""
    """As the kernel knows it: fifteen bytes at most."""
    scope: Scope | None = None
    """Whose limit was reached; `None` where the log does not say, or it was none."""
    group: str = ""
    anonymous_bytes: int | None = None
    detail: str = ""
    """The library of a crash, the number of a card's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLog:
    """A place where evidence may lie that could not be read."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """All that could be read."""

    records: tuple[KernelRecord, ...] = ()
    sources: tuple[str, ...] = ()
    unread: tuple[UnreadLog, ...] = ()
    first_at: float | None = None
    """The oldest time any readable log reaches back to; older lines are lost."""
    until: float | None = None
    """When a saved log was last written to: what happened later is not in it."""

    def reaches(self, at: float | None) -> bool:
        """Whether a death at that time would still be in here."""
        if at is None or self.first_at is None:
            return False
        return self.first_at <= at and (self.until is None or at <= self.until + _SECONDS_APART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What turns a log's stamps into Unix seconds."""

    now: float
    boot_at: float | None
    """When seconds since boot began to count, as far as the last sleep of the machine; None of another boot."""

    def at_writing(self, written: float) -> Clock:
        """For a file that was last written to then: in an earlier boot, unless this one had begun."""
        now = min(written, self.now)
        is_this_boot = self.boot_at is not None and self.boot_at <= now
        return Clock(now=now, boot_at=self.boot_at if is_this_boot else None)


def this_clock() -> Clock:
    now = time.time()
    return Clock(now=now, boot_at=now - time.monotonic())


def parse_kernel_log(lines: Iterable[str], *, source: str, clock: Clock) -> KernelLog:
    """The deaths in a log. Holds the records alone; a line without a time has that of the line before."""
    records: list[KernelRecord] = []
    first_at, at, notice = None, None, _Notice()
    lines = list(lines)
    if any((_stamp(line, clock) or 0.0) > clock.now + _CLOCKS_APART_SECONDS for line in lines):
        clock = replace(
            clock, boot_at=None
        )  # this boot has not lasted as long: it is the log of another
    for full in lines:
        line = full[:_LONGEST_LINE].rstrip("\n")
        stamp = _stamp(line, clock)
        at = stamp if stamp is not None or _STAMPED.match(line) else at
        if first_at is None:
            first_at = at
        notice, found = _read_line(line, notice)
        if found is not None:
            records.append(replace(found, at=at, source=source))
    return KernelLog(
        records=tuple(_without_announcements(records)), sources=(source,), first_at=first_at
    )


def join_logs(logs: Iterable[KernelLog]) -> KernelLog:
    """One log of several: an event that two of them tell is told once."""
    records: list[KernelRecord] = []
    sources: list[str] = []
    unread: list[UnreadLog] = []
    begins: list[float] = []
    for log in logs:
        records += [one for one in log.records if not any(_same(one, other) for other in records)]
        sources += log.sources
        unread += log.unread
        begins += [] if log.first_at is None else [log.first_at]
    return KernelLog(
        records=tuple(records),
        sources=tuple(sources),
        unread=tuple(unread),
        first_at=min(begins, default=None),
    )


@dataclass(frozen=True, slots=True)
class _Notice:
    """What earlier lines of the same kill have said."""

    scope: Scope | None = None
    group: str = ""


def _read_line(line: str, notice: _Notice) -> tuple[_Notice, KernelRecord | None]:
    """What is known of the kill that is being told, and the death that this line tells."""
    if constraint := _CONSTRAINT.search(line):
        scope: Scope = "cgroup" if constraint[1].endswith("MEMCG") else "machine"
        task = _TASK.search(line)
        return _Notice(scope, task[1] or "" if task else ""), None
    if limit := _LIMIT_OF.search(line):
        return _Notice("cgroup", limit[1]), None
    if kill := _KILL.search(line):
        return _read_kill(line, kill, notice)
    for read in (_read_crash, _read_gpu_fault, _read_daemon):
        if found := read(line):
            return notice, found
    return notice, None


def _read_kill(
    line: str, kill: re.Match[str], notice: _Notice
) -> tuple[_Notice, KernelRecord | None]:
    scope = notice.scope
    if kill[1]:
        scope = "cgroup" if kill[1].startswith("Memory") else "machine"
    size = _ANONYMOUS.search(line)
    found = KernelRecord(
        kind="out of memory",
        line=line,
        source="",
        pid=int(kill[3]),
        name=kill[4],
        scope=scope,
        group=notice.group,
        anonymous_bytes=int(size[1].replace(",", "")) * KIB if size else None,
        detail="announced" if kill[2] == "Kill" else "",
    )
    # An older kernel announces one process and may then kill a child of it: the scope goes on to that line.
    return (_Notice(scope, notice.group) if kill[2] == "Kill" else _Notice()), found


def _without_announcements(records: list[KernelRecord]) -> list[KernelRecord]:
    """`Kill process 7 … or sacrifice child` is dropped where the line that follows says who was killed."""
    kept = []
    for number, one in enumerate(records):
        following = records[number + 1] if number + 1 < len(records) else None
        told = following is not None and following.kind == "out of memory" and not following.detail
        if one.kind == "out of memory" and one.detail and told:
            continue
        kept.append(replace(one, detail="") if one.kind == "out of memory" else one)
    return kept


def _read_crash(line: str) -> KernelRecord | None:
    crash = _SEGFAULT.search(line)
    if crash is None:
        return None
    name = crash[1].rpartition("] ")[2].rpartition("kernel: ")[2].strip()
    library = _LIBRARY.search(line)
    return KernelRecord(
        kind="crash",
        line=line,
        source="",
        pid=int(crash[2]),
        name=name,
        detail=library[1] if library else "",
    )


def _read_gpu_fault(line: str) -> KernelRecord | None:
    xid = _XID.search(line)
    if xid is None:
        return None
    pid = int(xid[2]) if xid[2] and xid[2].isdigit() else None
    return KernelRecord(
        kind="gpu fault", line=line, source="", pid=pid, name=xid[3] or "", detail=f"Xid {xid[1]}"
    )


def _read_daemon(line: str) -> KernelRecord | None:
    if early := _EARLYOOM.search(line):
        return KernelRecord(
            kind="memory daemon",
            line=line,
            source="",
            pid=int(early[1]),
            name=early[2],
            scope="machine",
            detail="earlyoom",
        )
    if oomd := _OOMD.search(line):
        return KernelRecord(
            kind="memory daemon",
            line=line,
            source="",
            scope="machine",
            group=oomd[1],
            detail="systemd-oomd",
        )
    return None


def _stamp(line: str, clock: Clock) -> float | None:
    """Unix seconds of a line; logs of files say the day, the kernel's own the seconds since boot."""
    if unix := _UNIX.match(line):
        return float(unix[1])
    try:
        if iso := _ISO.match(line):
            return datetime.fromisoformat(iso[1].replace(",", ".")).timestamp()
        if day := _CALENDAR.match(line):
            return datetime.strptime(day[1], "%a %b %d %H:%M:%S %Y").timestamp()
        if day := _SYSLOG.match(line):
            return _year_found(day[1], clock)
    except (ValueError, OverflowError, OSError):
        return None
    since_boot = _SINCE_BOOT.search(line[:80])
    if since_boot is None or clock.boot_at is None:
        return None
    return clock.boot_at + float(since_boot[1])


def _year_found(day: str, clock: Clock) -> float:
    """`May 15 23:09:30` names no year: the last one in which it does not lie ahead."""
    year = datetime.fromtimestamp(clock.now).year
    found = datetime.strptime(f"{year} {day}", "%Y %b %d %H:%M:%S").timestamp()
    if found <= clock.now + 86400:
        return found
    return datetime.strptime(f"{year - 1} {day}", "%Y %b %d %H:%M:%S").timestamp()


def _same(one: KernelRecord, other: KernelRecord) -> bool:
    if (one.kind, one.pid, one.name) != (other.kind, other.pid, other.name):
        return False
    if one.at is None or other.at is None:
        return one.line == other.line
    return abs(one.at - other.at) <= _SECONDS_APART
