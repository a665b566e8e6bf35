"""Processes of our own go with the run that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

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
def test_a_busy_child_goes_when_its_run_is_killed(tmp_path: Path) -> None:
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
