"""The story of `watch`: any job, looked at once a second; noted, asked and ended before the kernel does it.

reading → history → verdict → alert, stop file, SIGTERM, SIGKILL; everything into the timeline
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lowtide.errors import InterruptedRun
from lowtide.events import Note
from lowtide.guard.alerts import Hooks, alert_line, append_alert, stage_name
from lowtide.guard.forecast import forecast
from lowtide.guard.gpus import GpuReading, open_gpus
from lowtide.guard.history import History
from lowtide.guard.job import Job, find_job, start_job, written_file
from lowtide.guard.pace import Pace
from lowtide.guard.pass_signals import signals_go_to
from lowtide.guard.reading import Reader, Reading
from lowtide.guard.respond import Asking
from lowtide.guard.result import WatchListener, WatchResult
from lowtide.guard.stages import Alert, Stage, Steps
from lowtide.journal import Journal
from lowtide.pipeline.keep_journal import begin_journal
from lowtide.pipeline.watch_settings import WatchSettings
from lowtide.storage.publish import storage_errors
from lowtide.units import format_bytes

_FORECAST_SECONDS = 10.0
_RECORDS = 2000
"""Readings in a timeline before their distance grows with its length."""
_TOLD_AGAIN = 0.5
"""Of the time left when it was told last."""


def watch_command(
    command: Sequence[str],
    settings: WatchSettings,
    listen: WatchListener,
    *,
    environment: Mapping[str, str],
) -> WatchResult:
    """Start a command and stay beside it to its end. Its streams, its terminal and our signals are its own."""
    with (
        open_gpus() as (read_gpus, _),
        start_job(command, fence_bytes=settings.fence_bytes) as job,
        signals_go_to(job),
    ):
        watch = _Watch(job, settings, listen, read_gpus, environment, list(command))
        with watch.recording():
            watch.to_the_end()
        return watch.result()


def watch_process(
    pid: int, settings: WatchSettings, listen: WatchListener, *, environment: Mapping[str, str]
) -> WatchResult:
    """Stay beside a process that runs already, until it ends. Ctrl-C ends the watch alone."""
    with open_gpus() as (read_gpus, _), find_job(pid) as job:
        watch = _Watch(job, settings, listen, read_gpus, environment, _command_of(pid))
        with watch.recording():
            try:
                watch.to_the_end()
            except KeyboardInterrupt:
                raise InterruptedRun(
                    f"the watch over process {pid} was interrupted; the process lives on",
                    remedy=f"run `lowtide watch --pid {pid}` to go on",
                ) from None
        return watch.result()


class _Watch:
    """One job, from its first reading to its last."""

    def __init__(
        self,
        job: Job,
        settings: WatchSettings,
        listen: WatchListener,
        read_gpus: Callable[[], Sequence[GpuReading]],
        environment: Mapping[str, str],
        command: list[str],
    ) -> None:
        self._job = job
        self._settings = settings
        self._listen = listen
        self._command = command
        self._reader = Reader(pid=job.pid, box=job.box, read_gpus=read_gpus)
        self._steps = Steps(settings.lines)
        self._hooks = Hooks(settings.on_alert, environment)
        self._history = History()
        self._pace = Pace(settings.lines, settings.interval_seconds)
        self._asking: Asking | None = None
        self._forced = False
        self._alerts = 0
        self._peak = 0
        self._began, self._own_cpu = time.monotonic(), time.process_time()
        self._recorded: Reading | None = None
        self._forecast_at = self._began
        self._told: float | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The timeline is begun, and ended however the watch ends."""
        path = self._settings.timeline
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with Journal(path) as self._journal:
            begin_journal(
                self._journal,
                "watch",
                settings={"limit": self._settings.limit_in_words},
                budget_bytes=self._settings.lines.limit_bytes,
                command=self._command,
                job_pid=self._job.pid,
                limit_bytes=self._settings.lines.limit_bytes,
                floor_bytes=self._settings.lines.floor_bytes,
                how=self._job.box.how if self._job.box else "sampled",
                stdout_path=written_file(self._job.pid, 1),
                stderr_path=written_file(self._job.pid, 2),
            )
            try:
                yield
            finally:
                if not self._job.is_running:
                    self._write_end()
                self._hooks.finish()

    def to_the_end(self) -> None:
        """Look, judge, act; then wait until it is time to look again."""
        self._say_how()
        while self._job.is_running:
            reading = self._reader.read()
            if reading is not None:
                self._see(reading)
            self._act(time.monotonic())
            self._job.wait(self._pace.wait_seconds(reading))
        left = len(self._job.members())
        if left and not self._forced:
            self._listen(Note(text=f"{left} processes that the job started live on, unwatched"))

    def result(self) -> WatchResult:
        return WatchResult(
            end=self._job.outcome(),
            seconds=time.monotonic() - self._began,
            peak_private_bytes=self._peak,
            alerts=self._alerts,
            timeline=self._settings.timeline,
            forced=self._forced,
        )

    def _say_how(self) -> None:
        box, words = self._job.box, self._settings.limit_in_words
        where = "nothing but this watch enforces it"
        if box is not None and self._settings.fence_bytes is not None:
            fence = format_bytes(self._settings.fence_bytes)
            where = f"the job has a {box.how} of its own, where the kernel enforces {fence}"
        elif box is not None:
            where = f"the job has a {box.how} of its own, without a limit, for none was named"
        self._listen(Note(text=f"limit {words}; {where}"))

    def _see(self, reading: Reading) -> None:
        self._peak = max(self._peak, reading.private_bytes)
        self._history.add(reading.at, reading.used_bytes)
        self._record(reading)
        self._listen(reading)
        alert = self._steps.see(reading)
        if alert is not None:
            self._alert(alert, reading)
        if reading.at - self._forecast_at >= _FORECAST_SECONDS:
            self._forecast_at = reading.at
            self._look_ahead(reading)

    def _record(self, reading: Reading) -> None:
        """Now and then, and whenever much has changed."""
        last, limit = self._recorded, self._settings.lines.limit_bytes or 0
        distance = max(self._settings.interval_seconds, (reading.at - self._began) / _RECORDS)
        soon = last is not None and reading.at - last.at < 0.9 * distance
        if soon and last and abs(reading.used_bytes - last.used_bytes) < 0.02 * limit:
            return
        self._recorded = reading
        fields = {name: value for name, value in asdict(reading).items() if name != "at"}
        self._journal.write("reading", **fields)

    def _alert(self, alert: Alert, reading: Reading) -> None:
        self._alerts += 1
        self._journal.write(
            "alert",
            stage=stage_name(alert),
            reason=alert.reason,
            top=[asdict(one) for one in alert.top],
        )
        self._send(alert, reading)
        self._listen(alert)
        if alert.stage >= Stage.ASK and self._asking is None:
            self._asking = Asking(
                job=self._job,
                grace_seconds=self._settings.grace_seconds,
                stop_file=self._settings.stop_file,
                began=reading.at,
            )

    def _act(self, now: float) -> None:
        """Ask as long as there is time; end it when the line is passed or the time is over."""
        if self._asking is None or self._forced:
            return
        done = self._asking.go_on(now)
        if done is not None:
            self._note(done)
        may_end = self._settings.lines.most >= Stage.END
        passed = self._steps.stage is Stage.END and self._asking.has_had_a_moment(now)
        if may_end and (passed or self._asking.is_over(now)):
            self._forced = True
            self._note(f"sent SIGKILL to the {len(self._job.members())} processes of the job")
            self._job.end()

    def _note(self, text: str) -> None:
        self._journal.write("note", text=text, level="warning")
        self._listen(Note(text=text, level="warning"))

    def _look_ahead(self, reading: Reading) -> None:
        limit = self._settings.lines.limit_bytes
        found = forecast(self._history, limit) if limit else None
        if found is None or (self._told is not None and found.seconds > _TOLD_AGAIN * self._told):
            return
        self._told = found.seconds
        self._journal.write("forecast", **asdict(found))
        self._listen(found)
        self._send(Alert(stage=Stage.NOTE, reason=found.in_words, top=reading.top), reading)

    def _send(self, alert: Alert, reading: Reading) -> None:
        """To the file of alerts and the user's command."""
        job = " ".join(self._command) or f"process {self._job.pid}"
        append_alert(self._settings.alerts, alert_line(alert, job))
        self._hooks.run(
            alert,
            pid=self._job.pid,
            used_bytes=reading.used_bytes,
            timeline=self._settings.timeline,
        )

    def _write_end(self) -> None:
        end = self._job.outcome()
        self._journal.write(
            "end",
            outcome="ended",
            exit_code=end.exit_code,
            signal=end.signal,
            oom_kills=end.oom_kills,
            peak_private_bytes=self._peak,
            forced=self._forced,
            own_cpu_seconds=round(time.process_time() - self._own_cpu, 3),
        )


def _command_of(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="backslashreplace") for part in raw.split(b"\0") if part]
