"""Make the disk fail under `tokenize`, `train` and `train --inbox`: short writes, calls that answer an error.

    python -m bench.failing_disk --shorts 70 --faults 200 --seed 1

A preloaded library (`failing_disk.c`, built with cc) watches every call that changes the output folder, in
all processes of a run. In `--shorts` runs of each kind, one write, or every write from some point on, takes
only a part of what it is given: the run must end well, with the same bytes as one that nobody disturbed.
Then, in `train` and in the inbox, `--faults` calls answer EIO, ENOSPC or EINTR. EINTR must change nothing. The
others must end the run with exit code 1, `error:` and `hint:`, or do no harm; and the same command, failed up
to six times and then left alone, must come to the same bytes. Exits 1 when a law was broken.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.jobs import BrokenLawError, check_whole, check_words, finish, make_jobs
from lowtide.journal import LOG_NAME

SHORT = -1
NEVER = 2**63
WAYS = (errno.EIO, errno.ENOSPC, errno.EIO, errno.ENOSPC, errno.EINTR)
MOST_IN_A_ROW = 6
_SOURCE = Path(__file__).with_suffix(".c")
_PLAN = "LOWTIDE_FAILING_DISK"


class Plan(ctypes.Structure):
    """What the library is told, and what it tells; see failing_disk.c."""

    _fields_ = (
        ("calls", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("answer", ctypes.c_int64),
        ("fired", ctypes.c_uint64),
        ("which", ctypes.c_char * 256),
        ("folder", ctypes.c_char * 512),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A command to disturb, and what it should come to."""

    name: str
    folder: Path
    arguments: Callable[[Path], list[str]]
    """The command without `lowtide`, for an output folder."""
    check: Callable[[Path, str, bool], None]
    """BrokenLawError unless the folder holds what an undisturbed run's does, and nothing else. Where the log
    itself could not be written, lines may lack."""

    def run(self, out: Path, *, answer: int = 0, first: int = NEVER, last: int = NEVER) -> Ended:
        """One run; calls `first` to `last` on its folder are answered wrongly."""
        from tests.training.small_runs import Command

        plan = Plan(answer=answer, first=first, last=last, folder=os.fsencode(out))
        path = self.folder / "plan"
        path.write_bytes(bytes(plan))
        command = Command(
            self.folder / "said", *self.arguments(out), environment={_PLAN: str(path)}
        )
        ended = command.end()
        told = Plan.from_buffer_copy(path.read_bytes())
        return Ended(
            code=ended.code,
            said=ended.err,
            calls=told.calls,
            fired=told.fired,
            which=os.fsdecode(told.which),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended, and what its disk did."""

    code: int
    said: str
    calls: int
    fired: int
    which: str


# ── What is disturbed ───────────────────────────────────────────────────────────────────────────────────


def tokenize_scene(folder: Path) -> Scene:
    """250 KB of text, JSONL, parquet and gz, into several shards."""
    job = next(
        job
        for job in make_jobs(folder / "inputs", text_bytes=250_000, shard_tokens=50_000)
        if job.name == "npy"
    )
    reference = folder / "undisturbed"
    finish(job, reference)

    def arguments(out: Path) -> list[str]:
        command = job.command(out, "--memory", "256MiB")
        return command[command.index("lowtide") + 1 :]

    return Scene(
        name="tokenize",
        folder=folder,
        arguments=arguments,
        check=lambda out, when, _: check_whole(out, reference, when),
    )


def train_scene(folder: Path) -> Scene:
    """24 steps of a tiny model, with evaluations and checkpoints."""
    from tests.training.small_runs import make_settings, make_tokens, write_plan

    settings = make_settings(make_tokens(folder / "tokens"))
    plan = write_plan(folder / "plan.toml", settings)

    def arguments(out: Path) -> list[str]:
        return ["train", settings.data, "--plan", str(plan), "--out", str(out), "--no-smoke"]

    return run_scene("train", folder, arguments)


def inbox_scene(folder: Path) -> Scene:
    """Two files with chats, each tokenized in a child and trained on."""
    from tests.stages.inboxes import make_scene

    inbox = make_scene(folder)
    for number in range(2):
        inbox.put(f"batch-{number}.jsonl", 10 + 3 * number, seed=number)
    return run_scene("inbox", folder, inbox.arguments)


def run_scene(name: str, folder: Path, arguments: Callable[[Path], list[str]]) -> Scene:
    """A training run: the newest checkpoint, the steps in the log and the ledger must be the same."""
    from tests.stages.inboxes import entries, work_left
    from tests.training.small_runs import hidden_in, tensors_of, told_of

    def outcome(out: Path) -> dict[str, list[Any] | dict[str, bytes]]:
        steps = told_of(out) if (out / LOG_NAME).exists() else []
        ledger = entries(out) if name == "inbox" else []
        return {"newest checkpoint": tensors_of(out), "steps": steps, "ledger": ledger}

    def check(out: Path, when: str, lines_may_lack: bool) -> None:
        found = outcome(out)
        if lines_may_lack:
            told = iter(wanted["steps"])
            if all(step in told for step in found["steps"]):  # some of them, in their order
                found["steps"] = wanted["steps"]
        if differ := [part for part in wanted if found[part] != wanted[part]]:
            raise BrokenLawError(f"{when}: not the same: {differ}")
        if left := hidden_in(out) + work_left(out):
            raise BrokenLawError(f"{when}: {left} are left")

    scene = Scene(name=name, folder=folder, arguments=arguments, check=check)
    wanted = outcome(undisturbed(scene))
    return scene


def undisturbed(scene: Scene) -> Path:
    out = scene.folder / "undisturbed"
    ended = scene.run(out)
    if ended.code:
        raise BrokenLawError(f"{scene.name}: exit {ended.code}: {ended.said}")
    return out


SCENES = {"tokenize": tokenize_scene, "train": train_scene, "inbox": inbox_scene}


# ── How it is disturbed ─────────────────────────────────────────────────────────────────────────────────


def count_calls(scene: Scene, answer: int) -> int:
    """How many calls could be answered so in a run."""
    out = scene.folder / "counted"
    ended = scene.run(out, answer=answer)
    if ended.code or not ended.calls:
        raise BrokenLawError(f"{scene.name}: exit {ended.code}, {ended.calls} calls: {ended.said}")
    shutil.rmtree(out)
    return ended.calls


def try_short(scene: Scene, source: random.Random, calls: int, out: Path) -> Counter[str]:
    """A run with one short write, or with nothing but short writes from some point on."""
    first = source.randint(1, calls)
    last = source.choice([first, NEVER])
    ended = scene.run(out, answer=SHORT, first=first, last=last)
    when = f"{scene.name}, writes {first} to {last} short ({ended.which})"
    if ended.code:
        raise BrokenLawError(f"{when}: exit {ended.code}: {ended.said}")
    scene.check(out, when, False)
    return Counter({"runs": 1 if ended.fired else 0, "short writes": ended.fired})


def try_faults(scene: Scene, source: random.Random, calls: int, out: Path) -> Counter[str]:
    """The same command with one fault after the other, then without; what became of the faults."""
    found: Counter[str] = Counter()
    faults, log_failed = [], False
    for going_on in range(source.randint(1, MOST_IN_A_ROW)):
        most = calls >> min(going_on, 3)  # less is left to do each time
        way, number = source.choice(WAYS), source.randint(1, most)
        ended = scene.run(out, answer=way, first=number, last=number)
        faults.append(f"{errno.errorcode[way]} at {number} ({ended.which})")
        when = f"{scene.name}, {', then '.join(faults)}"
        if ended.code and (not ended.fired or way == errno.EINTR):
            raise BrokenLawError(f"{when}: exit {ended.code}: {ended.said}")
        if ended.code:
            check_words(ended.code, ended.said, when)
        elif way != errno.EINTR and ended.which.endswith(LOG_NAME):
            log_failed = (
                True  # what the log tells of is worth more than the log; but it must be said
            )
            if LOG_NAME not in ended.said:
                raise BrokenLawError(f"{when}: nobody was told: {ended.said}")
        if ended.fired:
            found["faults"] += 1
            found[f"{errno.errorcode[way]}, exit {ended.code}"] += 1
        if not ended.code:
            break
    ended = scene.run(out)
    if ended.code:
        raise BrokenLawError(f"{when}; then exit {ended.code} without a fault: {ended.said}")
    scene.check(out, when, log_failed)
    found["folders"] += 1
    return found


def campaign(
    scene: Scene,
    trial: Callable[[Scene, random.Random, int, Path], Counter[str]],
    source: random.Random,
    *,
    wanted: int,
    counted: str,
    answer: int,
) -> tuple[Counter[str], list[str]]:
    """Trials until `wanted` of what is counted have fired; what they came to, and broken laws."""
    found: Counter[str] = Counter()
    broken: list[str] = []
    calls, began, number = count_calls(scene, answer), time.monotonic(), 0
    while found[counted] < wanted and number < 5 * wanted:
        out = scene.folder / f"{trial.__name__}-{number}"
        number += 1
        try:
            found += trial(scene, source, calls, out)
        except BrokenLawError as error:
            broken.append(str(error))
            found[counted] += 1
            print(f"BROKEN: {error}", flush=True)
        shutil.rmtree(out, ignore_errors=True)
    if found[counted] < wanted:
        broken.append(f"{scene.name}: only {found[counted]} of {wanted} {counted} came about")
    told = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
    print(
        f"{scene.name}, {trial.__name__}: {calls} calls a run; {told}; "
        f"{len(broken)} broken; {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return found, broken


def preload() -> None:
    """This program again, with the library in front of libc: processes that it forks have it as well."""
    library = Path(tempfile.mkdtemp(prefix="failing-disk-")) / "failing_disk.so"
    flags = ["-O1", "-std=gnu11", "-fPIC", "-shared"]
    subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(library), "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library)}
    ended = subprocess.run(
        [sys.executable, "-m", "bench.failing_disk", *sys.argv[1:]], env=environment
    )
    shutil.rmtree(library.parent)
    raise SystemExit(ended.returncode)


def main() -> int:
    """0 when no law was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shorts", type=int, default=70, help="Runs of each kind with short writes."
    )
    parser.add_argument("--faults", type=int, default=200, help="In train, and in the inbox.")
    parser.add_argument("--only", choices=SCENES, help="One kind alone.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Where to work.  [default: a temporary folder]")
    chosen = parser.parse_args()
    if "failing_disk" not in os.environ.get("LD_PRELOAD", ""):
        preload()
    broken: list[str] = []
    for name, make in SCENES.items():
        if chosen.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            scene, source = make(Path(folder) / name), random.Random(f"{chosen.seed} {name}")
            for trial, wanted, counted, answer in (
                (try_short, chosen.shorts, "runs", SHORT),
                (try_faults, chosen.faults if name != "tokenize" else 0, "faults", 0),
            ):
                if wanted:
                    broken += campaign(
                        scene, trial, source, wanted=wanted, counted=counted, answer=answer
                    )[1]
    print(f"{len(broken)} laws broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
