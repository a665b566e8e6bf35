"""Runs a command inside a memory cgroup, or where none can be made under sampling, and tells which.

    result = run_in_box(["python", "-c", "…"], limit_bytes=256 * MIB, timeout=60)
    assert result.returncode == 0 and result.oom_kills == 0, result

The box is a child of this process's own cgroup (v1) or a sibling of it (v2, where a group with
processes may have no children), so that every limit that holds for the tests holds in the box too.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lowtide.memory.cgroups import MemoryCgroup, memory_cgroups
from lowtide.memory.meter import PeakMeter
from lowtide.memory.proc_files import read_text

How = Literal["cgroup v1", "cgroup v2", "sampled"]

_ENTER = 'echo $$ > "$0" && exec "$@"'
_numbers = itertools.count()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    how: How
    folder: Path


def run_in_box(
    command: Sequence[str],
    *,
    limit_bytes: int,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> BoxResult:
    """Run the command to its end; `subprocess.TimeoutExpired` after `timeout` seconds."""
    with _open_box(limit_bytes) as box:
        entered = _command_inside(box, command)
        with subprocess.Popen(
            entered,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            meter = PeakMeter(process.pid, interval_seconds=0.02)
            stdout, stderr = _finish(process, meter, timeout)
        return BoxResult(
            returncode=process.returncode,
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            peak_private_bytes=meter.peak.private_bytes,
            peak_charged_bytes=_peak_charged_bytes(box),
            oom_kills=_oom_kills(box),
            how=box.how if box else "sampled",
        )


def how_boxes_work() -> How:
    """Which kind of box this machine offers: made once, to see."""
    with _open_box(1 << 28) as box:
        return box.how if box else "sampled"


def drop_from_page_cache(path: Path) -> None:
    """Forget the file's cached pages: those already charged elsewhere are not charged to a box."""
    with path.open("rb") as file:
        os.fsync(file.fileno())  # a dirty page cannot be dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _command_inside(box: _Box | None, command: Sequence[str]) -> list[str]:
    """A shell that enters the group and becomes the command: all it takes is charged inside."""
    if box is None:
        return list(command)
    return ["/bin/sh", "-c", _ENTER, str(box.folder / "cgroup.procs"), *command]


def _finish(
    process: subprocess.Popen[bytes], meter: PeakMeter, timeout: float
) -> tuple[bytes, bytes]:
    with meter:
        try:
            return process.communicate(timeout=timeout)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


@contextmanager
def _open_box(limit_bytes: int) -> Iterator[_Box | None]:
    box = _make_box(limit_bytes)
    try:
        yield box
    finally:
        if box is not None:
            _remove(box)


def _make_box(limit_bytes: int) -> _Box | None:
    for parent in _parents():
        name = f"lowtide-box-{os.getpid()}-{next(_numbers)}"
        how: How = "cgroup v1" if parent.version == "v1" else "cgroup v2"
        box = _Box(how=how, folder=parent.folder / name)
        try:
            box.folder.mkdir()
        except OSError:
            continue
        try:
            _set_limit(box, limit_bytes)
            _try_to_enter(box)
        except (OSError, subprocess.CalledProcessError):
            _remove(box)
            continue
        return box
    return None


def _parents() -> Iterator[MemoryCgroup]:
    """Groups that may hold a box, the nearest first."""
    for group in memory_cgroups():
        shared = read_text(group.folder / "cgroup.subtree_control") or ""
        if group.version == "v1" or "memory" in shared.split():
            yield group


def _set_limit(box: _Box, limit_bytes: int) -> None:
    if box.how == "cgroup v1":
        (box.folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        swap, swap_limit = box.folder / "memory.memsw.limit_in_bytes", str(limit_bytes)
    else:
        (box.folder / "memory.max").write_text(str(limit_bytes))
        swap, swap_limit = box.folder / "memory.swap.max", "0"
    if swap.exists():  # else the overflow would hide there
        swap.write_text(swap_limit)


def _try_to_enter(box: _Box) -> None:
    """A group may be made and still be closed: v2 asks for rights on the common ancestor."""
    subprocess.run(_command_inside(box, ["true"]), check=True, capture_output=True)


def _remove(box: _Box) -> None:
    """Only what was started in the box is in it. The last charge may take a moment to go."""
    for _ in range(100):
        for pid in (box.folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            box.folder.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"the box {box.folder} could not be removed")


def _peak_charged_bytes(box: _Box | None) -> int | None:
    if box is None:
        return None
    name = "memory.max_usage_in_bytes" if box.how == "cgroup v1" else "memory.peak"
    file = box.folder / name
    return int(file.read_text()) if file.exists() else None


def _oom_kills(box: _Box | None) -> int:
    if box is None:
        return 0
    name = "memory.oom_control" if box.how == "cgroup v1" else "memory.events"
    counts = dict(line.split() for line in (box.folder / name).read_text().splitlines())
    return int(counts["oom_kill"])
