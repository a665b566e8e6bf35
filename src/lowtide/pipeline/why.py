"""Why did it die? Finds what is known about a run, a timeline, a log or a process, and judges it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.why.causes import exit_of
from lowtide.guard.why.evidence import Evidence, LogSpan, Session, TextLog
from lowtide.guard.why.gather import (
    exit_of_zombie,
    find_living,
    is_lock_held,
    look_at_machine,
    newest_timeline,
    read_tail,
    read_text_log,
    timelines,
)
from lowtide.guard.why.read_kernel_log import read_kernel_log
from lowtide.guard.why.read_session import is_journal, read_session
from lowtide.guard.why.recognise_tensors import read_dimensions
from lowtide.guard.why.verdict import Verdict, judge
from lowtide.journal import LOG_NAME
from lowtide.storage.publish import storage_errors

_MOST_TIMELINES = 200
_NOT_BESIDE = (
    "the timeline names it, and it is a link or lies elsewhere; pass it with `--log` if it is right"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about: a path, a process, or with neither the newest timeline."""

    timelines: Path
    """The folder where `watch` keeps them."""
    target: Path | None = None
    pid: int | None = None
    log: Path | None = None
    exit_code: int | None = None
    kernel_log: Path | None = None

    @property
    def names_nothing(self) -> bool:
        return all(one is None for one in (self.target, self.pid, self.log, self.exit_code))


def explain(question: Question) -> Verdict:
    """The verdict on one death. Reads, and changes nothing."""
    return judge(gather_evidence(question))


def gather_evidence(question: Question) -> Evidence:
    """Everything that can be read about it."""
    if question.names_nothing:
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
    named = [span for span in (session.logs if session else ()) if span not in spans]
    if journal is not None:
        trusted = [span for span in named if _may_read(span, journal, question)]
        spans, named = spans + trusted, [span for span in named if span not in trusted]
    machine = look_at_machine(folder)
    evidence = Evidence(
        about=_about(question, session),
        machine=machine,
        pid=pid,
        session=session,
        exit=None
        if question.exit_code is None
        else exit_of(question.exit_code, None, source="as told"),
        logs=(
            *(read_text_log(span) for span in spans),
            *(TextLog(path=span.path, changed_at=None, problem=_NOT_BESIDE) for span in named),
        ),
        dimensions=read_dimensions(*_texts_with_settings(session, spans)),
    )
    if question.exit_code is None:  # else it is known to be dead
        evidence = _look_for_life(evidence, folder)
    kernel = read_kernel_log(since=evidence.started_at, saved=question.kernel_log)
    return replace(evidence, kernel=kernel)


def _find_files(question: Question) -> tuple[Path | None, list[Path], Path | None]:
    """The journal, the logs, and the folder that the run writes into."""
    logs = [question.log] if question.log is not None else []
    for path, remedy in (
        (question.target, "pass a RUN folder, a timeline of `lowtide watch` or a log file"),
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
                f"{target} holds no {LOG_NAME}: it is not a run of lowtide",
                remedy="pass a RUN folder, a timeline of `lowtide watch` or a log file",
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


def _timeline_of(pid: int, folder: Path) -> Path | None:
    """The newest timeline that tells of this process."""
    for path in timelines(folder)[:_MOST_TIMELINES]:
        try:
            if is_journal(path) and pid in read_session(path).pids:
                return path
        except OSError:
            continue  # it may be removed meanwhile
    return None


def _may_read(span: LogSpan, journal: Path, question: Question) -> bool:
    """Whether a file that the journal names is read. A journal comes from anywhere, and could name any file.

    What lies beside it or below, and is neither hidden nor a link, came with it; a file with a second name may
    be anybody's. Elsewhere counts what `watch` noted in its own folder for this very user. Both must have the
    journal's owner. Or the user names the file as well.
    """
    path, place = Path(span.path), journal.resolve()
    try:
        if not path.exists():
            return True  # nothing can be shown of it, and that is told
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


def _look_for_life(evidence: Evidence, folder: Path | None) -> Evidence:
    """Is it still there? A run that wrote its end is not asked about."""
    session = evidence.session
    if session is not None and session.end is not None:
        return evidence
    living = find_living(evidence.pid, session) if evidence.pid is not None else None
    locked = False
    of_ours = session is not None and session.kind != "watch" and folder is not None
    if of_ours and folder is not None:
        # Brings numpy along, which other questions do without.
        from lowtide.pipeline.folder import LOCK_NAME
        from lowtide.shards.layout import WORK_FOLDER

        locked = is_lock_held(folder / WORK_FOLDER / LOCK_NAME)
    if of_ours and not locked:
        living = None  # numbers are used again, and folders are copied: the lock decides
    if living is not None and living.state == "zombie" and evidence.exit is None:
        return replace(evidence, living=living, exit=exit_of_zombie(living.pid))
    return replace(evidence, living=living, lock_held=locked)


def _texts_with_settings(session: Session | None, spans: list[LogSpan]) -> list[str]:
    """Where batch and context may be named: first the log, then what was asked for, which counts more."""
    texts = []
    for span in spans:
        try:
            texts.append(read_tail(span) if Path(span.path).is_file() else "")
        except OSError:
            continue
    if session is not None:
        texts += [" ".join(session.command), session.settings]
    return texts


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
