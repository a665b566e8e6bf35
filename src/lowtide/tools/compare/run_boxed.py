"""Run one program alone in a box: its memory over time, how far it came, and how it ended.

If no cgroup can be made, memory is sampled, and a program above the limit is killed. A limit on data backs
that up, against growth between two samples.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from lowtide.child import kill_session
from lowtide.errors import DoesNotFitError, InterruptedRun, StoppedError
from lowtide.guard.box import Box
from lowtide.memory.meter import measure_tree
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.tools.baselines.progress import read_progress
from lowtide.tools.end_with_parent import ended_with_parent

Ending: TypeAlias = Literal["finished", "died", "refused", "failed", "too slow"]
Look: TypeAlias = Callable[["Moment"], None]

_INTERVAL_SECONDS, _LONGEST_INTERVAL_SECONDS = 0.05, 0.2
_COST_TIMES = 6
"""A large process tree is measured less often: measuring takes time that the program may need."""
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
    """Folder in which it runs. Its output is kept there, and its file `progress` is read."""
    text_bytes: int
    environment: Mapping[str, str]
    limit_bytes: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a program while it runs."""

    seconds: float
    private_bytes: int
    share: float | None
    """Share of the text that is done; None if the program does not report it."""
    stage: str
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """How a run in a box ended, and what it took; all of it measured."""

    ending: Ending
    text_bytes: int
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


@dataclass(slots=True, kw_only=True)
class _BoxedRun:
    """A program that runs, and what was measured so far."""

    job: BoxedJob
    box: Box | None
    started: float
    points: list[tuple[float, int]] = field(default_factory=list)
    over_limit: bool = False
    too_slow: bool = False

    def measure(self, pid: int) -> Moment:
        """Measure once. One killed process is the program's death, even if others wait for that one."""
        seconds, used = time.monotonic() - self.started, measure_tree(pid).private_bytes
        if used:
            self.points.append((seconds, used))
        self.too_slow = seconds > self.job.timeout_seconds
        self.over_limit = self.box.oom_kills() > 0 if self.box else used > self.job.limit_bytes
        return self._moment(seconds, used)

    def result(self, code: int) -> Boxed:
        """How it ended: by its exit code, and by what was measured before."""
        at_end = self._moment(time.monotonic() - self.started, 0)
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
            text_bytes=self.job.text_bytes,
            seconds=at_end.seconds,
            peak_private_bytes=max((used for _, used in self.points), default=0),
            peak_charged_bytes=self.box.peak_charged_bytes() if self.box else None,
            share=1.0 if ending == "finished" else at_end.share,
            stage=at_end.stage,
            tokens=at_end.tokens,
            points=thin_out(_up_to_death(self.points) if ending == "died" else self.points),
            complaint=complaint if ending in ("failed", "refused") else "",
        )

    def _moment(self, seconds: float, private_bytes: int) -> Moment:
        done_bytes, stage, tokens = read_progress(self.job.work / "progress")
        all_bytes = max(1, self.job.text_bytes)
        return Moment(
            seconds=seconds,
            private_bytes=private_bytes,
            share=None if done_bytes is None else min(1.0, done_bytes / all_bytes),
            stage=stage,
            tokens=tokens,
        )


def run_boxed(
    job: BoxedJob,
    box: Box | None,
    *,
    should_stop: ShouldStop = never_stop,
    look: Look = lambda _moment: None,
) -> Boxed:
    """Run a program until it ends or must be ended; none of its processes is alive afterwards."""
    with (job.work / "stderr").open("wb") as messages, (job.work / "stdout").open("wb") as output:
        run = _BoxedRun(job=job, box=box, started=time.monotonic())
        command = ended_with_parent(
            job.command, data_limit_bytes=0 if box else _DATA_TIMES * job.limit_bytes
        )
        process = subprocess.Popen(
            box.command_inside(command) if box else command,
            cwd=job.work,
            env=job.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not (run.over_limit or run.too_slow):
                raise_if_stopped(should_stop)
                began = time.monotonic()
                look(run.measure(process.pid))
                pause = max(_INTERVAL_SECONDS, _COST_TIMES * (time.monotonic() - began))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=min(pause, _LONGEST_INTERVAL_SECONDS))
        finally:
            _kill(process)
        return run.result(process.returncode)


def raise_if_stopped(should_stop: ShouldStop) -> None:
    """Raise the error that ends the whole comparison, if somebody asked for a stop."""
    reason = should_stop()
    if reason is not None:
        raise (InterruptedRun if reason == "interrupted" else StoppedError)(
            "stopped; all programs were ended and their files removed",
            remedy="run the same command again: it starts from the beginning, since nothing was kept",
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session; what left it dies with its box."""
    if sys.platform == "win32":
        import psutil  # there are no sessions there

        for member in psutil.Process(process.pid).children(recursive=True):
            member.kill()
    kill_session(process)


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
