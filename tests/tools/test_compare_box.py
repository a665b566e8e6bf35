"""Whatever a program does in its box, its end is named rightly, and nothing of it is alive afterwards."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lowtide.errors import InterruptedRun, StoppedError
from lowtide.events import StopReason
from lowtide.guard.box import Box, open_box
from lowtide.tools.compare.run_boxed import (
    Boxed,
    BoxedJob,
    Moment,
    run_boxed,
    thin_out,
)
from lowtide.units import MIB

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sessions and signals of POSIX")

LEAK = """
import time
held = []
while True:
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.004)
"""
LEAK_IN_A_CHILD = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-c", {LEAK!r}])
time.sleep(600)  # as a pool does, whose worker was killed
"""
LEAVE_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open("child", "w").write(str(child.pid))
time.sleep(float(sys.argv[1]))
"""


def run(
    work: Path,
    *code: str,
    box: Box | None = None,
    limit_bytes: int = 128 * MIB,
    timeout_seconds: float = 30.0,
    should_stop: Callable[[], StopReason | None] = lambda: None,
    look: Callable[[Moment], None] = lambda _moment: None,
) -> Boxed:
    job = BoxedJob(
        command=[sys.executable, "-c", *code],
        work=work,
        text_bytes=1000,
        environment=os.environ,
        limit_bytes=limit_bytes,
        timeout_seconds=timeout_seconds,
    )
    return run_boxed(job, box, should_stop=should_stop, look=look)


def is_gone(work: Path) -> bool:
    """Whether the child that the command left is no more; a killed one may be seen for a moment yet."""
    pid = int((work / "child").read_text())
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_a_leak_dies_at_the_limit_of_its_cgroup(tmp_path: Path) -> None:
    with open_box(128 * MIB) as box:
        if box is None:
            pytest.skip("no cgroup can be made here")
        found = run(tmp_path, LEAK, box=box)
    assert found.ending == "died"
    assert found.in_words == "died at the limit"
    assert found.peak_private_bytes <= 128 * MIB
    assert found.peak_charged_bytes is not None
    assert not box.folder.exists()


def test_a_leak_dies_without_a_cgroup_as_well(tmp_path: Path) -> None:
    found = run(tmp_path, LEAK)
    assert found.ending == "died"
    assert 128 * MIB < found.peak_private_bytes < 1.7 * 128 * MIB  # twice is where the wall stands


def test_a_jump_between_two_looks_meets_a_wall(tmp_path: Path) -> None:
    found = run(tmp_path, "held = bytearray(b'x') * (1 << 30)")
    assert found.ending == "died"
    assert found.peak_private_bytes < 2 * 128 * MIB


def test_a_program_that_lost_a_process_has_died_even_if_it_waits_for_it(tmp_path: Path) -> None:
    with open_box(128 * MIB) as box:
        if box is None:
            pytest.skip("no cgroup can be made here")
        found = run(tmp_path, LEAK_IN_A_CHILD, box=box)
    assert found.ending == "died"
    assert found.seconds < 300


@pytest.mark.parametrize("seconds", ["0", "60"], ids=["it ended", "it hangs"])
def test_what_a_program_leaves_behind_is_ended_with_it(tmp_path: Path, seconds: str) -> None:
    found = run(tmp_path, LEAVE_A_CHILD, seconds, timeout_seconds=1.0)
    assert found.ending == ("finished" if seconds == "0" else "too slow")
    assert is_gone(tmp_path)


@pytest.mark.parametrize(
    ("reason", "kind"), [("interrupted", InterruptedRun), ("terminated", StoppedError)]
)
def test_a_stop_ends_the_program(
    tmp_path: Path, reason: StopReason, kind: type[StoppedError]
) -> None:
    def asked() -> StopReason | None:
        return reason if (tmp_path / "child").exists() else None

    with pytest.raises(kind) as stopped:
        run(tmp_path, LEAVE_A_CHILD, "60", should_stop=asked)
    assert type(stopped.value) is kind
    assert is_gone(tmp_path)


@pytest.mark.parametrize(
    ("code", "ending", "told"),
    [
        ("pass", "finished", ""),
        ("raise ValueError('no such thing')", "failed", "ValueError: no such thing"),
        ("import sys; sys.stderr.write('error: needs 3\\nhint: more\\n'); sys.exit(3)", "refused", "needs 3"),
        ("raise MemoryError", "died", ""),
    ],
)  # fmt: skip
def test_every_end_is_told_in_its_own_words(
    tmp_path: Path, code: str, ending: str, told: str
) -> None:
    found = run(tmp_path, code)
    assert (found.ending, found.complaint) == (ending, told)


def test_how_far_it_came_is_what_it_told_last(tmp_path: Path) -> None:
    told = "import time; open('progress', 'w').write('250\\n120\\n= joining\\n99'); time.sleep(60)"
    moments: list[Moment] = []
    found = run(tmp_path, told, timeout_seconds=1.0, look=moments.append)
    assert found.share == 0.37  # a line that is not finished does not count
    assert found.in_words == "too slow, ended after 37 %, joining"
    assert moments[-1].share == 0.37
    assert moments[-1].private_bytes > 0


def test_thinned_points_keep_the_peak_and_the_end() -> None:
    points = [(number / 10, number % 97) for number in range(5000)]
    points[1234] = (123.4, 10_000)
    thin = thin_out(points)
    assert len(thin) <= 481
    assert (123.4, 10_000) in thin
    assert thin[-1] == points[-1]
    assert list(thin) == sorted(thin)
