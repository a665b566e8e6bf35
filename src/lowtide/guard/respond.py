"""Asking a job to stop, in steps: a stop file, SIGTERM to its first process, SIGTERM to all of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from lowtide.guard.job import Job
from lowtide.storage.publish import storage_errors

_FILE_SHARE = 0.5
"""Of the grace, for a job that looks for a stop file."""
_FIRST_SHARE = 0.75
"""Of the grace, before the processes below the first one are asked too."""

_MOMENT_SECONDS = 0.25


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
                with storage_errors(self.stop_file):
                    self.stop_file.touch()
                return f"left the stop file {self.stop_file}"
        if self._done == 1 and (self.stop_file is None or passed >= _FILE_SHARE):
            self._done = 2
            self.job.send(signal.SIGTERM)
            return f"sent SIGTERM to process {self.job.pid}"
        if self._done == 2 and passed >= _FIRST_SHARE and len(self.job.members()) > 1:
            self._done = 3
            self.job.send_all(signal.SIGTERM)
            return f"sent SIGTERM to all {len(self.job.members())} processes"
        return None

    def has_had_a_moment(self, now: float) -> bool:
        """Whether it was asked at all, even where it went past all lines at once."""
        return now - self.began >= min(_MOMENT_SECONDS, self.grace_seconds)

    def is_over(self, now: float) -> bool:
        """Whether the job has had its time."""
        return now - self.began >= self.grace_seconds
