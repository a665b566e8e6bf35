"""A job under watch: started here or found by its process id, sent signals, asked to stop, and ended."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lowtide.errors import UsageError
from lowtide.guard.box import Box, open_box
from lowtide.memory.meter import tree_of
from lowtide.memory.proc_files import read_text

_FIRST_TO_DIE = 500
"""`oom_score_adj`: should the machine run out all the same, the kernel takes the job before the desktop."""
_TRIES, _PAUSE_SECONDS = 200, 0.01
_FILE_SHARE = 0.5
"""Share of the grace period for a job that looks for a stop file, before SIGTERM."""
_FIRST_SHARE = 0.75
"""Share of the grace period after which the processes below the first one are asked too."""
_MOMENT_SECONDS = 0.25
"""Time to act on SIGTERM, for a job that has passed all thresholds at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended, as far as it is known."""

    exit_code: int | None
    """None where it was not a child of ours."""
    signal: int | None
    oom_kills: int | None
    """Kills for memory in its own cgroup; None where it had none."""


class Job:
    """A process and everything it started."""

    def __init__(
        self, pid: int, *, box: Box | None, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.pid = pid
        self.box = box
        self._process = process
        self._started = start_time(pid)
        self._known: dict[int, int | None] = {}
        """Every process seen so far, and when it was started: one that leaves its parent is not forgotten."""
        self._handle: int | None = None
        """A pidfd, readable when the process has ended; None on systems without it."""
        with suppress(AttributeError, OSError):
            self._handle = os.pidfd_open(pid)

    def members(self) -> list[int]:
        """Its living processes, in its box or outside; never this process, or what it started for itself."""
        found = set(self.box.members()) if self.box is not None else set()
        if self.is_running:
            found |= set(tree_of(self.pid))
        for pid, began in self._known.items():
            if pid not in found and began and start_time(pid) == began:
                found |= set(tree_of(pid))
        if os.getpid() in found:  # we run inside the job
            found -= set(tree_of(os.getpid()))
        self._known = {pid: self._known.get(pid) or start_time(pid) for pid in sorted(found)}
        return [pid for pid in self._known if not _is_zombie(pid)]

    @property
    def is_ours(self) -> bool:
        """Whether it was started here."""
        return self._process is not None

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        if self._process is not None:
            return self._process.poll() is None
        if not Path("/proc/self").exists():
            return _answers(self.pid)
        return start_time(self.pid) == self._started and not _is_zombie(self.pid)

    def wait(self, seconds: float) -> None:
        """Wait this long, or until the first process ends."""
        if not self.is_running:  # nobody is notified when the processes it left behind end
            time.sleep(seconds if self.members() else 0)
        elif self._handle is not None:
            select.select([self._handle], [], [], seconds)
        elif self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """Release the handle on the first process; nothing can be waited for afterwards."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def send(self, number: int) -> bool:
        """Signal the first process, which knows best how to end the others. Returns whether we may."""
        alive = [self.pid] if self.is_running else []  # its id may be another process's by now
        return _signal(alive, number)

    def send_all(self, number: int) -> bool:
        """Signal every process of the job. Returns whether we may."""
        return _signal(self.members(), number)

    def end(self) -> bool:
        """Kill what is left, and what it starts meanwhile. Returns whether we may."""
        allowed = True
        for _ in range(_TRIES):
            alive = self.members()
            if not alive:
                break
            allowed = _signal(alive, signal.SIGKILL)
            self.wait(_PAUSE_SECONDS)
            time.sleep(_PAUSE_SECONDS)
        return allowed

    def outcome(self) -> JobEnd:
        """How the job ended; to be asked after its end."""
        code = self._process.poll() if self._process is not None else None
        return JobEnd(
            exit_code=code if code is None or code >= 0 else 128 - code,
            signal=-code if code is not None and code < 0 else None,
            oom_kills=self.box.oom_kills() if self.box is not None else None,
        )


@contextmanager
def start_job(command: Sequence[str], *, fence_bytes: int | None) -> Iterator[Job]:
    """Start a command with our terminal and our standard streams, in a cgroup of its own where one can be made.

    What still runs at the end of the block lives on, outside the cgroup.
    """
    with open_box(fence_bytes, kill=False) as box:
        process = subprocess.Popen(
            list(command),
            close_fds=False,  # `<(…)` and the like are the job's own
            preexec_fn=(lambda: _become_the_job(box)) if os.name == "posix" else None,
        )
        job = Job(process.pid, box=box, process=process)
        try:
            yield job
        finally:
            job.close()
            if box is not None:
                box.release()
            if process.poll() is None:
                process.returncode = 0  # it lives on, and nobody waits for it


