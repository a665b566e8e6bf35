"""What this machine can tell about a process: is it there, is its lock held, how does its log end."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.why.causes import exit_of
from lowtide.guard.why.death_texts import find_death_texts
from lowtide.guard.why.evidence import Exit, LivingProcess, LogSpan, Machine, Session, TextLog
from lowtide.memory.meter import measure_tree
from lowtide.memory.proc_files import kib_fields, read_text, total_ram_bytes

_LAST_BYTES = 1 << 20
_OF_WATCH = "lowtide: "
_FIRST_PID_SPACE = "pid:[4026531836]"
"""The kernel's constant for the process ids of the machine itself; a container has another."""
_START_SLACK_SECONDS = 5.0


def look_at_machine(folder: Path | None) -> Machine:
    """Where the question is asked. `folder` is where the run writes, for what is free there."""
    root = Path("/")
    swap = kib_fields(read_text(root / "proc/meminfo") or "").get("SwapTotal")
    return Machine(
        now=time.time(),
        boot_at=_boot_at(),
        total_ram_bytes=total_ram_bytes(root),
        swap_bytes=swap,
        free_disk_bytes=_free_bytes(folder),
        own_process_ids=_in_container(),
    )


def find_living(pid: int, session: Session | None) -> LivingProcess | None:
    """The process if it is there, and no younger than the records about it: numbers are used again."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            began, name, state = process.create_time(), process.name(), process.status()
    except psutil.Error:
        return None
    known_at = session.started_at if session else None
    if known_at is not None and began > known_at + _START_SLACK_SECONDS:
        return None
    use = measure_tree(pid)
    return LivingProcess(
        pid=pid,
        name=name,
        state=state,
        private_bytes=use.private_bytes if use.process_count else None,
        process_count=max(1, use.process_count),
    )


def exit_of_zombie(pid: int) -> Exit | None:
    """How a process ended that its parent has not yet asked about; the kernel keeps it so long."""
    fields = (read_text(Path(f"/proc/{pid}/stat")) or "").rpartition(") ")[2].split()
    if len(fields) < 50 or fields[0] != "Z" or not fields[49].isdigit():
        return None
    status = int(fields[49])
    return exit_of(
        status >> 8 if not status & 0x7F else None, (status & 0x7F) or None, source="/proc"
    )


def is_lock_held(path: Path) -> bool:
    """Whether a run holds the lock of its folder. Asked for an instant; nothing is left held or written."""
    if os.name == "nt":
        return False
    import fcntl

    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except OSError:
        return False
    return False


def read_text_log(span: LogSpan) -> TextLog:
    """The last part of a log and what it tells. Only plain files: a pipe would be waited for."""
    name, path = span.path, Path(span.path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return TextLog(path=name, changed_at=None, problem="it is not a plain file")
        text = read_tail(span)
    except OSError as error:
        return TextLog(path=name, changed_at=None, problem=error.strerror or type(error).__name__)
    lines = [line for line in text.splitlines() if line.strip()]
    return TextLog(
        path=name,
        changed_at=found.st_mtime,
        texts=tuple(find_death_texts(text)),
        last_line=lines[-1].strip() if lines else "",
    )


def read_tail(span: LogSpan) -> str:
    """The last million bytes of it as text, without what `watch` itself said."""
    with Path(span.path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        end = size if span.ended_bytes is None else min(size, span.ended_bytes)
        begin = max(span.began_bytes if span.began_bytes <= end else 0, end - _LAST_BYTES)
        file.seek(begin)
        lines = file.read(end - begin).decode(errors="replace").splitlines(keepends=True)
    # Blank lines in their place: the numbers of all others stay.
    return "".join("\n" if line.startswith(_OF_WATCH) else line for line in lines)


def newest_timeline(folder: Path) -> Path:
    """The timeline that was written to last."""
    found = timelines(folder)
    if not found:
        raise UsageError(
            f"there is no timeline in {folder}",
            remedy="pass a RUN folder, a timeline, a log or `--pid N`; `lowtide watch` writes timelines",
        )
    return found[0]


def timelines(folder: Path) -> list[Path]:
    """All timelines of `watch`, the newest first."""
    try:
        found = [(path.stat().st_mtime, path) for path in folder.glob("*.jsonl") if path.is_file()]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def _boot_at() -> float | None:
    for line in (read_text(Path("/proc/stat")) or "").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def _in_container() -> bool:
    try:
        return os.fspath(Path("/proc/self/ns/pid").readlink()) != _FIRST_PID_SPACE
    except OSError:
        return False


def _free_bytes(folder: Path | None) -> int | None:
    if folder is None:
        return None
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
