"""Child processes end with the run that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lowtide.child import Child, kill_session

BUSY = """
import sys
from lowtide.child import run_child

def serve():
    sys.stdout.buffer.write((1).to_bytes(8, "little") + b"x")
    sys.stdout.buffer.flush()
    while True:
        pass

if __name__ == "__main__":
    run_child(serve)
"""
PARENT = """
import sys
from lowtide.child import Child
child = Child("busy_child")
assert child.ask(b"") == b"x"
print(child._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="a killed parent is known by its number")
def test_a_busy_child_ends_when_its_run_is_killed(tmp_path: Path) -> None:
    (tmp_path / "busy_child.py").write_text(BUSY)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_child_that_was_ended_gives_no_answer() -> None:
    """Another thread may end it at any moment, also before the first request."""
    child = Child("lowtide.tokenizer.reference_apart")
    child.end()
    assert child.ask(b"anything") is None


@pytest.mark.skipif(os.name != "posix", reason="sessions and signals of POSIX")
def test_a_session_is_ended_even_if_its_first_process_has_gone() -> None:
    started = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True)"
    command = [sys.executable, "-c", started, "sleep", "3600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as first:
        assert first.stdout is not None
        left = psutil.Process(int(first.stdout.readline()))
        first.wait()
        assert left.is_running()
        kill_session(first)
    gone, alive = psutil.wait_procs([left], timeout=300)
    assert alive == [] or left.status() == psutil.STATUS_ZOMBIE, gone


@pytest.mark.skipif(os.name != "posix", reason="sessions and signals of POSIX")
def test_a_session_that_has_taken_the_id_of_one_that_ended_is_left_alone() -> None:
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as other:
        ended.pid = other.pid
        kill_session(ended)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        other.kill()
