"""The story of `watch`: any job, looked at once a second; noted, asked and ended before the kernel does it.

    reading → history → verdict → alert, stop file, SIGTERM, SIGKILL; everything into the timeline

Whatever fails beside the watching (a disk, a hook, a terminal) is told once and given up; the watch goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lowtide.errors import InterruptedRun, LowtideError
from lowtide.events import Note
from lowtide.guard.alerts import Hooks, alert_line, append_alert
from lowtide.guard.forecast import forecast
from lowtide.guard.gpus import GpuReading, open_gpus
from lowtide.guard.history import History
from lowtide.guard.job import Job, check_command, find_job, start_job
from lowtide.guard.pace import Pace
from lowtide.guard.pass_signals import signals_go_to
from lowtide.guard.reading import Reader, Reading
from lowtide.guard.respond import Asking
from lowtide.guard.result import WatchListener, WatchResult
from lowtide.guard.stages import Alert, Response, Steps
from lowtide.pipeline.watch_settings import WatchSettings, refuse_own_end
from lowtide.pipeline.watch_timeline import Timeline, prepare_timeline
from lowtide.units import format_bytes

_FORECAST_SECONDS = 10.0
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
    check_command(command)
    prepare_timeline(settings)
    with (
        open_gpus() as (read_gpus, _),
        start_job(command, fence_bytes=settings.fence_bytes) as job,
        signals_go_to(job),
    ):
        return _Session(job, list(command), settings, listen, environment).run(read_gpus)


def watch_process(
    pid: int, settings: WatchSettings, listen: WatchListener, *, environment: Mapping[str, str]
) -> WatchResult:
    """Stay beside a process that runs already, until it ends. Ctrl-C ends the watch alone."""
    refuse_own_end(pid, settings.lines.most)
    with open_gpus() as (read_gpus, _), find_job(pid) as job:
        prepare_timeline(settings)
        session = _Session(job, _command_of(pid), settings, listen, environment)
        try:
            return session.run(read_gpus)
        except KeyboardInterrupt:
            raise InterruptedRun(
                f"the watch over process {pid} was interrupted; the process lives on",
                remedy=f"run `lowtide watch --pid {pid}` to go on",
            ) from None


class _Session:
    """One job, from its first reading to its last."""

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
        self._steps = Steps(settings.lines)
        self._hooks = Hooks(settings.on_alert, environment)
        self._history = History()
        self._timeline = Timeline(settings, job, command, on_failure=self._give_up)
        self._given_up: set[str] = set()
        self._asking: Asking | None = None
        self._forced = False
        self._alerts = self._peak = 0
        self._fullest_gpus: dict[int, GpuReading] = {}
        self._began = self._forecast_at = time.monotonic()
        self._told_seconds: float | None = None

    def run(self, read_gpus: Callable[[], Sequence[GpuReading]]) -> WatchResult:
        """Look, judge, act; then wait until it is time to look again."""
        job = self._job
        reader = Reader(pid=job.pid, box=job.box, find_members=job.members, read_gpus=read_gpus)
        pace = Pace(self._settings.lines, self._settings.interval_seconds)
        with self._recorded():
            self._say_how()
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
                self._listen(Note(text=f"{left} processes that the job started live on, unwatched"))
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
        """Its first process; once it was asked to stop, all of it: a shell dies and its pipeline lives on."""
        return self._job.is_running or (self._asking is not None and bool(self._job.members()))

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        with self._timeline:
            try:
                yield
            finally:
                if not self._job.is_running:
                    self._timeline.end(self._job.outcome(), self._peak, forced=self._forced)
                    if self._asking is not None:
                        self._asking.withdraw()
                self._hooks.finish()

    def _say_how(self) -> None:
        box, words = self._job.box, self._settings.limit_in_words
        where = "nothing but this watch enforces it"
        if box is not None and self._settings.fence_bytes is not None:
            fence = format_bytes(self._settings.fence_bytes)
            where = f"the job has a {box.how} of its own, where the kernel enforces {fence}"
        elif box is not None:
            why = "none was named"
            if self._settings.lines.most is Response.NOTE:
                why = "`--until note` only tells"
            where = f"the job has a {box.how} of its own, without a limit, for {why}"
        self._listen(Note(text=f"limit {words}; {where}"))

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
            self._timeline.alert(alert)
            self._listen(alert)
            self._send(alert, reading)
        self._choose_asking(reading)
        if reading.at - self._forecast_at >= _FORECAST_SECONDS:
            self._forecast_at = reading.at
            self._look_ahead(reading)

    def _choose_asking(self, reading: Reading) -> None:
        """Begun when the line is passed; a job that gave back enough is asked no more."""
        if self._steps.stage >= Response.ASK and self._asking is None:
            self._asking = Asking(
                job=self._job,
                grace_seconds=self._settings.grace_seconds,
                stop_file=self._settings.stop_file,
                began=reading.at,
            )
        elif self._steps.stage < Response.ASK and self._asking is not None:
            self._asking.withdraw()
            self._asking = None

    def _act(self, now: float) -> None:
        """Ask as long as there is time; end it when the line is passed or the time is over."""
        if self._asking is None or self._forced:
            return
        self._note(self._asking.go_on(now))
        may_end = self._settings.lines.most >= Response.END
        passed = self._steps.stage is Response.END and self._asking.has_had_a_moment(now)
        if may_end and (passed or self._asking.is_over(now)):
            self._forced = True
            self._note(f"sending SIGKILL to the {len(self._job.members())} processes of the job")
            if not self._job.end():
                self._note("the job belongs to somebody else and may not be ended")

    def _look_ahead(self, reading: Reading) -> None:
        found = forecast(self._history, self._settings.lines.limit_bytes)
        told = self._told_seconds
        if found is None or (told is not None and found.seconds > _TOLD_AGAIN * told):
            return
        self._told_seconds = found.seconds
        self._timeline.forecast(found)
        self._listen(found)
        self._send(Alert(stage=Response.NOTE, reason=found.in_words, top=reading.top), reading)

    def _send(self, alert: Alert, reading: Reading) -> None:
        """To the file of alerts and the user's command."""
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
            self._timeline.note(text)
            self._listen(Note(text=text, level="warning"))

    def _try(self, what: str, action: Callable[[], None]) -> None:
        if what not in self._given_up:
            try:
                action()
            except (LowtideError, OSError) as error:
                self._give_up(what, error)

    def _give_up(self, what: str, error: Exception) -> None:
        self._given_up.add(what)
        self._listen(Note(text=f"{what} is given up: {error}", level="warning"))


def _command_of(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="backslashreplace") for part in raw.split(b"\0") if part]