def check_command(command: Sequence[str]) -> None:
    """Raise `UsageError` where there is no such program, before anything is made for it."""
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command {command[0]!r} that can be run",
            remedy="check its name and whether it is executable, or pass the path of the program",
        )


def _become_the_job(box: Box | None) -> None:
    """In the new process, before it becomes the command: nothing of the job is ever outside."""
    if box is not None:
        box.enter()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_DIE))


@contextmanager
def find_job(pid: int) -> Iterator[Job]:
    """A process that was started elsewhere; it lives on afterwards."""
    if start_time(pid) is None and not _answers(pid):
        raise UsageError(
            f"there is no process {pid}", remedy="pass the id of a running process as `--pid`"
        )
    job = Job(pid, box=None, process=None)
    try:
        yield job
    finally:
        job.close()


@dataclass(slots=True)
class Asking:
    """Asks a job to stop, in steps: a stop file, SIGTERM to its first process, SIGTERM to all of it.

    Created when the job is to stop; `advance` is called again and again with the time.
    """

    job: Job
    grace_seconds: float
    stop_file: Path | None
    began: float
    _done: int = 0

    def advance(self, now: float) -> str | None:
        """Take the next step if it is time; what was done, in words, or None."""
        passed = (now - self.began) / self.grace_seconds if self.grace_seconds else 1.0
        if self._done == 0:
            self._done = 1
            if self.stop_file is not None:
                path = self.stop_file
                try:
                    path.touch()
                except OSError as error:
                    self.stop_file = None  # SIGTERM is then sent at once
                    return f"could not leave the stop file {path} ({error.strerror})"
                return f"left the stop file {path}"
        if self._done == 1 and (self.stop_file is None or passed >= _FILE_SHARE):
            self._done = 2
            if not self.job.is_running:
                return self._send_all()
            allowed = self.job.send(signal.SIGTERM)
            done = "sent SIGTERM to" if allowed else "may not send a signal to"
            return f"{done} process {self.job.pid}"
        if self._done == 2:
            others = passed >= _FIRST_SHARE and len(self.job.members()) > 1
            if others or not self.job.is_running:
                return self._send_all()
        return None

    def _send_all(self) -> str:
        self._done = 3
        self.job.send_all(signal.SIGTERM)
        return f"sent SIGTERM to all {len(self.job.members())} processes"

    def withdraw(self) -> None:
        """Remove a stop file that nobody took: it would stop the next job."""
        if self.stop_file is not None and self._done:
            with suppress(OSError):
                self.stop_file.unlink(missing_ok=True)

    def had_time_to_react(self, now: float) -> bool:
        """Whether it was asked at all, even where it passed all thresholds at once."""
        return now - self.began >= min(_MOMENT_SECONDS, self.grace_seconds)

    def is_over(self, now: float) -> bool:
        """Whether the job has had its time."""
        return now - self.began >= self.grace_seconds


@contextmanager
def signals_go_to(job: Job) -> Iterator[None]:
    """Pass on the signals we receive, meant for the job. A terminal's Ctrl-C has reached it already.

    Signals reach the main thread alone: in another one there are none to pass on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number not in (signal.SIGINT, signal.SIGQUIT) or not _has_terminal():
            job.send(number)

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _has_terminal() -> bool:
    """Whether we are in the foreground of a terminal."""
    for stream in (0, 1, 2):
        with suppress(OSError, AttributeError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False


def start_time(pid: int) -> int | None:
    """When a process was started, in ticks since boot: ids are used again. None without /proc."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on; empty without the process or /proc."""
    return (read_text(Path(f"/proc/{pid}/stat")) or "").rpartition(") ")[2].split()


def _signal(pids: Sequence[int], number: int) -> bool:
    allowed = True
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it has ended meanwhile
        except PermissionError:
            allowed = False
    return allowed


def _is_zombie(pid: int) -> bool:
    """Whether it is dead and not yet reaped by its parent, or gone."""
    fields = stat_fields(pid)
    return fields[0] == "Z" if fields else Path("/proc/self").exists()


def is_above_us(pid: int) -> bool:
    """Whether this process descends from it: ending it would end us."""
    return os.getpid() in tree_of(pid)


def written_file(pid: int, descriptor: int) -> Path | None:
    """The regular file that a process writes to there, such as the log its output goes to."""
    try:
        path = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
    except OSError:
        return None
    return path if path.is_file() else None


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
