"""Run one way alone in a box: its memory over time, how far it came, and how it ended.

If no cgroup can be made, memory is sampled, and a way above the limit is killed. A limit on data backs that up,
against growth between two samples.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from lowtide.child import kill_session, python_command
from lowtide.errors import DoesNotFitError
from lowtide.guard.box import Box
from lowtide.memory.meter import measure_tree
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.tools.compare.stops import refuse_to_go_on

Ending: TypeAlias = Literal["finished", "died", "refused", "failed", "too slow"]
Look: TypeAlias = Callable[["Moment"], None]

_INTERVAL_SECONDS, _LONGEST_INTERVAL_SECONDS = 0.05, 0.2
_COST_TIMES = 6
"""A large process tree is measured less often: measuring takes time that the way may need."""
_DEATH_SECONDS = 1.0
"""A process that is being killed gives back its memory; samples of that are not drawn."""
_DATA_TIMES = 2
"""The limit on data is larger than the sampled one: it also counts memory that is reserved and never used."""
_LAST_OF_STDERR = 4000
_MOST_POINTS = 480


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxedJob:
    """A command, and the memory and time it may take."""

    command: list[str]
    work: Path
    """Folder in which it runs and its output is kept."""
    environment: Mapping[str, str]
    limit_bytes: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a way while it runs."""

    seconds: float
    private_bytes: int
    share: float | None
    """Share of the text that is done; None if the way does not report it."""
    stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """How a run in a box ended, and what it took; all of it measured."""

    ending: Ending
    seconds: float
    peak_private_bytes: int
    peak_charged_bytes: int | None
    """The kernel's own figure, with page cache; None without a cgroup."""
    share: float | None
    stage: str
    tokens: int | None
    points: tuple[tuple[float, int], ...]
    """Seconds and private bytes."""
    complaint: str
    """The last line it wrote to stderr, if it failed."""

    @property
    def in_words(self) -> str:
        """`finished`, or how and where it ended."""
        share = "" if self.share is None else f" after {math.floor(100 * self.share)} %"
        stage = f", {self.stage}" if self.stage and self.ending != "finished" else ""
        return {
            "finished": "finished",
            "died": f"died at the limit{share}{stage}",
            "refused": f"refused beforehand: {self.complaint}",
            "failed": f"failed{share}{stage}: {self.complaint}",
            "too slow": f"too slow, ended{share}{stage}",
        }[self.ending]


