"""Deaths to be explained: real children that die for real, under a timeline as `watch` writes it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lowtide.guard.box import open_box
from lowtide.journal import LOG_NAME, Journal
from lowtide.memory.meter import measure_tree
from lowtide.stages.why import Question
from lowtide.units import GIB, MIB

QUIET = "quiet-kernel.txt"
"""A kernel's log that reaches back to the boot and tells of nothing."""

SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


def question(folder: Path, **fields: object) -> Question:
    """About a death in that folder, with a kernel's log that tells nothing unless another is named."""
    quiet = folder / QUIET
    if not quiet.exists():
        quiet.write_text("[    0.000000] Linux version 6.8.0\n[    1.000000] all is well\n")
    given: dict[str, object] = {"timelines": folder / "state", "kernel_log": quiet, **fields}
    return Question(**given)  # type: ignore[arg-type]


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


@contextmanager
def child(
    folder: Path, command: Sequence[str], before: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to files, as a shell's redirection would have it."""
    with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
        process = subprocess.Popen(
            list(command), cwd=folder, stdout=out, stderr=err, preexec_fn=before
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until_ready(folder: Path) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if (folder / "out.txt").read_bytes().startswith(b"ready"):
            return
        time.sleep(0.01)
    raise AssertionError("the child did not start")


def begin(
    journal: Journal, process: subprocess.Popen[bytes], folder: Path, **fields: object
) -> None:
    journal.write(
        "start",
        kind="watch",
        version="0",
        pid=os.getpid(),
        job_pid=process.pid,
        settings={},
        **{
            "command": [str(word) for word in process.args],  # type: ignore[union-attr]
            "how": "sampled",
            "stdout_path": str(folder / "out.txt"),
            "stderr_path": str(folder / "err.txt"),
            **fields,
        },
    )


def read(journal: Journal, process: subprocess.Popen[bytes], **fields: object) -> None:
    use = measure_tree(process.pid)
    journal.write(
        "reading",
        **{
            "private_bytes": use.private_bytes,
            "swapped_bytes": use.swapped_bytes,
            "available_bytes": 8 * GIB,
            "cgroup_limit_bytes": None,
            "top": [{"pid": process.pid, "name": "python3", "private_bytes": use.private_bytes}],
            **fields,
        },
    )


def end(journal: Journal, process: subprocess.Popen[bytes], **fields: object) -> None:
    """What `watch` writes when the job has ended, from the real exit status."""
    code = process.wait()
    number = -code if code < 0 else None
    journal.write(
        "end",
        outcome="ended",
        exit_code=code if code >= 0 else 128 - code,
        signal=number,
        **{"oom_kills": None, "peak_private_bytes": MIB, **fields},
    )


def dies(
    code: str, *, before: Callable[[], None] | None = None, command: Sequence[str] | None = None
) -> Callable[[Path], Question]:
    """A child that runs this and ends by itself, under a whole timeline."""

    def stage(folder: Path) -> Question:
        path = folder / "timeline.jsonl"
        with Journal(path) as journal, child(folder, command or python(code), before) as process:
            begin(journal, process, folder)
            read(journal, process)
            end(journal, process)
        return question(folder, target=path)

    return stage


def killed_by(
    number: int, *, kernel: str | None = QUIET, **last: object
) -> Callable[[Path], Question]:
    """A child that sleeps until this signal comes from outside. `kernel`: None for a log that tells nothing."""

    def stage(folder: Path) -> Question:
        path = folder / "timeline.jsonl"
        with Journal(path) as journal, child(folder, python(SLEEP)) as process:
            begin(journal, process, folder)
            wait_until_ready(folder)
            read(journal, process, **last)
            process.send_signal(number)
            end(journal, process)
        (folder / "empty.txt").touch()
        log = folder / "empty.txt" if kernel is None else folder / kernel
        asked = question(folder, target=path)
        return question(folder, target=asked.target, kernel_log=log)

    return stage


def asked_by_watch(folder: Path) -> Question:
    path = folder / "timeline.jsonl"
    with Journal(path) as journal, child(folder, python(SLEEP)) as process:
        begin(journal, process, folder, limit_bytes=300 * MIB)
        wait_until_ready(folder)
        read(journal, process)
        reason = "the job uses 290.0 MiB of its limit of 300.0 MiB"
        journal.write("alert", stage="ask", reason=reason, top=[])
        process.terminate()
        end(journal, process, forced=False)
    return question(folder, target=path)


def out_of_memory_in_a_box(folder: Path, *, with_end: bool) -> Question:
    """A real cgroup with a real limit that is really reached."""
    grow = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    path = folder / "timeline.jsonl"
    with open_box(64 * MIB) as box:
        if box is None:
            pytest.skip("no memory cgroup can be made here")
        with Journal(path) as journal, child(folder, box.command_inside(python(grow))) as process:
            limits = {"limit_bytes": 64 * MIB, "how": box.how}
            begin(journal, process, folder, **limits)
            read(journal, process, cgroup_limit_bytes=64 * MIB)
            if with_end:
                process.wait()
                end(journal, process, oom_kills=box.oom_kills())
            process.wait()
    return question(folder, target=path)


def small_address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def run_folder(folder: Path, **fields: object) -> Path:
    """A run of ours that began in a process which is dead by now; with fields, how it said it ended."""
    run = folder / "run"
    run.mkdir()
    gone = subprocess.Popen(python("pass"))
    gone.wait()
    settings = {
        "micro_batch": 8,
        "shape": {"context": 1024, "vocabulary_size": 50304, "width": 768},
    }
    with Journal(run / LOG_NAME) as journal:
        journal.write("start", kind="train", version="0", pid=gone.pid, settings=settings, step=0)
        journal.write("step", step=12, loss=3.5, private_bytes=300 * MIB)
        journal.write("memory", private_bytes=300 * MIB, available_bytes=8 * GIB)
        if fields:
            journal.write("end", **fields)
    return run


def ended_run(**fields: object) -> Callable[[Path], Question]:
    def stage(folder: Path) -> Question:
        return question(folder, target=run_folder(folder, **fields))

    return stage


def log_of(*lines: str, **asked: object) -> Callable[[Path], Question]:
    """A log that ends with these lines."""

    def stage(folder: Path) -> Question:
        (folder / "train.log").write_text("\n".join(lines) + "\n")
        return question(folder, target=folder / "train.log", **asked)

    return stage
