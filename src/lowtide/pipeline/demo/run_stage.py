"""One stage in a process of its own: its peak is its own, and what it says is kept."""

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
from lowtide.pipeline.demo.stages import Stage
from lowtide.pipeline.folder import try_lock
from lowtide.pipeline.watch_run import ShouldStop
from lowtide.storage.publish import storage_errors

Look: TypeAlias = Callable[[float, str], None]
"""Told now and then: the seconds that a command has taken, and the last line that it said."""
_LOOK_SECONDS = 0.1
_LINE_BYTES = 400
ALIVE_NAME = "command"
_SAMPLE_SECONDS = 0.05
_SLOW_SECONDS = 0.2
"""Looking at a process with torch takes 10 ms of a core."""
_STOP_SECONDS = 30.0
"""For a command that was asked to stop; training saves a checkpoint first."""
_KINDS: dict[int, type[LowtideError]] = {
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
    """Run its command in the folder; what it says is kept in `work`. LowtideError if it fails."""
    began = time.monotonic()
    log, answer = work / f"{stage.key}.log", work / f"{stage.key}.json"
    with (
        storage_errors(log),
        log.open("wb") as talk,
        answer.open("wb") as said,
        _alive(work) as mark,
    ):
        child = subprocess.Popen(
            stage.command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=talk,
            pass_fds=[mark] if os.name == "posix" else [],
        )
        interval = _SLOW_SECONDS if stage.needs_torch else _SAMPLE_SECONDS
        with PeakMeter(child.pid, interval_seconds=interval) as meter:
            try:
                reason = _wait(
                    child, should_stop, lambda: look(time.monotonic() - began, _last_line(log))
                )
            finally:
                _end(child)
    if reason is not None:
        raise _stopped(stage, reason)
    if child.returncode:
        raise _failure(stage, child.returncode, log)
    return StageResult(
        seconds=time.monotonic() - began,
        peak_private_bytes=meter.peak.private_bytes,
        facts=_read_answer(answer),
    )


@contextmanager
def _alive(work: Path) -> Iterator[int]:
    """A locked file that the command inherits: locked as long as the command lives."""
    with (work / ALIVE_NAME).open("ab") as file:
        try_lock(file.fileno())
        yield file.fileno()


def wait_for_orphan(work: Path, should_stop: ShouldStop, waiting: Callable[[], None]) -> None:
    """Until the command of a demo that was killed has come to its end: two must not write the same files.

    `waiting` is told once, if there is one.
    """
    with storage_errors(work), (work / ALIVE_NAME).open("ab") as file:
        told = False
        while not try_lock(file.fileno()):
            if not told:
                waiting()
                told = True
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
    """Until it ends; why it was asked to stop, if it was."""
    while child.poll() is None:
        reason = should_stop()
        if reason is not None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):  # then it is ended
                child.wait(_STOP_SECONDS)
            return reason
        look()
        time.sleep(_LOOK_SECONDS)
    return None


def _last_line(log: Path) -> str:
    """What the command said last to people; nothing before its first words."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LINE_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return lines[-1].strip() if lines else ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """Nothing is left running, whatever happened here."""
    if child.poll() is None:
        child.kill()
        child.wait()


def _read_answer(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return facts


def _stopped(stage: Stage, reason: str) -> StoppedError:
    kind = InterruptedRun if reason == "interrupted" else StoppedError
    return kind(
        f"stopped during {stage.title!r}",
        remedy="run the same command again: it goes on with this stage",
    )


def _failure(stage: Stage, code: int, log: Path) -> LowtideError:
    """What the command said, in its own words."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    problem = next((line[7:] for line in reversed(lines) if line.startswith("error: ")), None)
    remedy = next((line[6:] for line in reversed(lines) if line.startswith("hint: ")), None)
    return _KINDS.get(code, LowtideError)(
        f"the stage {stage.title!r} failed: {problem or _ending(code)}",
        remedy=remedy or f"read {log}, and run the same command again",
    )


def _ending(code: int) -> str:
    """Of a command that said nothing."""
    if code < 0:
        return f"signal {-code} killed it; `lowtide why --last` may know more"
    return f"exit code {code}"
