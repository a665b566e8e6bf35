"""A process whose child stays between vfork and exec, and so runs in its parent's memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lowtide.memory.meter import child_pids

_WAITING = """
import os, sys
kept = bytearray(b"x") * ({mib} << 20)
actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]  # waits for somebody who writes
child = os.posix_spawn("/bin/cat", ["cat"], os.environ, file_actions=actions)
print("executed", flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"""


@contextmanager
def child_in_vfork(folder: Path, *, mib: int) -> Iterator[tuple[int, Callable[[], None]]]:
    """The parent's id, and what lets the child execute its program."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", _WAITING.format(mib=mib), str(fifo)]
    opened: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None

        def execute() -> None:
            assert process.stdout is not None
            opened.append(os.open(fifo, os.O_RDWR))  # does not wait for a reader
            assert process.stdout.readline() == b"executed\n"

        try:
            while not child_pids(process.pid):
                assert process.poll() is None
                time.sleep(0.01)
            yield process.pid, execute
        finally:
            if not opened:
                execute()
            os.close(opened[0])
            process.communicate(b"")
