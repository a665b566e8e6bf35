"""What the kernel wrote about deaths, wherever this user may read it: dmesg, the journal, the files of syslog.

    Memory cgroup out of memory: Killed process 28717 (python) total-vm:217316kB, anon-rss:97024kB, …

Out of memory, segmentation faults, faults of an NVIDIA card; also the two daemons that kill before the kernel
does, systemd-oomd and earlyoom, where their lines are in the same log. Process ids are used again and again: a
record says when it happened, and the caller compares. A log that cannot be read is named with the reason: the
silence of a log that was not read proves nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from lowtide.units import KIB

RecordKind = Literal["out of memory", "memory daemon", "crash", "gpu fault"]
Scope = Literal["cgroup", "machine"]

_FILES = ("/var/log/kern.log", "/var/log/syslog", "/var/log/messages")
_LAST_BYTES = 8 << 20
_MOST_SECONDS = 15.0
_BEFORE_SECONDS = 300.0
_NO_JOURNAL = ("-- No entries --", "No journal files were found.", "")
_LONGEST_LINE = 2000
_CLOCKS_APART_SECONDS = 3600.0
"""A machine that slept counts fewer seconds since its boot than have passed; never more by so much."""
_SECONDS_APART = 5.0
"""Records of one event in two logs may differ by this much: clocks differ a little."""
_SINCE_BOOT = re.compile(r"\[\s*(\d+\.\d+)\]")
_STAMPED = re.compile(r"\[|[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-|\d{9,}\.")
"""How a line begins that has a time of its own, even one that cannot be read."""
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
    """One death, or one fault of a card, as a log reports it."""

    kind: RecordKind
    line: str
    source: str = ""
    at: float | None = None
    """Unix seconds; `None` where the line has no time."""
    until: float | None = None
    """When the log was last written to: it cannot have happened later."""
    pid: int | None = None
    name: str = ""
    """The kernel's name for the process: fifteen bytes at most."""
    scope: Scope | None = None
    """Whose limit was reached; `None` where the log does not say, or it was none."""
    group: str = ""
    anonymous_bytes: int | None = None
    detail: str = ""
    """The library of a crash, the number of a card's fault, the name of a daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLog:
    """A place where evidence may lie that could not be read."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """All kernel records that could be read, and what could not."""

    records: tuple[KernelRecord, ...] = ()
    sources: tuple[str, ...] = ()
    unread: tuple[UnreadLog, ...] = ()
    first_at: float | None = None
    """The oldest time in any readable log; older lines are lost."""
    until: float | None = None
    """When a saved log was last written to: what happened later is not in it."""

    def reaches(self, at: float | None) -> bool:
        """Whether a death at that time would still be in here."""
        if at is None or self.first_at is None:
            return False
        return self.first_at <= at and (self.until is None or at <= self.until + _SECONDS_APART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Turns a log's time stamps into Unix seconds."""

    now: float
    boot_at: float | None
    """When seconds since boot began to count, without the machine's sleep; None for a log of another boot."""

    def at_writing(self, written: float) -> Clock:
        """The clock of a file that was last written to then: of an earlier boot, unless this one had begun."""
        now = min(written, self.now)
        is_this_boot = self.boot_at is not None and self.boot_at <= now
        return Clock(now=now, boot_at=self.boot_at if is_this_boot else None)


def parse_kernel_log(lines: Iterable[str], *, source: str, clock: Clock) -> KernelLog:
    """The deaths in a log. A line without a time has that of the line before."""
    records: list[KernelRecord] = []
    first_at, at, announced = None, None, _Announced()
    lines = list(lines)
    if any((_stamp(line, clock) or 0.0) > clock.now + _CLOCKS_APART_SECONDS for line in lines):
        clock = replace(clock, boot_at=None)  # this boot is younger than that: another boot's log
    for full in lines:
        line = full[:_LONGEST_LINE].rstrip("\n")
        stamp = _stamp(line, clock)
        at = stamp if stamp is not None or _STAMPED.match(line) else at
        if first_at is None:
            first_at = at
        announced, found = _read_line(line, announced)
        if found is not None:
            records.append(replace(found, at=at, source=source))
    return KernelLog(
        records=tuple(_without_announcements(records)), sources=(source,), first_at=first_at
    )


