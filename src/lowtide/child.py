"""Start, ask and end child processes that run our Python code, without the current folder on `sys.path`.

A `Child` answers requests until its standard input ends, so it dies with its parent. Each request and each
answer is a frame: its length (8 bytes), then its content. A `WorkingChild` does one long piece of work.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO

OUT_OF_MEMORY = 81
"""The exit code of a child that met a MemoryError."""
_LENGTH = struct.Struct("<Q")
_EXIT_SECONDS = 10
"""How long a child that closed its pipes may take to exit: only then is its exit code known."""
_STDERR_BYTES = 4096
_MESSAGE_SECONDS = 0.1
"""How long a parent waits for a message before it looks whether to stop."""
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


class WorkingChild:
    """A process that runs `module`, is sent one line of JSON, and tells in lines of JSON what it does.

    Its standard input stays open until `end`: when it closes, the parent is gone.
    """

    def __init__(
        self, module: str, request: bytes, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process, in the `environment` or else in that of this one."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            python_command("-m", module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal must reach the parent alone
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died at once: its code says so
            self.process.stdin.write(request + b"\n")
            self.process.stdin.flush()

    def messages(self) -> Iterator[dict[str, object]]:
        """Every message as it comes, and an empty one now and then, until the process has ended."""
        while True:
            line: bytes | None = b"{}\n"
            with suppress(queue.Empty):
                line = self._lines.get(timeout=_MESSAGE_SECONDS)
            if line is None:
                break
            if line.startswith(b"{") and line.endswith(b"}\n"):  # a library may print, a kill tears
                yield json.loads(line)
        self.process.wait()

    def end(self) -> tuple[int, str]:
        """End the process and all it started; its exit code and the last it wrote to standard error."""
        kill_session(self.process)
        self._reader.join()  # it reads from the pipe that is closed now
        return _end(self.process, self._stderr)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def tell_parent(**message: object) -> None:
    """Send a message of a `WorkingChild` to its parent. NaN is known: a loss may be that."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


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
