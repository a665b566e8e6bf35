"""Jobs that fork, share, hide, write elsewhere or fail around the watch: none escapes, none is wronged."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.guard.box import open_box
from lowtide.guard.job import start_time
from lowtide.guard.reading import Reader
from lowtide.memory.cgroups import memory_cgroups
from lowtide.units import MIB
from tests.commands import LOWTIDE
from tests.laws.test_watch import DEAF_LEAK, SEEN, Desk, python
from tests.machine_speed import slowness

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches Linux processes"),
]

FORKING = """
import os, time
kept = bytearray(b'x') * (150 << 20)
time.sleep(0.5)
for _ in range(5):
    if os.fork() == 0:
        time.sleep(1.5)
        os._exit(0)
time.sleep(2)
"""
FORKED = """
import os
kept = bytearray(b'x') * (150 << 20)
for _ in range(5):
    if os.fork() == 0:
        break
os.read(0, 1)
"""
GROWING_WHEN_WORKERS_LEAVE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = [bytearray(b'x') * (60 << 20)]
for _ in range(5):
    if os.fork() == 0:
        time.sleep(1.2)
        os._exit(0)
time.sleep(1.5)
while True:
    kept.append(bytearray(b'x') * (5 << 20))
    until_seen()
"""
SHARED_BY_WRITE = """
with open(sys.argv[2], 'wb') as file:
    for _ in range(60):
        file.write(b'x' * (5 << 20))
        file.flush()
        until_seen()
"""
LEAVES_ITS_GROUP = """
import os
with open(sys.argv[2], 'w') as file:
    file.write(str(os.getpid()))
kept = []
for _ in range(60):
    kept.append(bytearray(b'x') * (5 << 20))
    until_seen()
"""
ONCE_MORE = """
import signal
asked, first = [], None
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for times in (1, 2):
    kept = bytearray(b'x') * (180 << 20)
    while len(asked) < times:
        until_seen()
    first = first or time.monotonic()
    del kept
    until_seen()
time.sleep(max(0, first + 10.5 - time.monotonic()))  # longer than the grace
print(len(asked))
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def has_boxes() -> bool:
    with open_box(None) as box:
        return box is not None


def test_a_job_that_forks_is_not_taken_for_larger_than_it_is(desk: Desk) -> None:
    code, _, err = desk.finish("--limit", "400MiB", "--until", "end", command=python(FORKING))
    assert code == 0, err
    assert desk.told("alert") == []


def test_without_a_box_an_exact_look_comes_before_any_alarm() -> None:
    with subprocess.Popen(python(FORKED), stdin=subprocess.PIPE) as process:
        reader = Reader(pid=process.pid, _next_exact=math.inf)
        while (reading := reader.read()) is None or reading.process_count < 6:
            assert process.poll() is None
            time.sleep(0.01)
        exact = reader.read(exactly=True)
        process.communicate()  # their input ends, and so do they
    assert reading.private_bytes > 300 * MIB  # what counters alone say
    assert exact is not None
    assert 150 * MIB < exact.private_bytes < 250 * MIB


def test_growth_after_workers_have_left_is_seen(desk: Desk) -> None:
    flags = ("--limit", "200MiB", "--until", "end", "--grace", "2")
    code, _, err = desk.finish(*flags, command=desk.job(GROWING_WHEN_WORKERS_LEAVE))
    assert code == 128 + signal.SIGKILL, err
    assert desk.told("end")[0]["forced"] is True


def test_a_pipeline_does_not_escape_when_its_shell_has_gone(desk: Desk) -> None:
    leak = desk.folder / "leak.py"
    leak.write_text(SEEN + DEAF_LEAK)
    command = ["sh", "-c", f"{sys.executable} {leak} {desk.timeline} | cat; true"]
    flags = ("--limit", "200MiB", "--until", "end", "--grace", "2")
    code, _, err = desk.finish(*flags, command=command)
    (end,) = desk.told("end")
    assert end["forced"] is True, err
    assert float(str(end["own_cpu_seconds"])) < 2 * slowness()  # it waits, it does not spin
    alive = subprocess.run(["pgrep", "-f", str(leak)], capture_output=True, text=True, check=False)
    assert alive.stdout == ""
    assert code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)


@pytest.mark.skipif(not has_boxes(), reason="no cgroup can be made here")
def test_shared_memory_that_is_only_written_counts(desk: Desk) -> None:
    place = Path("/dev/shm") / f"lowtide-test-{os.getpid()}"
    try:
        desk.finish("--limit", "150MiB", command=desk.job(SHARED_BY_WRITE, str(place)))
    finally:
        place.unlink(missing_ok=True)
    assert [alert["stage"] for alert in desk.told("alert")][-1:] == ["ask"]


@pytest.mark.skipif(not has_boxes(), reason="no cgroup can be made here")
def test_a_process_that_leaves_the_cgroup_is_still_watched(desk: Desk) -> None:
    place = memory_cgroups(Path("/"))[0].folder / "cgroup.procs"
    code, _, err = desk.finish("--limit", "150MiB", command=desk.job(LEAVES_ITS_GROUP, str(place)))
    assert [alert["stage"] for alert in desk.told("alert")][-1:] == ["ask"], err
    assert code == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_job_that_gave_back_is_asked_again_and_never_ended_for_the_past(desk: Desk) -> None:
    flags = ("--limit", "195MiB", "--until", "end", "--grace", "10")
    code, out, err = desk.finish(*flags, command=desk.job(ONCE_MORE))
    assert (code, out) == (0, "2\n"), err


def test_descriptors_of_the_caller_reach_the_job(desk: Desk) -> None:
    read, write = os.pipe()
    os.write(write, b"from outside\n")
    os.close(write)
    command = ["sh", "-c", f"cat /dev/fd/{read}"]
    with desk.watch("--quiet", command=command, pass_fds=(read,)) as process:
        out, _ = process.communicate(timeout=300)
    os.close(read)
    assert out == "from outside\n"


@pytest.mark.parametrize("broken", ["--alerts", "--stop-file", "--timeline"])
def test_a_disk_that_says_no_is_told_and_the_guard_goes_on(desk: Desk, broken: str) -> None:
    file = desk.folder / "a file"
    file.write_text("")
    where = "/dev/full" if broken == "--timeline" else str(file / "inside")
    flags = ("--limit", "150MiB", "--until", "end", "--grace", "1", broken, where)
    leak = DEAF_LEAK
    if broken == "--timeline":  # nobody can wait for what is not written
        leak = leak.replace("until_seen()", "time.sleep(0.1)")
    code, _, err = desk.finish(*flags, command=desk.job(leak))
    assert code == 128 + signal.SIGKILL, err
    assert "no longer used" in err or "could not leave the stop file" in err


def test_a_file_that_is_no_timeline_is_left_alone_and_nothing_is_started(desk: Desk) -> None:
    desk.timeline.write_text("my notes\n")
    made = desk.folder / "made"
    code, _, err = desk.finish(command=["touch", str(made)])
    assert (code, desk.timeline.read_text(), made.exists()) == (2, "my notes\n", False)
    assert "holds something else than a timeline" in err


def test_who_it_runs_in_is_not_ended(desk: Desk) -> None:
    script = f"{' '.join(LOWTIDE)} watch --pid $$ --until end --timeline {desk.timeline}; echo $?"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=desk.environment,
        timeout=300,
        check=False,
    )
    assert done.stdout == "2\n"
    assert "this watch runs inside it" in done.stderr


def test_what_the_job_leaves_running_is_neither_killed_nor_fenced(desk: Desk) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '64'], start_new_session=True, stdout=2).pid)"
    with desk.watch("--limit", "500MiB", command=python(code)) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.wait(300)
        try:
            assert start_time(pid) is not None
        finally:
            os.kill(pid, signal.SIGKILL)
        _, err = process.communicate()
    assert process.returncode == 0
    assert "keep running, unwatched" in err
