"""Watches any job once a second: warns, asks it to stop, and ends it before the kernel does.

    reading → series → stage → alert, stop file, SIGTERM, SIGKILL; everything into the timeline

If a disk, a hook or a terminal fails, this is reported once; the watch continues without it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from lowtide.errors import InterruptedRun, LowtideError, StorageError, UsageError
from lowtide.events import Note
from lowtide.guard.alerts import (
    Hooks,
    WatchListener,
    WatchResult,
    alert_line,
    append_alert,
)
from lowtide.guard.forecast import forecast
from lowtide.guard.job import (
    Asking,
    Job,
    JobEnd,
    check_command,
    find_job,
    signals_go_to,
    start_job,
    written_file,
)
from lowtide.guard.reading import Reader, open_gpus
from lowtide.journal import Journal
from lowtide.memory.pressure import Alert, Pace, Stage, Steps
from lowtide.memory.reading import GpuReading, Reading
from lowtide.series import Series
from lowtide.stages.keep_journal import begin_journal
from lowtide.stages.watch_settings import WatchSettings, refuse_own_end
from lowtide.storage.publish import make_private, storage_errors
from lowtide.units import format_bytes

_FORECAST_SECONDS = 10.0
_REPORT_AGAIN = 0.5
"""A forecast is reported again when the time left has shrunk to this share."""
_RECORDS = 1000
"""Readings in the timeline before they become rarer, the longer the watch lasts."""
_MUCH = 0.02
"""Share of the limit: a change as large is recorded sooner."""
_SOONER = 0.25
"""Share of the usual distance after which it is."""


def watch_command(
    command: Sequence[str],
    settings: WatchSettings,
    listen: WatchListener,
    *,
    environment: Mapping[str, str],
) -> WatchResult:
    """Start a command and watch it to its end. It has our streams, our terminal and the signals sent to us."""
    check_command(command)
    prepare_timeline(settings)
    with (
        open_gpus() as (read_gpus, _),
        start_job(command, fence_bytes=settings.fence_bytes) as job,
        signals_go_to(job),
    ):
        return _Watching(job, list(command), settings, listen, environment).run(read_gpus)


def watch_process(
    pid: int, settings: WatchSettings, listen: WatchListener, *, environment: Mapping[str, str]
) -> WatchResult:
    """Watch a process that runs already, until it ends. Ctrl-C ends the watch alone."""
    refuse_own_end(pid, settings.thresholds.most)
    with open_gpus() as (read_gpus, _), find_job(pid) as job:
        prepare_timeline(settings)
        try:
            return _Watching(job, _command_of(pid), settings, listen, environment).run(read_gpus)
        except KeyboardInterrupt:
            raise InterruptedRun(
                f"the watch over process {pid} was interrupted; the process keeps running",
                remedy=f"run `lowtide watch --pid {pid}` to continue",
            ) from None


class _Watching:
    """The watch over one job, from its first reading to its last."""

    def __init__(
        self,
        job: Job,
        command: list[str],
        settings: WatchSettings,
        listen: WatchListener,
        environment: Mapping[str, str],
    ) -> None:
        self._job = job
        self._name = " ".join(command) or f"process {job.pid}"
        self._settings = settings
        self._listen = listen
        self._steps = Steps(settings.thresholds)
        self._hooks = Hooks(settings.on_alert, environment)
        self._history = Series(512)
        self._given_up: set[str] = set()
        self._timeline = Timeline(settings, job, command, on_failure=self._give_up)
        self._asking: Asking | None = None
        self._forced = False
        self._alerts = self._peak = 0
        self._fullest_gpus: dict[int, GpuReading] = {}
        self._began = self._forecast_at = time.monotonic()
        self._reported_seconds: float | None = None

    def run(self, read_gpus: Callable[[], Sequence[GpuReading]]) -> WatchResult:
        """Look, judge, act, then wait until it is time to look again; until the job has ended."""
        job = self._job
        reader = Reader(pid=job.pid, box=job.box, find_members=job.members, read_gpus=read_gpus)
        pace = Pace(self._settings.thresholds, self._settings.interval_seconds)
        with self._recorded():
            self._listen(Note(text=self._how_enforced()))
            while self._is_there():
                reading = reader.read()
                if reading is not None and self._steps.would_rise(reading):
                    reading = reader.read(exactly=True)
                if reading is not None:
                    self._see(reading)
                self._act(time.monotonic())
                self._job.wait(pace.wait_seconds(reading))
            left = len(self._job.members())
            if left and not self._forced:
                self._listen(
                    Note(text=f"{left} processes that the job started keep running, unwatched")
                )
        return WatchResult(
            end=self._job.outcome(),
            seconds=time.monotonic() - self._began,
            peak_private_bytes=self._peak,
            alerts=self._alerts,
            timeline=self._settings.timeline,
            forced=self._forced,
            fullest_gpus=tuple(self._fullest_gpus.values()),
        )

    def _is_there(self) -> bool:
        """Whether its first process lives, or once it was asked to stop, any: a pipeline outlives its shell."""
        return self._job.is_running or (self._asking is not None and bool(self._job.members()))

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        with self._timeline.journal:
            try:
                yield
            finally:
                if not self._job.is_running:
                    self._timeline.end(self._job.outcome(), self._peak, forced=self._forced)
                    if self._asking is not None:
                        self._asking.withdraw()
                self._hooks.finish()

    def _how_enforced(self) -> str:
        box, words = self._job.box, self._settings.limit_in_words
        where = "nothing but this watch enforces it"
        if box is not None and self._settings.fence_bytes is not None:
            fence = format_bytes(self._settings.fence_bytes)
            where = f"the job has a {box.how} of its own, where the kernel enforces {fence}"
        elif box is not None:
            why = "none was named"
            if self._settings.thresholds.most is Stage.NOTE:
                why = "`--until note` only reports"
            where = f"the job has a {box.how} of its own, without a limit, for {why}"
        return f"limit {words}; {where}"

    def _see(self, reading: Reading) -> None:
        self._peak = max(self._peak, reading.private_bytes)
        for gpu in reading.gpus:
            fullest = self._fullest_gpus.get(gpu.index)
            if fullest is None or gpu.used_bytes > fullest.used_bytes:
                self._fullest_gpus[gpu.index] = gpu
        self._history.add(reading.at, reading.used_bytes)
        self._timeline.read(reading)
        self._listen(reading)
        alert = self._steps.see(reading)
        if alert is not None:
            self._alerts += 1
            top = [asdict(one) for one in alert.top]
            self._timeline.journal.write(
                "alert", stage=alert.stage.in_words, reason=alert.reason, top=top
            )
            self._listen(alert)
            self._send(alert, reading)
        self._choose_asking(reading)
        if reading.at - self._forecast_at >= _FORECAST_SECONDS:
            self._forecast_at = reading.at
            self._look_ahead(reading)

    def _choose_asking(self, reading: Reading) -> None:
        """Begin to ask when the threshold is passed; a job that gave back enough is no longer asked."""
        if self._steps.stage >= Stage.ASK and self._asking is None:
            self._asking = Asking(
                job=self._job,
                grace_seconds=self._settings.grace_seconds,
                stop_file=self._settings.stop_file,
                began=reading.at,
            )
        elif self._steps.stage < Stage.ASK and self._asking is not None:
            self._asking.withdraw()
            self._asking = None

    def _act(self, now: float) -> None:
        """Ask while the grace period lasts; end the job when the last threshold or the period is over."""
        if self._asking is None or self._forced:
            return
        self._note(self._asking.advance(now))
        may_end = self._settings.thresholds.most >= Stage.END
        passed = self._steps.stage is Stage.END and self._asking.had_time_to_react(now)
        if may_end and (passed or self._asking.is_over(now)):
            self._forced = True
            self._note(f"sending SIGKILL to the {len(self._job.members())} processes of the job")
            if not self._job.end():
                self._note("the job belongs to another user and may not be ended")

    def _look_ahead(self, reading: Reading) -> None:
        found = forecast(self._history, self._settings.thresholds.limit_bytes)
        before = self._reported_seconds
        if found is None or (before is not None and found.seconds > _REPORT_AGAIN * before):
            return
        self._reported_seconds = found.seconds
        self._timeline.journal.write("forecast", **asdict(found))
        self._listen(found)
        self._send(Alert(stage=Stage.NOTE, reason=found.in_words, top=reading.top), reading)

    def _send(self, alert: Alert, reading: Reading) -> None:
        """Pass an alert to the file of alerts and to the user's command."""
        line = alert_line(alert, self._name)
        self._try("the file of alerts", lambda: append_alert(self._settings.alerts, line))
        self._try(
            "`--on-alert`",
            lambda: self._hooks.run(
                alert,
                pid=self._job.pid,
                used_bytes=reading.used_bytes,
                timeline=self._settings.timeline,
            ),
        )

    def _note(self, text: str | None) -> None:
        if text is not None:
            note = Note(text=text, level="warning")
            self._timeline.journal.write_event(note)
            self._listen(note)

    def _try(self, what: str, action: Callable[[], None]) -> None:
        if what not in self._given_up:
            try:
                action()
            except (LowtideError, OSError) as error:
                self._give_up(what, error)

    def _give_up(self, what: str, error: Exception) -> None:
        self._given_up.add(what)
        self._listen(Note(text=f"{what} failed and is no longer used: {error}", level="warning"))


