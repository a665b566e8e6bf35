"""Kill `lowtide train` again and again, at any moment, and compare what it comes to with an undisturbed run.

    python bench/run_killed.py --kills 20

A small model on the CPU takes a checkpoint every few milliseconds, so that kills fall between, into and behind
them; every fifth one is meant for the start. A run that ends before it is killed is compared and begun anew.
Prints a line for each kill; exits 1 when weights, optimizer or the log of steps differ by a byte, or a run ends
in any other way.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

from lowtide.training.checkpoint import find_checkpoints
from tests.training.small_runs import (
    hidden_in,
    make_settings,
    make_tokens,
    tensors_of,
    told_of,
    write_plan,
)

START_SHARE = 0.2
LONGEST_WAIT_SECONDS = 1.5


@dataclass
class Campaign:
    """The command, what it should come to, and what happened so far."""

    command: list[str]
    out: Path
    wanted: tuple[object, object]
    start_seconds: float
    source: random.Random
    kills: int = 0
    compared: int = 0
    during_writes: int = 0

    def kill_once(self) -> None:
        """One more start and one more kill; a run that was faster is compared."""
        run, before = start(self.command), written_at(self.out)
        if self.source.random() < START_SHARE:
            time.sleep(self.source.uniform(0.0, self.start_seconds))
        else:
            wait_for_log(run, self.out)
            time.sleep(self.source.uniform(0.0, LONGEST_WAIT_SECONDS))
        run.send_signal(signal.SIGKILL)
        _, said = run.communicate()
        if run.returncode != -signal.SIGKILL:
            check_ended(run.returncode, said)
            self.compare()
            shutil.rmtree(self.out)
            return
        self.kills += 1
        self.tell("while starting" if written_at(self.out) == before else "while training")

    def tell(self, moment: str) -> None:
        """Where the kill fell."""
        step = last_step(self.out)
        newest = [one.name for one in find_checkpoints(self.out)][-1:] or ["none"]
        half = hidden_in(self.out)
        self.during_writes += bool(half)
        torn = f"  half-written: {', '.join(half)}" if half else ""
        print(f"kill {self.kills:3}  {moment}  step {step:5}  newest {newest[0]}{torn}", flush=True)

    def compare(self) -> None:
        """SystemExit where anything differs."""
        if left_in(self.out) != self.wanted:
            raise SystemExit(f"other weights, optimizer or log after {self.kills} kills")
        if hidden_in(self.out):
            raise SystemExit(f"left behind: {hidden_in(self.out)}")
        self.compared += 1
        print(f"finished: the same bytes after {self.kills} kills", flush=True)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """One run in a process of its own; one thread, for small steps wait longer than they work."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )


def check_ended(code: int, said: bytes) -> None:
    if code:
        raise SystemExit(f"exit {code}: {said.decode()}")


def wait_for_log(run: subprocess.Popen[bytes], out: Path) -> None:
    """Until this run, not the one before, has written to the log, or has ended."""
    before = written_at(out)
    while run.poll() is None and written_at(out) == before:
        time.sleep(0.01)


def written_at(out: Path) -> int:
    """When the log was last written to."""
    log = out / "log.jsonl"
    return log.stat().st_mtime_ns if log.exists() else 0


def last_step(out: Path) -> int:
    if not (out / "log.jsonl").exists():
        return 0
    return max((int(str(record["step"])) for record in told_of(out)), default=0)


def left_in(out: Path) -> tuple[object, object]:
    return tensors_of(out), told_of(out)


def main() -> int:
    """Kill until there were enough; 0 when every run came to the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_tokens(folder / "tokens")
        settings = make_settings(
            data, steps=chosen.steps, checkpoint_every=3, evaluate_every=7, sample_every=50
        )
        plan = write_plan(folder / "plan.toml", settings)
        command = [sys.executable, "-m", "lowtide", "train", str(data), "--plan", str(plan)]
        command += ["--no-smoke", "--quiet", "--out"]
        began = time.monotonic()
        undisturbed = start([*command, str(folder / "undisturbed")])
        wait_for_log(undisturbed, folder / "undisturbed")
        start_seconds = time.monotonic() - began
        _, said = undisturbed.communicate()
        check_ended(undisturbed.returncode, said)
        print(f"undisturbed: {time.monotonic() - began:.1f} s, {start_seconds:.1f} s to start")
        campaign = Campaign(
            command=[*command, str(folder / "run")],
            out=folder / "run",
            wanted=left_in(folder / "undisturbed"),
            start_seconds=start_seconds,
            source=random.Random(chosen.seed),
        )
        while campaign.kills < chosen.kills:
            campaign.kill_once()
        last = start(campaign.command)
        _, said = last.communicate()
        check_ended(last.returncode, said)
        campaign.compare()
        print(
            f"{campaign.kills} kills, {campaign.during_writes} of them during a write; "
            f"{campaign.compared} finished runs, all with the same bytes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
