"""A job is started with our streams, asked by steps, ended with all it started, and left alone otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.guard.box import open_box
from lowtide.guard.job import (
    Asking,
    check_command,
    find_job,
    start_job,
    start_time,
    written_file,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes as Linux has them")
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(60)
"""


def wait_for(question: object, seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if question():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def test_an_exit_code_and_a_signal_are_told_apart() -> None:
    with start_job(["sh", "-c", "exit 7"], fence_bytes=None) as job:
        job.wait(300)
        assert not job.is_running
        assert (job.outcome().exit_code, job.outcome().signal) == (7, None)
    with start_job(["sh", "-c", "kill -SEGV $$"], fence_bytes=None) as job:
        job.wait(300)
        assert (job.outcome().exit_code, job.outcome().signal) == (139, signal.SIGSEGV)


def test_the_kernel_would_take_the_job_first() -> None:
    with start_job(["sleep", "60"], fence_bytes=None) as job:
        path = Path(f"/proc/{job.pid}/oom_score_adj")
        assert wait_for(lambda: path.read_text().strip() == "500")
        job.end()
        assert not job.is_running


def test_ending_takes_everything_it_started() -> None:
    code = "import subprocess, sys, time; [subprocess.Popen(['sleep', '61']) for _ in range(3)]; time.sleep(60)"
    with start_job([sys.executable, "-c", code], fence_bytes=None) as job:
        assert wait_for(lambda: len(job.members()) == 4)
        pids = job.members()
        job.end()
        assert wait_for(lambda: not any(start_time(pid) for pid in pids if pid != job.pid))


def test_what_lives_on_is_let_go_and_not_killed() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '62'], start_new_session=True).pid)"
    with open_box(None) as box:
        if box is None:
            pytest.skip("no cgroup can be made here")
    with start_job([sys.executable, "-c", code], fence_bytes=None) as job:
        job.wait(300)
        (left,) = job.members()
    assert start_time(left) is not None
    assert job.box is not None
    assert not job.box.folder.exists()
    os.kill(left, signal.SIGKILL)


def test_asking_goes_by_steps(tmp_path: Path) -> None:
    stop = tmp_path / ".stop"
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with find_job(process.pid) as job:
            asking = Asking(job=job, grace_seconds=10.0, stop_file=stop, began=100.0)
            assert asking.advance(100.0) == f"left the stop file {stop}"
            assert stop.exists()
            assert asking.advance(104.9) is None
            assert asking.advance(105.0) == f"sent SIGTERM to process {process.pid}"
            assert asking.advance(109.9) is None  # a single process has been asked already
            assert not asking.is_over(109.9)
            assert asking.is_over(110.0)
            job.end()
        process.wait()


def test_an_id_that_was_given_out_again_is_another_job() -> None:
    with subprocess.Popen(SLEEP) as process:
        with find_job(process.pid) as job:
            assert job.is_running
            job._started = 1  # as if the id belonged to a process that started long ago
            assert not job.is_running
        process.kill()


def test_who_does_not_exist_is_told() -> None:
    with pytest.raises(UsageError, match="there is no process 4194999"), find_job(4_194_999):
        pass
    with pytest.raises(UsageError, match="there is no command 'lowtide-no-such'"):
        check_command(["lowtide-no-such"])


def test_the_file_that_output_goes_to_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with (
        log.open("wb") as file,
        subprocess.Popen(SLEEP, stderr=file, stdout=subprocess.PIPE) as process,
    ):
        assert written_file(process.pid, 2) == log
        assert written_file(process.pid, 1) is None
        process.kill()
        process.communicate()
