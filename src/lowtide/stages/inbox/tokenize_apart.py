"""One file into shards, in a process of its own: its memory goes back whole, and what kills it kills no run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lowtide.child import WorkingChild
from lowtide.errors import LowtideError, UsageError, error_of_kind
from lowtide.events import Listener, Note, Stop
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import hold_lock
from lowtide.stages.inbox.tokenize_child import Report, Request
from lowtide.storage.decode_json import convert_json
from lowtide.units import printable

_SECONDS_TO_STOP = 60.0
_SECONDS_TO_LEAVE = 30.0
"""How long an orphaned child may take to notice that its parent died."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a file cannot be trained on."""

    reason: str


@dataclass(slots=True)
class _Attempt:
    """What became of one process: its report if it made one, and why it was asked to stop if it was."""

    report: Report | None = None
    stop: Stop | None = None
    code: int = 0
    complaint: str = ""


def tokenize_apart(
    request: Request,
    *,
    why_stop: Callable[[], Stop | None],
    listen: Listener,
    environment: Mapping[str, str] | None,
) -> Refused | None:
    """Make the shards, or resume making them; None when they stand.

    StoppedError when a stop was asked for, of the run or of the child alone; other errors for what is not the
    file's fault: a disk or a machine that says no, a tokenizer or a template, a child that dies. One that is
    killed is started once more. It has our own environment where none is given.
    """
    _wait_for_orphan(Path(request.out))
    for _ in range(2):
        attempt = _try(request, why_stop, listen, environment)
        if attempt.code >= 0 or attempt.stop is not None:
            break
    report = attempt.report
    if attempt.stop is not None:
        raise attempt.stop.error("while a file was tokenized")
    if report is None:
        raise _died(attempt, printable(Path(request.path).name))
    if report.ends_run:
        raise error_of_kind(report.kind, report.problem, remedy=report.remedy)
    return Refused(reason=report.problem) if report.kind else None


def _try(
    request: Request,
    why_stop: Callable[[], Stop | None],
    listen: Listener,
    environment: Mapping[str, str] | None,
) -> _Attempt:
    """A child at work until it ends. When a stop is asked for, it seals what it has, and leaves."""
    # Arrow's own allocator keeps what it frees; it asks once, when it is loaded.
    environment = environment and {**environment, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    attempt, deadline = _Attempt(), None
    child = WorkingChild(
        "lowtide.stages.inbox.tokenize_child", msgspec.json.encode(request), environment
    )
    try:
        for message in child.messages():
            match message:
                case {"note": told}:
                    note = convert_json(told, Note)
                    listen(replace(note, text=printable(note.text)))
                case {"report": told}:
                    attempt.report = convert_json(told, Report)
            if attempt.stop is None:
                attempt.stop = why_stop()
                if attempt.stop is not None:
                    child.process.terminate()
                    deadline = time.monotonic() + _SECONDS_TO_STOP
            elif deadline is not None and time.monotonic() > deadline:
                child.process.kill()
    finally:
        attempt.code, attempt.complaint = child.end()
    return attempt


def _died(attempt: _Attempt, name: str) -> LowtideError:
    """Without a report it is not known that the file is to blame, so it stays taken."""
    complaint, code = attempt.complaint, attempt.code
    said = printable(complaint.splitlines()[-1]) if complaint else "without a word"
    how = f"was killed twice (signal {-code})" if code < 0 else f"ended ({code})"
    remedy = "mend what it complains of, and run the same command again: it resumes with that file"
    if code < 0 or "MemoryError" in said:
        remedy = (
            "if memory ran out, end other programs or pass a larger `--memory`; the same command resumes with "
            "that file, and without it when it is taken out of the inbox"
        )
    return LowtideError(f"the process that tokenized {name} {how}: {said}", remedy=remedy)


def _wait_for_orphan(out: Path) -> None:
    """The child of a run that was killed may still be on its way out."""
    until = time.monotonic() + _SECONDS_TO_LEAVE
    while (out / WORK_FOLDER).is_dir():
        try:
            with hold_lock(out):
                return
        except UsageError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS)
