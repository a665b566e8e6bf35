"""Start, ask and end child processes that run our Python code, without the current folder on `sys.path`.

A child answers requests until its standard input ends, so it dies with its parent. Each request and each
answer is a frame: its length (8 bytes), then its content.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

OUT_OF_MEMORY = 81
"""The exit code of a child that met a MemoryError."""
_LENGTH = struct.Struct("<Q")
_EXIT_SECONDS = 10
"""How long a child that closed its pipes may take to exit: only then is its exit code known."""
_STDERR_BYTES = 4096
_LOOK_SECONDS = 0.5
"""How long an orphaned child may take to notice that its parent died."""


def python_command(*arguments: str) -> list[str]:
    """The command line that starts Python, such as `python_command("-m", "lowtide", …)`. Every child uses it.

    `-P` keeps the current folder out of `sys.path`: a `json.py` that came with somebody's data would run.
    `PYTHONPATH` still applies, because it is set on purpose.
    """
    return [sys.executable, "-P", *arguments]


class Child:
    """A process that runs `module` and answers each frame with one frame."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the process. `environment` is added to the environment of this one."""
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would block the child
        self._process = subprocess.Popen(
            python_command("-m", module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | (environment or {}),
            start_new_session=True,  # Ctrl-C in the terminal must reach the parent alone
        )
        self._end = weakref.finalize(self, _end, self._process, stderr)

    def ask(self, request: bytes) -> bytes | None:
        """The child's answer; None when the child has died, or another thread has ended it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(OSError, ValueError):  # ValueError: another thread has closed the streams
                write_frame(process.stdin, request)
                answer = read_frame(process.stdout)
                if answer is not None:
                    return answer
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_SECONDS)
        except BaseException:  # in the middle of a request: the next answer would belong to it
            self.end()
            raise
        return None

    def end(self) -> tuple[int, str]:
        """End the child, killing it if it still runs; its exit code and the last it wrote to standard error."""
        return self._end() or (self._process.returncode, "")


def _end(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> tuple[int, str]:
    process.kill()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # bytes that were not sent are no longer needed
            if stream is not None:
                stream.close()
    code = process.wait()
    with stderr:
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
        return code, stderr.read().decode(errors="replace").strip()


def kill_session(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a process that was started with `start_new_session`, and all it started, such as compilers."""
    if hasattr(os, "killpg") and not (process.returncode is not None and _exists(process.pid)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _exists(pid: int) -> bool:
    """Whether the process id is in use; once its process was waited for, it and its group are another's."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def ran_out_of_memory(code: int) -> bool:
    """Whether a child with this exit code died of a MemoryError, an aborted allocation or the OOM killer."""
    if os.name == "posix" and code in (-signal.SIGABRT, -signal.SIGKILL):
        return True
    return code == OUT_OF_MEMORY


def run_child(serve: Callable[[], None]) -> None:
    """Run `serve` as a child's main function. Signals are ignored: the parent decides when it ends."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a scheduler may send these to every process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        serve()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # an orderly exit may need memory


def _leave_with_parent(parent: int) -> None:
    """Exit when the parent dies: a busy child does not notice that its input ended, and would keep working."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def write_frame(sink: IO[bytes], data: bytes) -> None:
    """Send one message."""
    sink.write(_LENGTH.pack(len(data)))
    sink.write(data)
    sink.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """Receive one message; None when the other side is gone."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = source.read(length)
    return data if len(data) == length else None
