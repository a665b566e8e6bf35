"""Fail every system call that a small job makes on its output folder, once each, in three ways.

    python -m bench.faults --parallel 2

strace makes one call of a run answer EIO or ENOSPC without doing anything, or kills the run there.
Then: the fault did fire, the run ended with `error:` and `hint:` (or by the kill), nothing half-written
stands under a final name, and the same command without a fault ends in the same bytes as a run that
nobody disturbed. The runs: a fresh one; one that goes on after a kill in the last rename of all; one
that begins again there with `--restart`, as far as it differs from a fresh one; and of the format with
the most files (Megatron's) the seal, and going on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.jobs import (
    BrokenLawError,
    Job,
    check_nothing_half_written,
    check_whole,
    check_words,
    finish,
    make_jobs,
)
from lowtide.cli.main import main as lowtide_main

TEXT_BYTES = 250_000
SHARD_TOKENS = 50_000
WAYS = ("EIO", "ENOSPC", "SIGKILL")
CALLS = (
    *("write", "pwrite64", "writev", "ftruncate", "fsync", "fdatasync", "openat", "close"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
)
_PRELOADED = multiprocessing.get_context("forkserver")
_LINE = re.compile(r"(?P<thread>\d+) +(?P<call>\w+)\((?P<rest>.*)")
_OPENED_TO_WRITE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT")
_TRIES = 5
_INJECTED = "(INJECTED)"
_KILLED = "+++ killed by SIGKILL +++"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The `number`-th call of its kind that the main thread makes."""

    call: str
    number: int
    text: str
    """The call as strace showed it in the run without a fault, the output folder as OUT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A run to be disturbed: where it starts from, and where it should come to."""

    name: str
    job: Job
    folder: Path
    reference: Path
    begun: Path | None = None
    """A folder to go on in; None: there is none yet."""
    more: tuple[str, ...] = ()
    part: Literal["all", "beginning", "seal"] = "all"
    """Which of its calls are failed: up to the first checkpoint, or after the last, or all."""

    def prepare(self, out: Path) -> None:
        """Put `out` in the state that the run finds."""
        if self.begun:
            shutil.copytree(self.begun, out)

    def command(self, out: Path) -> list[str]:
        """One worker: all calls come from the main thread, in the same order every time."""
        return self.job.command(out, "--workers", "1", "--memory", "256MiB", *self.more)


def find_strace() -> str | None:
    """Where strace is, or None."""
    return shutil.which("strace")


def make_scenes(folder: Path) -> Iterator[Scene]:
    """The runs to disturb, as the head of this file lists them."""
    jobs = make_jobs(folder / "inputs", text_bytes=TEXT_BYTES, shard_tokens=SHARD_TOKENS)
    by_name = {job.name: job for job in jobs}
    yield from _scenes_of(by_name["npy"], folder, part="all")
    yield from _scenes_of(by_name["megatron"], folder, part="seal")


def _scenes_of(job: Job, folder: Path, *, part: Literal["all", "seal"]) -> Iterator[Scene]:
    reference, begun = folder / f"{job.name}-undisturbed", folder / f"{job.name}-begun"
    finish(job, reference)
    fresh = Scene(name=f"{job.name} {part}", job=job, folder=folder, reference=reference, part=part)
    yield fresh
    last = next(fault for fault in find_faults(fresh) if '.tmp", "OUT/lowtide.json"' in fault.text)
    run_with(fresh, last, "SIGKILL", begun)
    yield Scene(
        name=f"{job.name} going on", job=job, folder=folder, reference=reference, begun=begun
    )
    if part == "all":
        yield Scene(
            name=f"{job.name} restarted",
            job=job,
            folder=folder,
            reference=reference,
            begun=begun,
            more=("--restart",),
            part="beginning",
        )


def find_faults(scene: Scene) -> list[Fault]:
    """Every call on the output folder that a run without a fault makes, in the scene's part of it."""
    out = scene.folder / "traced"
    scene.prepare(out)
    ended = _strace(scene, out, [f"trace={','.join(CALLS)}"])
    if ended.returncode != 0:
        raise BrokenLawError(f"{scene.name}: exit {ended.returncode}: {ended.stderr}")
    check_whole(out, scene.reference, f"{scene.name}, traced")
    shutil.rmtree(out)
    faults = list(_read_faults(_trace_of(out), out))
    stored = [
        at for at, fault in enumerate(faults) if '.tmp", "OUT/.lowtide/progress' in fault.text
    ]
    match scene.part:
        case "beginning":
            return faults[: stored[0] + 2]  # its folder's fsync is the next
        case "seal":
            return faults[stored[-1] :]
        case "all":
            return faults


def _read_faults(trace: Path, out: Path) -> Iterator[Fault]:
    counts: Counter[str] = Counter()
    writable: set[str] = set()
    for call, text in _main_calls(trace):
        counts[call] += 1
        if call == "openat" and _OPENED_TO_WRITE.search(text):
            writable.add(text.rpartition("= ")[2].partition("<")[0])
        if call == "close":
            descriptor = text.removeprefix("close(").partition("<")[0]
            if descriptor not in writable:
                continue
            writable.remove(descriptor)
        if _changes(call, text, out):
            yield Fault(call=call, number=counts[call], text=text.replace(str(out), "OUT"))


def _changes(call: str, text: str, out: Path) -> bool:
    """Whether the call can change what lies in the folder, or how safely; looking does not count."""
    if call == "openat":
        return str(out) in text and bool(_OPENED_TO_WRITE.search(text))
    return str(out) in text or f"<{out.parent}>" in text


