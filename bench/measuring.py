"""Ways to do one job, run alone and in turns: CPU seconds, wall seconds, peak private memory, and their rows.

CPU seconds and memory are those of the whole process tree, from its start to its last fsync. A way that fails,
or that takes more memory than the machine can give, gets a row that says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from lowtide.memory.meter import measure_tree
from lowtide.units import format_bytes

HEADER = (
    "CPU s (range) | wall s (range) | MB per CPU s | × {} by CPU | × by wall time | peak private"
)
GROWTH_HEADER = (
    "| way | CPU s: a quarter | the whole | grows × | peak: a quarter | the whole | grows × |\n"
    "|---|--:|--:|--:|--:|--:|--:|"
)
_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""
_PATIENCE_SECONDS = 5
_LEAST_INTERVAL_SECONDS = 0.05
_SHARE_OF_SAMPLING = 4
"""A look at gigabytes takes tens of milliseconds: the meter rests four times as long as it looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to do the job: a name, how much text it reads, and the command that works in an empty folder."""

    name: str
    text_bytes: int
    command: Callable[[Path], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the variables that this process has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a way."""

    cpu_seconds: float
    wall_seconds: float
    peak_private_bytes: int


@dataclass(slots=True, kw_only=True)
class Runs:
    """All runs of a way; after the first failure there are no more."""

    way: Way
    measured: list[Measured] = field(default_factory=list)
    failure: str = ""
    said: str = ""
    """What a look at the first run's output found."""

    @property
    def cpu_seconds(self) -> float:
        return statistics.median(run.cpu_seconds for run in self.measured)

    @property
    def wall_seconds(self) -> float:
        return statistics.median(run.wall_seconds for run in self.measured)

    @property
    def peak_private_bytes(self) -> int:
        return max(run.peak_private_bytes for run in self.measured)


class FailedRunError(Exception):
    """A way ended with an error, or was ended because of its memory."""


def is_wanted(name: str, only: str, skip: str) -> bool:
    """Whether a way is asked for by `--only a,b` and not left out by `--skip c,d`."""
    left_out = any(part in name for part in skip.split(",") if part)
    return any(part in name for part in only.split(",")) and not left_out


# Measuring


class _Meter(threading.Thread):
    """Samples a process tree, and ends its process group when it takes more than the limit."""

    def __init__(self, pid: int, limit_bytes: int) -> None:
        super().__init__(name="bench-meter", daemon=True)
        self._pid, self._limit_bytes = pid, limit_bytes
        self._stopped = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        rest = 0.0
        while not self._stopped.wait(rest):
            started = time.monotonic()
            self.peak_bytes = max(self.peak_bytes, measure_tree(self._pid).private_bytes)
            if self.is_beyond:
                _kill_group(self._pid)
                return
            taken = time.monotonic() - started
            rest = max(_LEAST_INTERVAL_SECONDS, _SHARE_OF_SAMPLING * taken)

    @property
    def is_beyond(self) -> bool:
        return self.peak_bytes > self._limit_bytes

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def most_bytes() -> int:
    """What a way may take before it is ended: nine tenths of what is free now."""
    return psutil.virtual_memory().available * 9 // 10


