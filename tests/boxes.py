"""Runs a command inside a memory cgroup, or where none can be made under sampling, and tells which.

result = run_in_box(["python", "-c", "…"], limit_bytes=256 * MIB, timeout=60)
assert result.returncode == 0 and result.oom_kills == 0, result
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lowtide.guard.box import open_box
from lowtide.memory.meter import PeakMeter

How = Literal["cgroup v1", "cgroup v2", "sampled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxResult:
    """What came out of the box. "sampled" enforced no limit: compare the peak yourself."""

    returncode: int
    stdout: str
    stderr: str
    peak_private_bytes: int
    """Highest sample (every 20 ms) of anonymous and shared memory over the process tree."""
    peak_charged_bytes: int | None
    """The cgroup's own high-water mark, page cache included; `None` where none was kept."""
    oom_kills: int
    how: How


def run_in_box(
    command: Sequence[str],
    *,
    limit_bytes: int,
    timeout: float,
    env: Mapping[str, str] | None = None,
    until_peak_bytes: int = 0,
) -> BoxResult:
    """Run the command to its end; `subprocess.TimeoutExpired` after `timeout` seconds.

    With `until_peak_bytes`, its standard input ends when a sample has shown that peak.
    """
    with open_box(limit_bytes) as box:
        entered = box.command_inside(command) if box else list(command)
        with subprocess.Popen(
            entered,
            env=env,
            stdin=subprocess.PIPE if until_peak_bytes else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            meter = PeakMeter(process.pid, interval_seconds=0.02)
            stdout, stderr = _finish(process, meter, timeout, until_peak_bytes)
        return BoxResult(
            returncode=process.returncode,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            peak_private_bytes=meter.peak.private_bytes,
            peak_charged_bytes=box.peak_charged_bytes() if box else None,
            oom_kills=box.oom_kills() if box else 0,
            how=box.how if box else "sampled",
        )


def how_boxes_work() -> How:
    """Which kind of box this machine offers: made once, to see."""
    with open_box(1 << 28) as box:
        return box.how if box else "sampled"


def drop_from_page_cache(path: Path) -> None:
    """Forget the file's cached pages: those already charged elsewhere are not charged to a box."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # a dirty page cannot be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _finish(
    process: subprocess.Popen[bytes], meter: PeakMeter, timeout: float, until_peak_bytes: int
) -> tuple[bytes, bytes]:
    until = time.monotonic() + timeout
    with meter:
        try:
            while meter.peak.private_bytes < until_peak_bytes and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            return process.communicate(timeout=timeout)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