def join_logs(logs: Iterable[KernelLog]) -> KernelLog:
    """One log of several; an event that two of them report is kept once."""
    logs, records = list(logs), list[KernelRecord]()
    for log in logs:
        records += [one for one in log.records if not any(_same(one, other) for other in records)]
    return KernelLog(
        records=tuple(records),
        sources=tuple(source for log in logs for source in log.sources),
        unread=tuple(unread for log in logs for unread in log.unread),
        first_at=min((log.first_at for log in logs if log.first_at is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class _Announced:
    """What earlier lines of the same kill said."""

    scope: Scope | None = None
    group: str = ""


def _read_line(line: str, announced: _Announced) -> tuple[_Announced, KernelRecord | None]:
    """What is known of the kill that is being reported, and the death that this line reports."""
    if constraint := _CONSTRAINT.search(line):
        scope: Scope = "cgroup" if constraint[1].endswith("MEMCG") else "machine"
        task = _TASK.search(line)
        return _Announced(scope, task[1] or "" if task else ""), None
    if limit := _LIMIT_OF.search(line):
        return _Announced("cgroup", limit[1]), None
    if kill := _KILL.search(line):
        return _read_kill(line, kill, announced)
    return announced, _read_crash(line) or _read_gpu_fault(line) or _read_daemon(line)


def _read_kill(
    line: str, kill: re.Match[str], announced: _Announced
) -> tuple[_Announced, KernelRecord | None]:
    scope = announced.scope
    if kill[1]:
        scope = "cgroup" if kill[1].startswith("Memory") else "machine"
    size = _ANONYMOUS.search(line)
    found = KernelRecord(
        kind="out of memory",
        line=line,
        pid=int(kill[3]),
        name=kill[4],
        scope=scope,
        group=announced.group,
        anonymous_bytes=int(size[1].replace(",", "")) * KIB if size else None,
        detail="announced" if kill[2] == "Kill" else "",
    )
    # An older kernel announces one process and may then kill a child of it: the scope holds for that line too.
    return (_Announced(scope, announced.group) if kill[2] == "Kill" else _Announced()), found


def _without_announcements(records: list[KernelRecord]) -> list[KernelRecord]:
    """`Kill process 7 … or sacrifice child` is dropped where the line that follows says who was killed."""
    kept = []
    for number, one in enumerate(records):
        following = records[number + 1] if number + 1 < len(records) else None
        done = following is not None and following.kind == "out of memory" and not following.detail
        if one.kind == "out of memory" and one.detail and done:
            continue
        kept.append(replace(one, detail="") if one.kind == "out of memory" else one)
    return kept


def _read_crash(line: str) -> KernelRecord | None:
    crash = _SEGFAULT.search(line)
    if crash is None:
        return None
    name = crash[1].rpartition("] ")[2].rpartition("kernel: ")[2].strip()
    library = _LIBRARY.search(line)
    detail = library[1] if library else ""
    return KernelRecord(kind="crash", line=line, pid=int(crash[2]), name=name, detail=detail)


def _read_gpu_fault(line: str) -> KernelRecord | None:
    xid = _XID.search(line)
    if xid is None:
        return None
    pid = int(xid[2]) if xid[2] and xid[2].isdigit() else None
    return KernelRecord(
        kind="gpu fault", line=line, pid=pid, name=xid[3] or "", detail=f"Xid {xid[1]}"
    )


def _read_daemon(line: str) -> KernelRecord | None:
    if early := _EARLYOOM.search(line):
        pid, name, group, daemon = int(early[1]), early[2], "", "earlyoom"
    elif oomd := _OOMD.search(line):
        pid, name, group, daemon = None, "", oomd[1], "systemd-oomd"
    else:
        return None
    return KernelRecord(
        kind="memory daemon",
        line=line,
        pid=pid,
        name=name,
        scope="machine",
        group=group,
        detail=daemon,
    )


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


def read_kernel_log(*, since: float | None, saved: Path | None = None) -> KernelLog:
    """Everything readable, or the one file that was saved elsewhere. Takes seconds at most; changes nothing."""
    now = time.time()
    clock = Clock(now=now, boot_at=now - time.monotonic())
    if saved is not None:
        return _read_saved(saved, clock)
    if sys.platform != "linux":
        return _unread("kernel log", "there is none on this system")
    return join_logs(_read_all(since, clock))


def _read_all(since: float | None, clock: Clock) -> Iterator[KernelLog]:
    yield _read_output(["dmesg"], clock)
    journal = ["journalctl", "--no-pager", "--quiet", "--output=short-unix", "--lines=20000"]
    if since is not None:
        journal.append(f"--since=@{max(0, int(since - _BEFORE_SECONDS))}")
    journal += ["_TRANSPORT=kernel", "+", "SYSLOG_IDENTIFIER=systemd-oomd"]
    yield _read_output([*journal, "+", "SYSLOG_IDENTIFIER=earlyoom"], clock)
    for name in _FILES:
        if Path(name).exists():
            yield _read_file(Path(name), clock)


def _read_output(command: list[str], clock: Clock) -> KernelLog:
    source = command[0]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MOST_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return _unread(source, "not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unread(source, f"cannot be run ({type(error).__name__})")
    output = done.stdout[-_LAST_BYTES:].decode(errors="replace")
    if output.strip() in _NO_JOURNAL:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        return _unread(
            source, complaint[-1][:120] if complaint else "nothing in it that this user may read"
        )
    return parse_kernel_log(output.splitlines(), source=source, clock=clock)


def _read_saved(path: Path, clock: Clock) -> KernelLog:
    """A log that was saved once, unlike one that the system keeps writing, ends at its last change."""
    log = _read_file(path, clock)
    try:
        written = path.stat().st_mtime
    except OSError:
        return log
    records = tuple(replace(record, until=written) for record in log.records)
    return replace(log, records=records, until=written)


def _read_file(path: Path, clock: Clock) -> KernelLog:
    """The last part of a file: a log of years may be larger than memory."""
    try:
        with path.open("rb") as file:
            clock = clock.at_writing(os.fstat(file.fileno()).st_mtime)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LAST_BYTES))
            text = file.read(_LAST_BYTES).decode(errors="replace")
    except OSError as error:
        return _unread(os.fsdecode(path), error.strerror or type(error).__name__)
    return parse_kernel_log(text.splitlines(), source=os.fsdecode(path), clock=clock)


def _unread(source: str, reason: str) -> KernelLog:
    return KernelLog(unread=(UnreadLog(source=source, reason=reason),))
