"""Stop commands at random moments, by SIGTERM and by Ctrl-C, and look at what is left.

    python bench/stops.py --seed 1 --moments 20

Each command is started in a session of its own and stopped after a random share of the time that it takes.
Prints a line for each: seconds from the signal to the end, exit code, what is left. Exits 1 where one took more
than two seconds, left a process or a traceback, or ended with another code than 75 or 130 (or 0, where it was
faster than the signal; or the signal itself, before lowtide was loaded and had said anything; or SIGINT itself,
which shells show as 130). After all stops of a command it is resumed: the losses of `train` up to there, and
weights, optimizer and ledger of the inbox, must be those of a run that was never stopped; the others must end
with 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from lowtide.child import python_command
from lowtide.stages.inbox.ledger import read_entries
from tests.training.small_runs import (
    make_settings,
    make_tokens,
    tensors_of,
    told_of,
    write_plan,
)

LOWTIDE = python_command("-m", "lowtide")
MARK = "LOWTIDE_STOPPED_BY"
MOST_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is stopped, and how long it lasts about."""

    name: str
    arguments: list[str]
    seconds: float
    resumes: Callable[[list[str]], bool]
    """Whether the command, run again after its stops, comes to what it should."""


def make_commands(place: Path) -> list[Command]:
    """With data and plans of their own, each long enough to be stopped anywhere."""
    tokens = make_tokens(place / "tokens")
    text = place / "text"
    text.mkdir()
    for number in range(4):
        (text / f"{number}.txt").write_text(f"some words, number {number}\n" * 20_000)
    inbox = place / "inbox"
    inbox.mkdir()
    (inbox / "lowtide.toml").write_text('examples = "none"\n')
    for number in range(3):
        rows = (json.dumps({"text": f"row {row} of file {number}"}) for row in range(2000))
        (inbox / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    often = {"evaluate_every": 3, "checkpoint_every": 5, "sample_every": 7}
    long = write_plan(place / "long.toml", make_settings(tokens, steps=100_000, **often))
    run = ["train", str(tokens), "--plan", str(long)]
    small = ["--model", "gpt2-pico", "--context", "64", "--device", "cpu"]
    out, weeks = place / "run", place / "weeks"
    named = {
        "train": ([*run, "--out", str(out), "--no-smoke"], 8, same_losses),
        "smoke": ([*run, "--out", str(place / "try"), "--smoke"], 6, ends_well),
        "inbox": (["train", "--inbox", str(inbox), "--out", str(weeks), *small], 12, same_inbox),
        "doctor": (["doctor", "--json"], 12, ends_well),
        "compare": (["compare", str(text), "--work", str(place)], 20, ends_well),
        "demo": (["demo", "--out", str(place / "demo")], 40, ends_well),
    }
    return [
        Command(name=name, arguments=arguments, seconds=seconds, resumes=resumes)
        for name, (arguments, seconds, resumes) in named.items()
    ]


def run_quietly(arguments: list[str]) -> subprocess.Popen[bytes]:
    """The command, started."""
    return subprocess.Popen(
        [*LOWTIDE, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def ends_well(arguments: list[str]) -> bool:
    """Exit code 0; doctor's 1 says that something is wrong with the machine."""
    return run_quietly(arguments).wait() in ((0, 1) if arguments[0] == "doctor" else (0,))


def elsewhere(arguments: list[str]) -> tuple[Path, Path, list[str]]:
    """The folder of the stopped run, another one, and the same command with that."""
    index = arguments.index("--out") + 1
    stopped = Path(arguments[index])
    other = stopped.with_name(f"{stopped.name}-whole")
    return stopped, other, [*arguments[:index], str(other), *arguments[index + 1 :]]


def same_losses(arguments: list[str]) -> bool:
    """Whether every step so far has the loss of a run that was not stopped before."""
    stopped, whole, command = elsewhere(arguments)
    wanted = told_of(stopped)
    running = run_quietly(command)
    while running.poll() is None:
        time.sleep(0.5)
        if (whole / "log.jsonl").exists() and len(told_of(whole)) > len(wanted):
            running.send_signal(signal.SIGTERM)
            running.wait()
    there = {record["step"]: record for record in told_of(whole)}
    return bool(wanted) and all(there.get(record["step"]) == record for record in wanted)


def same_inbox(arguments: list[str]) -> bool:
    """Whether the run, resumed to its end, has the weights of one that was not stopped."""
    stopped, whole, command = elsewhere(arguments)
    if not all(ends_well([*one, "--until-empty"]) for one in (arguments, command)):
        return False
    both = [(tensors_of(run), list(read_entries(run))) for run in (stopped, whole)]
    return both[0] == both[1]


def stop_once(command: Command, number: signal.Signals, wait_seconds: float) -> tuple[bool, str]:
    """Whether all was well, and what happened in words."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*LOWTIDE, *command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )
        time.sleep(wait_seconds)
        asked = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        took = time.monotonic() - asked
        said.seek(0)
        words = said.read()
    time.sleep(0.2)
    left = processes_with(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    problems = []
    if took > MOST_SECONDS:
        problems.append("slow")
    if left:
        problems.append(f"{len(left)} processes are left")
    if "Traceback" in words or "fault of lowtide" in words:
        problems.append("traceback: " + words[-300:].replace("\n", " | "))
    early = code == -number and not words
    if code not in (0, 75, 130, -signal.SIGINT) and not early:
        problems.append(f"exit code {code}: {words[-300:]!r}")
    line = f"{command.name:8} {number.name:7} after {wait_seconds:5.2f}s: gone in {took:4.2f}s, exit {code}"
    return not problems, line + (f"  PROBLEM {'; '.join(problems)}" if problems else "")


def processes_with(mark: str) -> list[int]:
    """Everybody who inherited the mark and is still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--moments", type=int, default=20, help="of each command")
    parser.add_argument("--only", help="one of the commands")
    asked = parser.parse_args()
    # what a script starts in the background ignores Ctrl-C, and so would all commands
    signal.signal(signal.SIGINT, signal.default_int_handler)
    source, bad, total = random.Random(asked.seed), 0, 0
    place = Path(tempfile.mkdtemp(prefix="lowtide-stops-"))
    try:
        for command in make_commands(place):
            if asked.only not in (None, command.name):
                continue
            for moment in range(asked.moments):
                number = (signal.SIGTERM, signal.SIGINT)[moment % 2]
                fine, line = stop_once(command, number, source.uniform(0.0, command.seconds))
                print(line, flush=True)
                bad, total = bad + (not fine), total + 1
            resumed = command.resumes(command.arguments)
            print(
                f"{command.name:8} resumed: {'as it should' if resumed else 'PROBLEM'}", flush=True
            )
            bad += not resumed
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"{total} stops, {bad} with a problem")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
