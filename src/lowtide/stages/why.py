"""Why did it die? Gathers what is known about a run, a timeline, a log or a process, and has it judged.

Everything is read, nothing is changed. `guard/why` judges what was gathered here.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.job import stat_fields
from lowtide.guard.why.allocations import read_dimensions
from lowtide.guard.why.death_texts import find_death_texts
from lowtide.guard.why.evidence import (
    Evidence,
    Exit,
    LivingProcess,
    MachineFacts,
    TextLog,
    exit_of,
)
from lowtide.guard.why.kernel_log import read_kernel_log
from lowtide.guard.why.verdict import Verdict, judge
from lowtide.journal import LOG_NAME, LogSpan, Session, is_journal, read_session
from lowtide.memory.meter import measure_tree
from lowtide.memory.proc_files import kib_fields, machine_memory, read_text
from lowtide.stages.watch_settings import timelines_folder
from lowtide.storage.publish import storage_errors

_MOST_TIMELINES = 200
_NOT_BESIDE = (
    "the timeline names it, and it is a link or lies elsewhere; pass it with `--log` if it is right"
)
_WHAT_TO_PASS = "pass a RUN folder, a timeline of `lowtide watch` or a log file"
_LAST_BYTES = 1 << 20
_OF_WATCH = "lowtide: "
_MACHINE_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's constant for the process ids of the machine itself; a container has another."""
_START_SLACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user asks about: a path, a process, or with neither the newest timeline."""

    timelines: Path
    """The folder where `watch` keeps its timelines."""
    target: Path | None = None
    pid: int | None = None
    log: Path | None = None
    exit_code: int | None = None
    kernel_log: Path | None = None


def explain(question: Question) -> Verdict:
    """The verdict on one death, or on a run that lives or has finished."""
    return judge(gather_evidence(question))


def explain_run(run: Path, environment: Mapping[str, str]) -> Verdict:
    """The verdict on a run, with the timelines where `watch` keeps them."""
    return explain(Question(timelines=timelines_folder(environment), target=run))


def gather_evidence(question: Question) -> Evidence:
    """Everything that can be read about it."""
    asked = (question.target, question.pid, question.log, question.exit_code)
    if all(one is None for one in asked):
        question = replace(question, target=newest_timeline(question.timelines))
    journal, logs, folder = _find_files(question)
    if journal is None and question.pid is not None:
        journal = _timeline_of(question.pid, question.timelines)
    session = None
    if journal is not None:
        with storage_errors(journal, doing="read"):
            session = read_session(journal)
    pid = question.pid if question.pid is not None else session.pid if session else None
    spans = [LogSpan(path=os.fsdecode(path)) for path in logs]
    unread: list[LogSpan] = []
    for span in session.logs if session else ():
        if span not in spans and journal is not None:
            (spans if _may_read(span, journal, question) else unread).append(span)
    read = [_read_text_log(span) for span in spans]
    # Batch and context as a log names them, or the command and settings, which count more.
    named = [" ".join(session.command), session.settings] if session else []
    evidence = Evidence(
        about=_about(question, session),
        machine=_look_at_machine(folder),
        pid=pid,
        session=session,
        exit=None
        if question.exit_code is None
        else exit_of(question.exit_code, None, source="given"),
        logs=(
            *(log for log, _ in read),
            *(TextLog(path=span.path, changed_at=None, problem=_NOT_BESIDE) for span in unread),
        ),
        dimensions=read_dimensions(*(text for _, text in read), *named),
    )
    if question.exit_code is None:  # with an exit code it is known to be dead
        evidence = _look_for_life(evidence, folder)
    kernel = read_kernel_log(since=evidence.started_at, saved=question.kernel_log)
    return replace(evidence, kernel=kernel)


def newest_timeline(folder: Path) -> Path:
    """The timeline that was written to last."""
    found = _timelines(folder)
    if not found:
        raise UsageError(
            f"there is no timeline in {folder}",
            remedy="pass a RUN folder, a timeline, a log or `--pid N`; `lowtide watch` writes timelines",
        )
    return found[0]


def _timelines(folder: Path) -> list[Path]:
    """All timelines of `watch`, the newest first."""
    try:
        found = [(path.stat().st_mtime, path) for path in folder.glob("*.jsonl") if path.is_file()]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def _timeline_of(pid: int, folder: Path) -> Path | None:
    """The newest timeline that names this process."""
    for path in _timelines(folder)[:_MOST_TIMELINES]:
        try:
            if is_journal(path) and pid in read_session(path).pids:
                return path
        except OSError:
            continue  # it may be removed meanwhile
    return None


def _find_files(question: Question) -> tuple[Path | None, list[Path], Path | None]:
    """The journal, the logs, and the folder that the run writes into."""
    logs = [question.log] if question.log is not None else []
    for path, remedy in (
        (question.target, _WHAT_TO_PASS),
        (question.log, "pass as `--log` the file that the program's output went to"),
        (question.kernel_log, "save it with `dmesg > FILE`, and pass that as `--kernel-log`"),
    ):
        if path is not None and not path.exists():
            raise UsageError(f"{path} does not exist", remedy=remedy)
    target = question.target
    if target is None:
        return None, logs, question.log.parent if question.log else None
    if target.is_dir():
        if not (target / LOG_NAME).is_file():
            raise UsageError(
                f"{target} holds no {LOG_NAME}: it is not a run of lowtide", remedy=_WHAT_TO_PASS
            )
        return target / LOG_NAME, logs, target
    if not target.is_file():
        raise UsageError(
            f"{target} is not a plain file", remedy="save it in a file first, and pass that"
        )
    with storage_errors(target, doing="read"):
        if is_journal(target):
            return target, logs, target.parent
    return None, [target, *logs], target.parent


def _may_read(span: LogSpan, journal: Path, question: Question) -> bool:
    """Whether a file that the journal names is read. A journal comes from anywhere, and could name any file.

    A file beside the journal or below it, neither hidden nor a link, came with it; a file with a second name
    may be anybody's. Elsewhere a file counts if `watch` noted it in its own folder for this user. Both must
    have the journal's owner. Or the user names the file as well.
    """
    path, place = Path(span.path), journal.resolve()
    try:
        if not path.exists():
            return True  # nothing of it can be shown, and the evidence says so
        if question.log is not None and path.samefile(question.log):
            return True
        found, owner = path.resolve(), place.stat().st_uid
        if path.stat().st_uid != owner:
            return False
        has_other_names = path.stat().st_nlink > 1 or place.stat().st_nlink > 1
    except (OSError, RuntimeError):
        return False
    us = os.geteuid() if hasattr(os, "geteuid") else owner
    if owner == us and place.parent == question.timelines.resolve():
        return True
    if has_other_names or not found.is_relative_to(place.parent):
        return False
    return not any(part.startswith(".") for part in found.relative_to(place.parent).parts)


def _read_text_log(span: LogSpan) -> tuple[TextLog, str]:
    """The death texts of a log, and its last part. Only plain files: a pipe would be waited for."""
    name, path = span.path, Path(span.path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return TextLog(path=name, changed_at=None, problem="it is not a plain file"), ""
        text = _read_tail(span)
    except OSError as error:
        problem = error.strerror or type(error).__name__
        return TextLog(path=name, changed_at=None, problem=problem), ""
    lines = [line for line in text.splitlines() if line.strip()]
    log = TextLog(
        path=name,
        changed_at=found.st_mtime,
        texts=tuple(find_death_texts(text)),
        last_line=lines[-1].strip() if lines else "",
    )
    return log, text


def _read_tail(span: LogSpan) -> str:
    """The last million bytes of it as text, without what `watch` itself printed."""
    with Path(span.path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        end = size if span.ended_bytes is None else min(size, span.ended_bytes)
        begin = max(span.began_bytes if span.began_bytes <= end else 0, end - _LAST_BYTES)
        file.seek(begin)
        lines = file.read(end - begin).decode(errors="replace").splitlines(keepends=True)
    # Blank lines in their place: the numbers of all others stay.
    return "".join("\n" if line.startswith(_OF_WATCH) else line for line in lines)


def _look_for_life(evidence: Evidence, folder: Path | None) -> Evidence:
    """Whether the process still exists. A run that recorded its end is not looked for."""
    session = evidence.session
    if session is not None and session.end is not None:
        return evidence
    living = _find_living(evidence.pid, session) if evidence.pid is not None else None
    locked = False
    if session is not None and session.kind != "watch" and folder is not None:
        # Imports numpy, which other questions do without.
        from lowtide.shards.layout import WORK_FOLDER
        from lowtide.stages.folder import LOCK_NAME

        locked = _is_lock_held(folder / WORK_FOLDER / LOCK_NAME)
        if not locked:
            living = None  # numbers are used again, and folders are copied: the lock decides
    if living is not None and living.state == "zombie" and evidence.exit is None:
        return replace(evidence, living=living, exit=_exit_of_zombie(living.pid))
    return replace(evidence, living=living, lock_held=locked)


def _find_living(pid: int, session: Session | None) -> LivingProcess | None:
    """The process if it exists and is no younger than the records about it: numbers are used again."""
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
    return LivingProcess(pid=pid, name=name, state=state, use=measure_tree(pid))


def _exit_of_zombie(pid: int) -> Exit | None:
    """How a process ended whose parent has not yet asked; the kernel keeps it until then."""
    fields = stat_fields(pid)
    if len(fields) < 50 or fields[0] != "Z" or not fields[49].isdigit():
        return None
    status = int(fields[49])
    number = status & 0x7F
    return exit_of(None if number else status >> 8, number or None, source="/proc")


def _is_lock_held(path: Path) -> bool:
    """Whether a run holds the lock of its folder. Tried for an instant; nothing stays held or written."""
    if os.name == "nt":
        return False
    import fcntl

    try:
        with path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _look_at_machine(folder: Path | None) -> MachineFacts:
    """This machine now; `folder` is where the run writes, for the free space there."""
    boots = [
        line.split()[1]
        for line in (read_text(Path("/proc/stat")) or "").splitlines()
        if line.startswith("btime ")
    ]
    try:
        free_bytes = None if folder is None else shutil.disk_usage(folder).free
    except OSError:
        free_bytes = None
    try:
        namespace = os.fspath(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = _MACHINE_PID_NAMESPACE
    return MachineFacts(
        now=time.time(),
        boot_at=float(boots[0]) if boots else None,
        total_ram_bytes=machine_memory()[1],
        swap_bytes=kib_fields(read_text(Path("/proc/meminfo")) or "").get("SwapTotal"),
        free_disk_bytes=free_bytes,
        own_process_ids=namespace != _MACHINE_PID_NAMESPACE,
    )


def _about(question: Question, session: Session | None) -> str:
    names = []
    path = question.target or question.log
    if path is not None:
        names.append(os.fsdecode(path))
    elif session is not None:
        names.append(session.path)
    if question.pid is not None:
        names.append(f"process {question.pid}")
    if session is not None and session.command:
        names.append(" ".join(session.command)[:200])
    elif session is not None and session.kind:
        names.append(f"lowtide {session.kind}")
    return ", ".join(names) or f"a process that ended with exit code {question.exit_code}"