def run_with(scene: Scene, fault: Fault, way: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run until the fault; BrokenLawError unless it fired, once, and on the output folder.

    On a busy machine the clock moves the count of some calls: what hit elsewhere is tried again.
    """
    for _ in range(_TRIES):
        ended, fired = _run_once(scene, fault, way, out)
        if len(fired) == 1 and _changes(*fired[0], out):
            return ended
        shutil.rmtree(out, ignore_errors=True)
    raise BrokenLawError(f"{scene.name}: {way} did not fire at {fault.text}: {fired}")


def _run_once(
    scene: Scene, fault: Fault, way: str, out: Path
) -> tuple[subprocess.CompletedProcess[str], list[tuple[str, str]]]:
    """How the run ended, and the calls that were failed."""
    scene.prepare(out)
    what = f"signal={way}" if way == "SIGKILL" else f"error={way}"
    injection = f"inject={fault.call}:{what}:when={fault.number}"
    ended = _strace(scene, out, [f"trace={fault.call}", injection])
    said = _trace_of(out).read_text(errors="replace").splitlines()
    if way == "SIGKILL":
        killed = ended.returncode == -9 and any(_KILLED in line for line in said)
        fired = list(_main_calls(_trace_of(out)))[-1:] if killed else []
    else:
        fired = [(fault.call, line) for line in said if _INJECTED in line]
    return ended, fired


def try_fault(scene: Scene, fault: Fault, way: str, index: int) -> str:
    """Disturb a run, look at what it leaves, run it again; how the disturbed one ended."""
    out = scene.folder / f"{scene.name}-{way}-{index}".replace(" ", "-")
    when = f"{scene.name}, {way} at {fault.text}"
    ended = run_with(scene, fault, way, out)
    check_nothing_half_written(out, scene.reference, when)
    if way != "SIGKILL":
        check_ending(ended, out, scene, when)
    _run_again(scene, out, when)
    check_whole(out, scene.reference, when)
    shutil.rmtree(out)
    _trace_of(out).unlink()
    return "killed" if way == "SIGKILL" else f"exit {ended.returncode}"


def _run_again(scene: Scene, out: Path, when: str) -> None:
    """The same command, in a process that need not load Python and its libraries first."""
    arguments = scene.command(out)
    words = _trace_of(out).with_suffix(".words")
    after_lowtide = arguments[arguments.index("lowtide") + 1 :]
    process = _PRELOADED.Process(target=_run_command, args=(after_lowtide, words))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise BrokenLawError(f"{when}: going on ended in {process.exitcode}: {words.read_text()}")
    words.unlink()


def _run_command(arguments: list[str], words: Path) -> None:
    with words.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    lowtide_main(arguments)


def check_ending(
    ended: subprocess.CompletedProcess[str], out: Path, scene: Scene, when: str
) -> None:
    """`error:` and `hint:` and exit 1. Only what is left to clear away after the manifest may fail
    in silence: the dataset is whole, and the next start clears it."""
    if ended.returncode == 0:
        shutil.rmtree(out / ".lowtide", ignore_errors=True)
        check_whole(out, scene.reference, when)
        return
    check_words(ended.returncode, ended.stderr, when)


def _strace(scene: Scene, out: Path, expressions: list[str]) -> subprocess.CompletedProcess[str]:
    strace = find_strace()
    if strace is None:
        raise SystemExit("strace is not installed: on Debian, `apt install strace`")
    said = [word for expression in expressions for word in ("-e", expression)]
    command = [strace, "-f", "-y", "-s", "0", *said, "-o", str(_trace_of(out))]
    # The order of a set, and files that Python keeps for itself, would move the count of calls.
    fixed = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*command, *scene.command(out)], capture_output=True, text=True, env=fixed
    )


def _trace_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.trace")


def _main_calls(trace: Path) -> Iterator[tuple[str, str]]:
    """The calls of the main thread, in order. Only it is counted: strace counts each thread apart."""
    main = None
    for line in trace.read_text(errors="replace").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        main = main or found["thread"]
        if found["thread"] == main:
            yield found["call"], f"{found['call']}({found['rest']}"


def run_scene(scene: Scene, *, parallel: int) -> Counter[str]:
    """All faults of a scene in all ways; what came of them."""
    started = time.monotonic()
    faults = find_faults(scene)
    rounds = [(fault, way, index) for index, fault in enumerate(faults) for way in WAYS]
    with ThreadPoolExecutor(parallel) as pool:
        outcomes = Counter(pool.map(lambda one: try_fault(scene, *one), rounds))
    calls = Counter(fault.call for fault in faults)
    sys.stdout.write(
        f"{scene.name}: {len(faults)} calls "
        f"({', '.join(f'{count} {call}' for call, count in calls.most_common())}) × {len(WAYS)}: "
        f"{', '.join(f'{count} × {outcome}' for outcome, count in sorted(outcomes.items()))}; "
        f"{time.monotonic() - started:.0f} s\n"
    )
    sys.stdout.flush()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="Where to work.  [default: a temporary folder]")
    chosen = parser.parse_args()
    _PRELOADED.set_forkserver_preload(["bench.jobs", "lowtide.stages.tokenize"])
    started = time.monotonic()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for scene in make_scenes(Path(folder)):
            outcomes += run_scene(scene, parallel=chosen.parallel)
    said = ", ".join(f"{count} × {outcome}" for outcome, count in sorted(outcomes.items()))
    total = outcomes.total()
    sys.stdout.write(
        f"{total} faults, all fired: {said}; {total} of {total} folders byte-identical "
        f"afterwards; {time.monotonic() - started:.0f} s\n"
    )


if __name__ == "__main__":
    main()