def measure(way: Way, folder: Path) -> Measured:
    """Run a way in an empty folder, which keeps what it wrote; raises FailedRunError."""
    with _orphans_are_ours(), tempfile.TemporaryFile() as words:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic()
        process = subprocess.Popen(
            way.command(folder),
            env={**os.environ, **way.environment},
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
        meter = _Meter(process.pid, most_bytes())
        meter.start()
        with _ended_together(process, meter):
            code = process.wait()
            wall_seconds = time.monotonic() - started
            meter.stop()
            _wait_for_orphans(process.pid)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if meter.is_beyond:
            raise FailedRunError(f"ended at {format_bytes(meter.peak_bytes)}")
        if code:
            words.seek(0)
            print(words.read().decode(errors="replace")[-3000:], file=sys.stderr)
            raise FailedRunError(f"failed with exit code {code}")
    return Measured(
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        wall_seconds=wall_seconds,
        peak_private_bytes=meter.peak_bytes,
    )


@contextlib.contextmanager
def _orphans_are_ours() -> Iterator[None]:
    """Processes that a way leaves behind become ours, so that their CPU seconds are counted: Linux alone.

    Python's fork server is such a one, and all workers that it started count as its own.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    if prctl:
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        if prctl:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextlib.contextmanager
def _ended_together(process: subprocess.Popen[bytes], meter: _Meter) -> Iterator[None]:
    """Whatever interrupts us, Ctrl-C above all, ends the way: nobody writes where a folder is removed."""
    try:
        yield
    except BaseException:
        _kill_group(process.pid)
        meter.stop()
        process.wait()
        _wait_for_orphans(process.pid)
        raise


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself meanwhile
        os.killpg(group, signal.SIGKILL)


def _wait_for_orphans(group: int) -> None:
    """They end soon after the first process; what does not is killed, and counted as well."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            found, _ = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return
        if found == 0 and time.monotonic() > deadline:
            _kill_group(group)
        if found == 0:
            time.sleep(0.01)


def compare(
    ways: Iterable[Way], rounds: int, look: Callable[[Way, Path], str] | None = None
) -> list[Runs]:
    """All ways, taking turns, so that a slow minute of the machine hits each of them.

    `look` sees what the first run of a way has written, and what it says is kept.
    """
    every = [Runs(way=way) for way in ways]
    for number in range(rounds):
        for runs in every:
            if not runs.failure:
                _run_once(runs, look if number == 0 else None)
    return every


def _run_once(runs: Runs, look: Callable[[Way, Path], str] | None) -> None:
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        try:
            found = measure(runs.way, Path(folder))
        except FailedRunError as error:
            runs.failure = str(error)
            print(f"{runs.way.name}: {error}", file=sys.stderr, flush=True)
            return
        runs.measured.append(found)
        runs.said = look(runs.way, Path(folder)) if look else runs.said
        print(_progress(runs.way.name, found, runs.said), file=sys.stderr, flush=True)


def _progress(name: str, found: Measured, said: str) -> str:
    peak = format_bytes(found.peak_private_bytes)
    times = f"{found.cpu_seconds:.2f} CPU s, {found.wall_seconds:.2f} s"
    return f"{datetime.now():%H:%M:%S} {name}: {times}, {peak} {said}"


# Rows


def row(runs: Runs, baseline: Runs | None) -> str:
    """Medians and ranges, and the ratios to the baseline; above 1 is better than the baseline."""
    if runs.failure or not runs.measured:
        return f"| {runs.way.name} | {runs.failure or 'not run'} | | | | | |"
    cpu, wall = runs.cpu_seconds, runs.wall_seconds
    ratios = "|"
    if baseline is not None and baseline.measured:
        ratios = f"{baseline.cpu_seconds / cpu:.2f} | {baseline.wall_seconds / wall:.2f}"
    return (
        f"| {runs.way.name} | {_spread([run.cpu_seconds for run in runs.measured])} | "
        f"{_spread([run.wall_seconds for run in runs.measured])} | "
        f"{runs.way.text_bytes / 1e6 / cpu:.0f} | {ratios} | {format_bytes(runs.peak_private_bytes)} |"
    )


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def growth_row(quarter: Runs, whole: Runs) -> str:
    """How CPU seconds and peak grow when the text is four times as long; 4 and 1 are what one hopes for."""
    failure = quarter.failure or whole.failure
    if failure or not (quarter.measured and whole.measured):
        return f"| {whole.way.name} | {failure or 'not run'} | | | | | |"
    cpu = f"{quarter.cpu_seconds:.2f} | {whole.cpu_seconds:.2f}"
    peak = f"{format_bytes(quarter.peak_private_bytes)} | {format_bytes(whole.peak_private_bytes)}"
    more_peak = whole.peak_private_bytes / quarter.peak_private_bytes
    more_cpu = whole.cpu_seconds / quarter.cpu_seconds
    return f"| {whole.way.name} | {cpu} | {more_cpu:.2f} | {peak} | {more_peak:.2f} |"


# What stands above a table


def describe_run(versions: Mapping[str, str]) -> str:
    """Date, machine, the command, and what each peer's environment holds."""
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}; load before {os.getloadavg()[0]:.2f}.",
        f"\n```bash\n{shlex.join(['python', *_own_arguments()])}\n```\n",
        *(f"- {peer}: {found}" for peer, found in versions.items()),
    ]
    return "\n".join(lines) + "\n"


def _own_arguments() -> list[str]:
    script = Path(sys.argv[0])
    return [f"{script.parent.name}/{script.name}", *sys.argv[1:]]


def describe_machine() -> str:
    """Cores, processor, memory, system and Python."""
    memory = format_bytes(psutil.virtual_memory().total)
    python = f"Python {platform.python_version()}"
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores of {_processor()}, {memory}, {system}, {python}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