class ProgressFile:
    """Adds up the progress that a way appends to its file; a way without such a file has none."""

    def __init__(self, path: Path, text_bytes: int) -> None:
        self._path = path
        self._text_bytes = text_bytes
        self._done_bytes: int | None = None
        self._position = 0
        self.stage = ""
        self.tokens: int | None = None

    @property
    def share(self) -> float | None:
        if self._done_bytes is None:
            return None
        return min(1.0, self._done_bytes / max(1, self._text_bytes))

    def read_on(self) -> None:
        """Read the whole lines that are new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                lines = file.read().rpartition(b"\n")[0]
        except OSError:
            return
        self._position += len(lines) + bool(lines)
        for line in lines.decode(errors="replace").splitlines():
            self._take(line)

    def _take(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        if kind == "=":
            self.stage = rest
        elif kind == "#" and rest.isdigit():
            self.tokens = int(rest)
        elif kind.isdigit():
            self._done_bytes = (self._done_bytes or 0) + int(kind)


@dataclass(slots=True, kw_only=True)
class _BoxedRun:
    """A way that runs, and what was measured so far."""

    job: BoxedJob
    box: Box | None
    progress: ProgressFile
    started: float
    points: list[tuple[float, int]] = field(default_factory=list)
    peak_bytes: int = 0
    over_limit: bool = False
    too_slow: bool = False

    def measure(self, pid: int) -> Moment:
        """Measure once. One killed process makes a way dead, even if its others wait for that one for ever."""
        seconds, used = time.monotonic() - self.started, measure_tree(pid).private_bytes
        self.progress.read_on()
        if used:
            self.points.append((seconds, used))
            self.peak_bytes = max(self.peak_bytes, used)
        self.too_slow = seconds > self.job.timeout_seconds
        self.over_limit = self.box.oom_kills() > 0 if self.box else used > self.job.limit_bytes
        share, stage = self.progress.share, self.progress.stage
        return Moment(seconds=seconds, private_bytes=used, share=share, stage=stage)

    def result(self, code: int, seconds: float) -> Boxed:
        """How it ended: by its exit code, and by what was measured before."""
        complaint = _last_line(self.job.work / "stderr")
        was_killed = self.over_limit or (self.box is not None and self.box.oom_kills() > 0)
        ending: Ending = "finished" if code == 0 else "failed"
        if was_killed or complaint.startswith("MemoryError"):
            ending = "died"
        elif self.too_slow:
            ending = "too slow"
        elif code == DoesNotFitError.exit_code:
            ending = "refused"
        return Boxed(
            ending=ending,
            seconds=seconds,
            peak_private_bytes=self.peak_bytes,
            peak_charged_bytes=self.box.peak_charged_bytes() if self.box else None,
            share=1.0 if ending == "finished" else self.progress.share,
            stage=self.progress.stage,
            tokens=self.progress.tokens,
            points=thin_out(_up_to_death(self.points) if ending == "died" else self.points),
            complaint=complaint if ending in ("failed", "refused") else "",
        )


def run_boxed(
    job: BoxedJob,
    box: Box | None,
    progress: ProgressFile,
    *,
    should_stop: ShouldStop = never_stop,
    look: Look = lambda _moment: None,
) -> Boxed:
    """Run a way until it ends or must be ended; none of its processes is alive afterwards."""
    with (job.work / "stderr").open("wb") as messages, (job.work / "stdout").open("wb") as output:
        run = _BoxedRun(job=job, box=box, progress=progress, started=time.monotonic())
        process = subprocess.Popen(
            _command_in_box(job, box),
            cwd=job.work,
            env=job.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not (run.over_limit or run.too_slow):
                refuse_to_go_on(should_stop())
                began = time.monotonic()
                look(run.measure(process.pid))
                pause = max(_INTERVAL_SECONDS, _COST_TIMES * (time.monotonic() - began))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=min(pause, _LONGEST_INTERVAL_SECONDS))
        finally:
            _kill(process, box)
        seconds = time.monotonic() - run.started
    progress.read_on()
    return run.result(process.returncode, seconds)


def _command_in_box(job: BoxedJob, box: Box | None) -> list[str]:
    if sys.platform == "win32":
        return job.command  # there is no exec
    data_limit_bytes = 0 if box else _DATA_TIMES * job.limit_bytes
    module = "lowtide.tools.baselines.start"
    started = python_command("-m", module, str(data_limit_bytes), *job.command)
    return box.command_inside(started) if box else started


def _kill(process: subprocess.Popen[bytes], box: Box | None) -> None:
    """Kill the whole session, and processes that left it but are still in the box."""
    if sys.platform == "win32":
        import psutil  # there are no sessions there

        for member in psutil.Process(process.pid).children(recursive=True):
            member.kill()
    kill_session(process)
    if sys.platform != "win32":
        for pid in box.members() if box else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _last_line(path: Path) -> str:
    """The last line of a traceback, which is the error; of lowtide's own messages the problem."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_OF_STDERR))
        lines = file.read().decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    last = errors[-1:] or lines[-1:]
    return last[0].removeprefix("error: ") if last else ""


def _up_to_death(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    late = [
        at for at, (seconds, _) in enumerate(points) if seconds > points[-1][0] - _DEATH_SECONDS
    ]
    last = max(late, key=lambda at: points[at][1], default=0)
    return points[: last + 1]


def thin_out(points: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """As many points as a picture can show: the highest of neighbours, and the last of all."""
    step = -(-len(points) // _MOST_POINTS)
    if step <= 1:
        return tuple(points)
    groups = [points[at : at + step] for at in range(0, len(points), step)]
    kept = [max(group, key=lambda point: point[1]) for group in groups]
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])