class Timeline:
    """The journal of a watch. A disk that fails is reported once, and nothing more is written."""

    def __init__(
        self,
        settings: WatchSettings,
        job: Job,
        command: list[str],
        *,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._settings = settings
        self._began, self._own_cpu = time.monotonic(), time.process_time()
        self._last: Reading | None = None
        pid = os.getpid() if job.is_ours else job.pid
        self._files = {name: written_file(pid, at) for name, at in (("stdout", 1), ("stderr", 2))}

        def give_up(error: StorageError) -> None:
            on_failure("the timeline", error)

        self.journal = Journal(settings.timeline, on_failure=give_up)
        begin_journal(
            self.journal,
            "watch",
            settings={"limit": settings.limit_in_words},
            budget_bytes=settings.thresholds.limit_bytes,
            command=command,
            job_pid=job.pid,
            limit_bytes=settings.thresholds.limit_bytes,
            floor_bytes=settings.thresholds.floor_bytes,
            how=job.box.how if job.box else "sampled",
            **self._file_fields("began"),
        )

    def read(self, reading: Reading) -> None:
        """Record a reading now and then, and sooner when much has changed."""
        if self._last is not None:
            usual = max(self._settings.interval_seconds, (reading.at - self._began) / _RECORDS)
            change = abs(reading.used_bytes - self._last.used_bytes)
            much = change >= _MUCH * self._settings.thresholds.limit_bytes
            if reading.at - self._last.at < usual * (_SOONER if much else 0.9):
                return
        self._last = reading
        fields = {name: value for name, value in asdict(reading).items() if name != "at"}
        self.journal.write("reading", **fields)

    def end(self, end: JobEnd, peak_private_bytes: int, *, forced: bool) -> None:
        """Write the last record: the job has ended."""
        self.journal.write(
            "end",
            outcome="ended",
            **asdict(end),
            peak_private_bytes=peak_private_bytes,
            forced=forced,
            **self._file_fields("ended"),
            own_cpu_seconds=round(time.process_time() - self._own_cpu, 3),
        )

    def _file_fields(self, when: str) -> dict[str, object]:
        """Where the job's output goes, and how long the files are now: others may write into them too."""
        fields: dict[str, object] = {}
        for name, path in self._files.items():
            fields[f"{name}_path"] = str(path) if path else None
        for name, path in self._files.items():
            fields[f"{name}_{when}_bytes"] = None
            with suppress(OSError):  # it was removed meanwhile
                fields[f"{name}_{when}_bytes"] = path.stat().st_size if path else None
        return fields


def prepare_timeline(settings: WatchSettings) -> None:
    """Raise, before the job starts, where the timeline cannot be written or the file is something else."""
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


def _command_of(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="backslashreplace") for part in raw.split(b"\0") if part]
