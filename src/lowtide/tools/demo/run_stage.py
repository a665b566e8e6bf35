"""One stage in a process of its own, so that its peak is its own. What it prints is kept."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from lowtide.errors import (
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    StoppedError,
    UsageError,
    VerificationError,
)
from lowtide.memory.meter import PeakMeter
from lowtide.stages.folder import try_lock
from lowtide.stages.watch_run import ShouldStop
from lowtide.storage.publish import storage_errors
from lowtide.tools.demo.stages import Stage

Look: TypeAlias = Callable[[float, str], None]
"""Called now and then with the seconds that a command has taken, and the last line that it printed."""
_LOOK_SECONDS = 0.1
_LINE_BYTES = 400
ALIVE_NAME = "command"
_SAMPLE_SECONDS = 0.05
_SLOW_SECONDS = 0.2
"""Interval for a process with torch: reading its memory takes 10 ms of a core."""
_STOP_SECONDS = 30.0
"""How long a command that was asked to stop may take: training saves a checkpoint first."""
_ERRORS: dict[int, type[LowtideError]] = {
    2: UsageError,
    3: DoesNotFitError,
    4: VerificationError,
    75: StoppedError,
    130: InterruptedRun,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """A stage that came to its end."""

    seconds: float
    peak_private_bytes: int
    facts: dict[str, Any]


def run_stage(
    stage: Stage,
    folder: Path,
    work: Path,
    *,
    environment: Mapping[str, str],
    should_stop: ShouldStop,
    look: Look,
) -> StageResult:
    """Run its command in the folder; what it prints is kept in `work`. Raises LowtideError if it fails."""
    began = time.monotonic()
    log, answer = work / f"{stage.key}.log", work / f"{stage.key}.json"
    with (
        storage_errors(log),
        log.open("wb") as messages,
        answer.open("wb") as output,
        _alive(work) as mark,
    ):
        child = subprocess.Popen(
            stage.command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages,
            pass_fds=[mark] if os.name == "posix" else [],
        )
        interval = _SLOW_SECONDS if stage.needs_torch else _SAMPLE_SECONDS
        with PeakMeter(child.pid, interval_seconds=interval) as meter:
            try:
                reason = _wait(
                    child, should_stop, lambda: look(time.monotonic() - began, _last_line(log))
                )
            finally:  # nothing is left running, whatever happened here
                if child.poll() is None:
                    child.kill()
                    child.wait()
    if reason is not None:
        kind = InterruptedRun if reason == "interrupted" else StoppedError
        raise kind(
            f"stopped during {stage.title!r}",
            remedy="run the same command again: it resumes with this stage",
        )
    if child.returncode:
        raise _failure(stage, child.returncode, log)
    facts = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    return StageResult(
        seconds=time.monotonic() - began,
        peak_private_bytes=meter.peak.private_bytes,
        facts=facts,
    )


@contextmanager
def _alive(work: Path) -> Iterator[int]:
    """A locked file that the command inherits, so that it stays locked as long as the command lives."""
    with (work / ALIVE_NAME).open("ab") as file:
        try_lock(file.fileno())
        yield file.fileno()


def wait_for_orphan(work: Path, should_stop: ShouldStop, waiting: Callable[[], None]) -> None:
    """Wait for the command of a demo that was killed: two must not write the same files.

    `waiting` is called once, if there is such a command.
    """
    with storage_errors(work), (work / ALIVE_NAME).open("ab") as file:
        is_first = True
        while not try_lock(file.fileno()):
            if is_first:
                waiting()
                is_first = False
            reason = should_stop()
            if reason is not None:
                raise StoppedError(
                    "stopped while a command of an earlier start was still running",
                    remedy="run the same command again later",
                )
            time.sleep(_LOOK_SECONDS)


def _wait(
    child: subprocess.Popen[bytes], should_stop: ShouldStop, look: Callable[[], None]
) -> str | None:
    """Wait for its end; return why it was asked to stop, if it was."""
    while child.poll() is None:
        reason = should_stop()
        if reason is not None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):  # then the caller kills it
                child.wait(_STOP_SECONDS)
            return reason
        look()
        time.sleep(_LOOK_SECONDS)
    return None


def _last_line(log: Path) -> str:
    """The last line that the command printed for people; empty before the first."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LINE_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return lines[-1].strip() if lines else ""


def _failure(stage: Stage, code: int, log: Path) -> LowtideError:
    """The command's own error and hint, or how it ended if it printed none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    problem = next((line[7:] for line in reversed(lines) if line.startswith("error: ")), None)
    remedy = next((line[6:] for line in reversed(lines) if line.startswith("hint: ")), None)
    ending = f"exit code {code}"
    if code < 0:
        ending = f"signal {-code} killed it; `lowtide why --last` may know more"
    return _ERRORS.get(code, LowtideError)(
        f"the stage {stage.title!r} failed: {problem or ending}",
        remedy=remedy or f"read {log}, and run the same command again",
    )
