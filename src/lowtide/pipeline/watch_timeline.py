"""The timeline of a watch: readings now and then, whatever happened, and how the job ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from lowtide.errors import StorageError, UsageError
from lowtide.guard.alerts import stage_name
from lowtide.guard.forecast import Forecast
from lowtide.guard.job import Job, JobEnd, written_file
from lowtide.guard.reading import Reading
from lowtide.guard.stages import Alert
from lowtide.journal import Journal
from lowtide.pipeline.keep_journal import begin_journal
from lowtide.pipeline.watch_settings import WatchSettings
from lowtide.storage.publish import make_private, storage_errors

_RECORDS = 1000
"""Readings before their distance grows with the length of the watch."""
_MUCH = 0.02
"""Of the limit: a change that is written down sooner."""
_SOONER = 0.25
"""Of the usual distance."""


class Timeline:
    """One file. Where the disk says no, that is told once and nothing more is written."""

    def __init__(
        self,
        settings: WatchSettings,
        job: Job,
        command: list[str],
        *,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._settings = settings
        self._job = job
        self._command = command
        self._on_failure = on_failure
        self._began, self._own_cpu = time.monotonic(), time.process_time()
        self._last: Reading | None = None

    def __enter__(self) -> None:
        lines = self._settings.lines
        pid = os.getpid() if self._job.is_ours else self._job.pid
        self._files = {name: written_file(pid, at) for name, at in (("stdout", 1), ("stderr", 2))}
        self._journal = Journal(self._settings.timeline, on_failure=self._fail)
        begin_journal(
            self._journal,
            "watch",
            settings={"limit": self._settings.limit_in_words},
            budget_bytes=lines.limit_bytes,
            command=self._command,
            job_pid=self._job.pid,
            limit_bytes=lines.limit_bytes,
            floor_bytes=lines.floor_bytes,
            how=self._job.box.how if self._job.box else "sampled",
            **{f"{name}_path": str(path) if path else None for name, path in self._files.items()},
            **{f"{name}_began_bytes": size for name, size in _sizes(self._files).items()},
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._journal.close()

    def read(self, reading: Reading) -> None:
        """Now and then, and sooner when much has changed."""
        if self._last is not None:
            usual = max(self._settings.interval_seconds, (reading.at - self._began) / _RECORDS)
            change = abs(reading.used_bytes - self._last.used_bytes)
            much = change >= _MUCH * self._settings.lines.limit_bytes
            if reading.at - self._last.at < usual * (_SOONER if much else 0.9):
                return
        self._last = reading
        fields = {name: value for name, value in asdict(reading).items() if name != "at"}
        self._journal.write("reading", **fields)

    def alert(self, alert: Alert) -> None:
        top = [asdict(one) for one in alert.top]
        self._journal.write("alert", stage=stage_name(alert), reason=alert.reason, top=top)

    def forecast(self, found: Forecast) -> None:
        self._journal.write("forecast", **asdict(found))

    def note(self, text: str) -> None:
        self._journal.write("note", text=text, level="warning")

    def end(self, end: JobEnd, peak_private_bytes: int, *, forced: bool) -> None:
        """The last record: the job has ended."""
        self._journal.write(
            "end",
            outcome="ended",
            exit_code=end.exit_code,
            signal=end.signal,
            oom_kills=end.oom_kills,
            peak_private_bytes=peak_private_bytes,
            forced=forced,
            **{f"{name}_path": str(path) if path else None for name, path in self._files.items()},
            **{f"{name}_ended_bytes": size for name, size in _sizes(self._files).items()},
            own_cpu_seconds=round(time.process_time() - self._own_cpu, 3),
        )

    def _fail(self, error: StorageError) -> None:
        self._on_failure("the timeline", error)


def prepare_timeline(settings: WatchSettings) -> None:
    """Before the job starts: a place that takes no file, or holds something else, is told."""
    path = settings.timeline
    with storage_errors(path, doing="read"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                begins = file.read(10)
            if begins != b'{"event": ':
                raise UsageError(
                    f"{path} holds something else than a timeline",
                    remedy="pass a new file as `--timeline`",
                )
    with storage_errors(path):
        make_private(path)


def _sizes(files: Mapping[str, Path | None]) -> dict[str, int | None]:
    """How long the files are that the job's output goes to: others may write into them too."""
    sizes: dict[str, int | None] = dict.fromkeys(files)
    for name, path in files.items():
        with suppress(OSError):  # it was removed meanwhile
            sizes[name] = path.stat().st_size if path else None
    return sizes
