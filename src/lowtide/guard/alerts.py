"""What a watch reports: events while it lasts, alerts for a file and for the user's command, and its result."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from lowtide.events import Note
from lowtide.guard.forecast import Forecast
from lowtide.guard.job import JobEnd
from lowtide.memory.pressure import Alert
from lowtide.memory.reading import GpuReading, Reading
from lowtide.storage.publish import make_private, storage_errors
from lowtide.units import format_bytes, format_seconds, printable

_PATIENCE_SECONDS = 5.0


WatchEvent: TypeAlias = Reading | Alert | Forecast | Note
WatchListener: TypeAlias = Callable[[WatchEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult:
    """How a watched job ended, and how much memory it took."""

    end: JobEnd
    seconds: float
    peak_private_bytes: int
    alerts: int
    timeline: Path
    forced: bool
    """Whether the guard ended the job."""
    fullest_gpus: tuple[GpuReading, ...] = ()
    """Each card at its fullest."""

    def __repr__(self) -> str:
        end, peak = self.end, format_bytes(self.peak_private_bytes)
        how = f"exit code {end.exit_code}" if end.signal is None else f"signal {end.signal}"
        return f"<WatchResult {how} after {format_seconds(self.seconds)}, peak {peak}>"


def alert_line(alert: Alert, job: str) -> str:
    """`2026-11-16 07:01:02 ask  python train.py: the job uses …; heaviest: python 1234 3.1 GiB`."""
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return printable(
        f"{now} {alert.stage.in_words:<4}  {job}: {alert.reason}; heaviest: {heaviest_of(alert)}"
    )


def heaviest_of(alert: Alert) -> str:
    """`python 1234 3.1 GiB, sh 1233 1.0 MiB`."""
    return ", ".join(f"{one.name} {one.pid} {format_bytes(one.private_bytes)}" for one in alert.top)


def append_alert(path: Path, line: str) -> None:
    """Append a line to the file of alerts."""
    with storage_errors(path):
        make_private(path)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")


class Hooks:
    """Runs the user's command for each alert without waiting for it."""

    def __init__(self, command: str | None, environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, alert: Alert, *, pid: int, used_bytes: int, timeline: Path) -> None:
        """Start the command. The alert is in its environment, so no part of it can run as a command."""
        self._running = [one for one in self._running if one.poll() is None]
        if self._command is None:
            return
        variables = {
            "LOWTIDE_STAGE": alert.stage.in_words,
            "LOWTIDE_REASON": alert.reason,
            "LOWTIDE_PID": str(pid),
            "LOWTIDE_USED_BYTES": str(used_bytes),
            "LOWTIDE_TIMELINE": str(timeline),
        }
        self._running.append(
            subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                env={**self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # stdout is the job's own
                start_new_session=True,
            )
        )

    def finish(self) -> None:
        """Give running commands a moment to end; they may outlive the watch."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for one in self._running:
            try:
                one.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.returncode = 0  # it outlives us: Python must not warn that nobody waited for it
