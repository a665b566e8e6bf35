"""Asking a job to stop, in steps: a stop file, SIGTERM to its first process, SIGTERM to all of it."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lowtide.guard.job import Job

_FILE_SHARE = 0.5
"""Of the grace, for a job that looks for a stop file."""
_FIRST_SHARE = 0.75
"""Of the grace, before the processes below the first one are asked too."""
_MOMENT_SECONDS = 0.25
"""To hear SIGTERM, for a job that has passed all lines at once."""


@dataclass(slots=True)
class Asking:
    """Begun when the job is to stop; `go_on` is called again and again with the time."""

    job: Job
    grace_seconds: float
    stop_file: Path | None
    began: float
    _done: int = 0

    def go_on(self, now: float) -> str | None:
        """Take the next step if it is time; what was done, in words, or None."""
        passed = (now - self.began) / self.grace_seconds if self.grace_seconds else 1.0
        if self._done == 0:
            self._done = 1
            if self.stop_file is not None:
                return self._leave_file(self.stop_file)
        if self._done == 1 and (self.stop_file is None or passed >= _FILE_SHARE):
            self._done = 2
            if not self.job.is_running:
                return self._send_all()
            allowed = self.job.send(signal.SIGTERM)
            done = "sent SIGTERM to" if allowed else "may not send a signal to"
            return f"{done} process {self.job.pid}"
        if self._done == 2 and passed >= _FIRST_SHARE and len(self.job.members()) > 1:
            return self._send_all()
        if self._done == 2 and not self.job.is_running:
            return self._send_all()
        return None

    def _leave_file(self, path: Path) -> str:
        try:
            path.touch()
        except OSError as error:
            self.stop_file = None  # SIGTERM comes at once then
            return f"could not leave the stop file {path} ({error.strerror})"
        return f"left the stop file {path}"

    def _send_all(self) -> str:
        self._done = 3
        self.job.send_all(signal.SIGTERM)
        return f"sent SIGTERM to all {len(self.job.members())} processes"

    def withdraw(self) -> None:
        """A stop file that nobody took would stop the next job."""
        if self.stop_file is not None and self._done:
            with suppress(OSError):
                self.stop_file.unlink(missing_ok=True)

    def has_had_a_moment(self, now: float) -> bool:
        """Whether it was asked at all, even where it went past all lines at once."""
        return now - self.began >= min(_MOMENT_SECONDS, self.grace_seconds)

    def is_over(self, now: float) -> bool:
        """Whether the job has had its time."""
        return now - self.began >= self.grace_seconds
