"""Reads the kernel's log wherever this user may: dmesg, the journal, the files of syslog.

What cannot be read is named with the reason: silence of a log that was not read proves nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lowtide.guard.why.kernel_log import (
    Clock,
    KernelLog,
    UnreadLog,
    join_logs,
    parse_kernel_log,
    this_clock,
)

_FILES = ("/var/log/kern.log", "/var/log/syslog", "/var/log/messages")
_LAST_BYTES = 8 << 20
_MOST_SECONDS = 15.0
_BEFORE_SECONDS = 300.0
_NO_JOURNAL = ("-- No entries --", "No journal files were found.", "")


def read_kernel_log(*, since: float | None, saved: Path | None = None) -> KernelLog:
    """Everything readable, or the one file that was saved elsewhere. Seconds at most; nothing is changed."""
    clock = this_clock()
    if saved is not None:
        return _read_saved(saved, clock)
    if sys.platform != "linux":
        reason = "there is none on this system"
        return KernelLog(unread=(UnreadLog(source="kernel log", reason=reason),))
    return join_logs(_everything(since, clock))


def _everything(since: float | None, clock: Clock) -> Iterator[KernelLog]:
    yield _ask(["dmesg"], "dmesg", clock)
    journal = ["journalctl", "--no-pager", "--quiet", "--output=short-unix", "--lines=20000"]
    if since is not None:
        journal.append(f"--since=@{max(0, int(since - _BEFORE_SECONDS))}")
    journal += ["_TRANSPORT=kernel", "+", "SYSLOG_IDENTIFIER=systemd-oomd"]
    yield _ask([*journal, "+", "SYSLOG_IDENTIFIER=earlyoom"], "journalctl", clock)
    for name in _FILES:
        if Path(name).exists():
            yield _read_file(Path(name), clock)


def _ask(command: list[str], source: str, clock: Clock) -> KernelLog:
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
    said = done.stdout[-_LAST_BYTES:].decode(errors="replace")
    if said.strip() in _NO_JOURNAL:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()
        return _unread(
            source, complaint[-1][:120] if complaint else "nothing in it that this user may read"
        )
    return parse_kernel_log(said.splitlines(), source=source, clock=clock)


def _read_saved(path: Path, clock: Clock) -> KernelLog:
    """A log that was saved once, unlike one that the system goes on writing, ends at its last change."""
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
