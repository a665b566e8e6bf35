"""A job under watch: started here, or found by its process id; asked to stop, and ended."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.box import Box, open_box
from lowtide.memory.meter import tree_of
from lowtide.memory.proc_files import read_text

_FIRST_TO_DIE = 500
"""`oom_score_adj`: should the machine run out all the same, the kernel takes the job before the desktop."""
_START = f'echo {_FIRST_TO_DIE} > /proc/$$/oom_score_adj 2>/dev/null; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How it ended, as far as it is known."""

    exit_code: int | None
    """None where it was no child of ours."""
    signal: int | None
    oom_kills: int | None
    """Of its own cgroup; None where it had none."""


class Job:
    """The tree below one process."""

    def __init__(
        self, pid: int, *, box: Box | None, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.pid = pid
        self.box = box
        self._process = process
        self._started = start_time(pid)
        self._handle = _open_handle(pid)

    def members(self) -> list[int]:
        """Who is alive of it. A box also knows those that left their parent."""
        if self.box is not None:
            return self.box.members()
        if not self.is_running:
            return []
        return list(tree_of(self.pid))

    @property
    def is_running(self) -> bool:
        """Whether its first process lives."""
        if self._process is not None:
            return self._process.poll() is None
        state = read_text(Path(f"/proc/{self.pid}/stat"))
        if state is None:
            return Path("/proc/self").exists() is False and _answers(self.pid)
        return start_time(self.pid) == self._started and state.rpartition(") ")[2][:1] != "Z"

    def wait(self, seconds: float) -> None:
        """At most so long; less when the first process ends meanwhile."""
        if self._handle is not None:
            select.select([self._handle], [], [], seconds)
        elif self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """Nothing can be waited for afterwards."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def send(self, number: int) -> None:
        """To the first process, which knows best how to end the others."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def send_all(self, number: int) -> None:
        """To every process of it."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill what is left, and what it starts meanwhile."""
        for _ in range(200):
            if not self.members():
                return
            self.send_all(signal.SIGKILL)
            self.wait(0.02)
            time.sleep(0.005)

    def outcome(self) -> JobEnd:
        """After its end."""
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
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command {command[0]!r}",
            remedy="check its name, or pass the path of the program",
        )
    with open_box(fence_bytes) as box:
        full = list(command)
        if sys.platform == "linux":
            full = ["/bin/sh", "-c", _START, "lowtide", *full]
        full = box.command_inside(full) if box is not None else full
        process = subprocess.Popen(full)
        job = Job(process.pid, box=box, process=process)
        try:
            yield job
        finally:
            job.close()
            if box is not None:
                box.let_go()
            if process.poll() is None:
                process.returncode = 0  # it lives on, and nobody waits for it


@contextmanager
def find_job(pid: int) -> Iterator[Job]:
    """A process that somebody else started; it lives on afterwards."""
    if start_time(pid) is None and not _answers(pid):
        raise UsageError(
            f"there is no process {pid}", remedy="pass the id of a running process as `--pid`"
        )
    job = Job(pid, box=None, process=None)
    try:
        yield job
    finally:
        job.close()


def start_time(pid: int) -> int | None:
    """When it was started, in ticks since the machine was: ids are given out again. None without /proc."""
    text = read_text(Path(f"/proc/{pid}/stat"))
    if text is None:
        return None
    return int(text.rpartition(") ")[2].split(" ")[19])


def written_file(pid: int, descriptor: int) -> str | None:
    """The regular file that a process writes to there, such as the log its output goes to."""
    try:
        path = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
    except OSError:
        return None
    return str(path) if path.is_file() else None


def _open_handle(pid: int) -> int | None:
    """Readable when the process has ended; None on systems that have no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
