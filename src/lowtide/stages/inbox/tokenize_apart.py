"""One file into shards, in a process of its own: its memory goes back whole, and what kills it kills no run."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import msgspec

from lowtide.child import python_command
from lowtide.errors import (
    DataError,
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    SharedFaultError,
    StoppedError,
    StorageError,
    UsageError,
    VerificationError,
)
from lowtide.events import Listener, Note
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import hold_lock
from lowtide.stages.inbox.tokenize_child import Report, Request
from lowtide.units import printable

if TYPE_CHECKING:
    from lowtide.training.loop import WhyStop

_LOOK_SECONDS = 0.1
_SECONDS_TO_STOP = 60.0
_SECONDS_TO_LEAVE = 30.0
"""How long an orphaned child may take to notice that its parent died."""
_LAST_OF_STDERR = 2000
_KINDS: dict[str, type[LowtideError]] = {
    kind.__name__: kind
    for kind in (
        StorageError,
        DoesNotFitError,
        UsageError,
        VerificationError,
        DataError,
        SharedFaultError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a file cannot be learnt from."""

    reason: str


_Lines: TypeAlias = queue.SimpleQueue[str]


def tokenize_apart(
    request: Request,
    *,
    why_stop: Callable[[], WhyStop],
    listen: Listener,
    environment: Mapping[str, str] | None,
) -> Refused | None:
    """Make the shards, or go on with them; None when they stand.

    StoppedError when a stop was asked for, of the run or of the child alone; other errors for what is not the
    file's fault: a disk or a machine that says no, a tokenizer or a template, a child that dies. One that is
    killed is started once more. It has our own environment where none is given.
    """
    _wait_for_the_last(Path(request.out))
    for _ in range(2):
        child = _Child(request, environment)
        try:
            child.watch(why_stop, listen)
        finally:
            child.end()
        if child.code >= 0:
            break
    return _judge(child, printable(Path(request.path).name))


class _Child:
    """A process at work. It goes when its standard input is closed, by us or by our end."""

    def __init__(self, request: Request, environment: Mapping[str, str] | None) -> None:
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            python_command("-m", "lowtide.stages.inbox.tokenize_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            # Arrow's own allocator keeps what it frees; it asks once, when it is loaded.
            env=environment and {**environment, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        assert self._process.stdin is not None, "as asked for"
        assert self._process.stdout is not None, "as asked for"
        self._lines: _Lines = queue.SimpleQueue()
        self._reader = threading.Thread(
            target=_pass_on, args=(self._process.stdout, self._lines), daemon=True
        )
        self._reader.start()
        with suppress(BrokenPipeError):  # it died at once: its code says so
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        self.report: Report | None = None
        self.complaint = ""
        self.stopped: WhyStop = None
        self.code = 0

    def watch(self, why_stop: Callable[[], WhyStop], listen: Listener) -> None:
        """Until it ends. Who asks for a stop is obeyed: the child seals what it has, and leaves."""
        deadline = None
        while self._reader.is_alive() or not self._lines.empty():
            self._reader.join(_LOOK_SECONDS)
            self._hear(listen)
            if self.stopped is None:
                self.stopped = why_stop()
                if self.stopped is not None:
                    self._process.terminate()
                    deadline = time.monotonic() + _SECONDS_TO_STOP
            elif deadline is not None and time.monotonic() > deadline:
                self._process.kill()

    def end(self) -> None:
        """It is gone afterwards, whatever happened."""
        process = self._process
        assert process.stdin is not None, "as asked for"
        assert process.stdout is not None, "as asked for"
        with suppress(OSError):
            process.stdin.close()
        self.code = process.wait()
        self._reader.join()
        process.stdout.close()
        self._complaints.seek(0)
        self.complaint = self._complaints.read()[-_LAST_OF_STDERR:].strip()
        self._complaints.close()

    def _hear(self, listen: Listener) -> None:
        with suppress(queue.Empty):
            while True:
                said = json.loads(self._lines.get_nowait())
                if "note" in said:
                    note = Note(**said["note"])
                    listen(replace(note, text=printable(note.text)))
                else:
                    self.report = msgspec.convert(said["report"], Report)


def _pass_on(pipe: IO[bytes], lines: _Lines) -> None:
    for line in pipe:
        if line.startswith(b"{") and line.endswith(b"}\n"):  # a library may print, a kill tears
            lines.put(line.decode(errors="replace"))


def _judge(child: _Child, name: str) -> Refused | None:
    report = child.report
    stopped = report is not None and report.kind in ("StoppedError", "InterruptedRun")
    if child.stopped is not None or stopped:
        sentence = child.stopped[1] if child.stopped else report.problem if report else ""
        interrupted = child.stopped is not None and child.stopped[0] == "interrupted"
        raise _stopped(sentence, interrupted=interrupted or _is_interrupted(report))
    if report is None:
        raise _died(child, name)
    if report.ends_run:
        kind = _KINDS.get(report.kind, LowtideError)
        raise kind(report.problem, remedy=report.remedy)
    return Refused(reason=report.problem) if report.kind else None


def _died(child: _Child, name: str) -> LowtideError:
    """Without a report it is not known that the file is to blame, so it stays taken."""
    said = printable(child.complaint.splitlines()[-1]) if child.complaint else "without a word"
    how = f"was killed twice (signal {-child.code})" if child.code < 0 else f"ended ({child.code})"
    remedy = "mend what it complains of, and run the same command again: it goes on with that file"
    if child.code < 0 or "MemoryError" in said:
        remedy = (
            "if memory ran out, end other programs or pass a larger `--memory`; the same command goes on with "
            "that file, and without it when it is taken out of the inbox"
        )
    return LowtideError(f"the process that tokenized {name} {how}: {said}", remedy=remedy)


def _is_interrupted(report: Report | None) -> bool:
    return report is not None and report.kind == "InterruptedRun"


def _stopped(sentence: str, *, interrupted: bool) -> StoppedError:
    kind = InterruptedRun if interrupted else StoppedError
    return kind(
        f"stopped while a file was tokenized: {sentence}",
        remedy="run the same command again to go on",
    )


def _wait_for_the_last(out: Path) -> None:
    """The child of a run that was killed may still be on its way out."""
    until = time.monotonic() + _SECONDS_TO_LEAVE
    while (out / WORK_FOLDER).is_dir():
        try:
            with hold_lock(out):
                return
        except UsageError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS / 2)
