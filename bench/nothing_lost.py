"""Kill tokenizing runs at seeded random moments until they finish all the same, and compare the folders.

    python -m bench.nothing_lost --kills 200 --terms 50 --seed 1

Four jobs (see `bench/jobs.py`) run once undisturbed. Then each is started, killed and started again
until it has finished; the next round begins with the next job. Workers and budget change from start to
start. After every kill: nothing half-written under a final name, less than one shard to repeat. After
SIGTERM: exit code 75, unless the run was still loading Python or already past its last block. At the
end of each round: the same files as the undisturbed run, byte for byte, and no other.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.counted_run import read_count
from bench.jobs import (
    STOPPED,
    BrokenLawError,
    Job,
    check_nothing_half_written,
    check_whole,
    finish,
    make_jobs,
    name_phase,
    published,
    stored_tokens,
)

TEXT_BYTES = 120_000_000
SHARD_TOKENS = 1_200_000
"""More than two of the largest blocks (1 MiB, up to half a million tokens of source code)."""
_POLL_SECONDS = 0.0002

Wait = Callable[[subprocess.Popen[bytes]], None]


@dataclass(slots=True, kw_only=True)
class Campaign:
    """One job's folders, and what was seen of it."""

    job: Job
    folder: Path
    random: random.Random
    seconds: float = 0.0
    """How long the undisturbed run took."""
    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    most_repeated: int = 0

    @property
    def reference(self) -> Path:
        return self.folder / f"{self.job.name}-undisturbed"

    @property
    def out(self) -> Path:
        return self.folder / f"{self.job.name}-disturbed"

    @property
    def count_file(self) -> Path:
        return self.folder / f"{self.job.name}-count"

    def run_undisturbed(self) -> None:
        started = time.monotonic()
        finish(self.job, self.reference)
        self.seconds = time.monotonic() - started

    def disturb(self, number: signal.Signals, most: int) -> int:
        """Start, stop and start again until the job is done or was stopped `most` times; how often.

        A SIGTERM that meets Python while it loads counts for nothing: it is a kill that was too early.
        """
        done = 0
        while done < most:
            started = time.monotonic()
            ended = self._start_and_send(number, self._choose_moment(number))
            if ended is None:
                if not done:  # from nothing to the end: the machine may be faster by now
                    self.seconds = min(self.seconds, time.monotonic() - started)
                break
            self._check(number, ended)
            done += ended in (-signal.SIGKILL, STOPPED)
        else:
            finish(self.job, self.out)
        check_whole(self.out, self.reference, f"{self.job.name}, round {self.rounds}")
        shutil.rmtree(self.out)
        self.rounds += 1
        return done

    def _start_and_send(self, number: signal.Signals, wait: Wait) -> int | None:
        """The exit code after the signal, or None when the run was done before it."""
        self.count_file.unlink(missing_ok=True)
        loading = False
        with subprocess.Popen(
            self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            try:
                wait(process)
                if process.poll() is None:
                    loading = not _catches(process.pid, signal.SIGTERM)
                    process.send_signal(number)
                said = process.communicate(timeout=120)[1].decode()
            except BaseException:
                process.kill()
                raise
        code = process.returncode
        if code == 0:
            return None
        if code not in self._rightful_codes(number, loading):
            raise BrokenLawError(f"{self.job.name}: {number.name} ended in exit {code}: {said}")
        return code

    def _rightful_codes(self, number: signal.Signals, loading: bool) -> set[int]:
        """SIGTERM ends a run like any other process only before it listens, and after it is done."""
        if number == signal.SIGKILL:
            return {-number}
        deaf = loading or "lowtide.json" in published(self.out)
        return {STOPPED, -number} if deaf else {STOPPED}

    def _command(self) -> list[str]:
        """Each start with other workers and another budget: neither may change a byte."""
        program = ("-m", "bench.counted_run", str(self.count_file))
        workers = str(self.random.choice((1, 2)))
        memory = self.random.choice(("256MiB", "1GiB"))
        return self.job.command(self.out, "--workers", workers, "--memory", memory, program=program)

    def _check(self, number: signal.Signals, code: int) -> None:
        phase = name_phase(self.out)
        when = f"{self.job.name}, {number.name} {phase}"
        check_nothing_half_written(self.out, self.reference, when)
        repeated = read_count(self.count_file) - stored_tokens(self.out)
        if phase != "after the manifest":  # then there is nothing to repeat, and no checkpoint
            self.most_repeated = max(self.most_repeated, repeated)
        if self.most_repeated >= self.job.shard_tokens:
            raise BrokenLawError(f"{when}: {repeated} tokens are to be done again")
        if code == STOPPED and repeated > 0:
            raise BrokenLawError(f"{when}: stopped cleanly, and {repeated} tokens are lost")
        self.phases[phase] += 1
        self.outcomes[f"{number.name} exit {code}"] += 1

    def _choose_moment(self, number: signal.Signals) -> Wait:
        """Half of the kills anywhere in the run, half where time is short and much happens."""
        anywhere = self.random.uniform(0, 1.05 * self.seconds)
        kinds = ("anywhere", "start", "write", "name", "seal")
        kind = self.random.choices(kinds, (50, 10, 10, 15, 15))[0]
        skipped, delay = self.random.randrange(20), self.random.uniform(0, 0.02)
        if kind == "anywhere" or number == signal.SIGTERM:
            return lambda process: _sleep(process, anywhere)
        if kind == "start":
            return lambda process: _sleep(process, anywhere / 4)
        if kind == "write":
            return lambda process: self._wait_for_write(process, skipped)
        if kind == "name":
            return lambda process: self._wait_for_checkpoint(process, skipped, delay / 20)
        return lambda process: self._wait_for_seal(process, delay)

    def _wait_for_write(self, process: subprocess.Popen[bytes], skipped: int) -> None:
        """Until a checkpoint is being written, after some others."""
        writing = False
        while process.poll() is None:
            was, writing = writing, any((self.out / ".lowtide").glob(".*.tmp"))
            skipped -= writing and not was
            if skipped < 0:
                return
            time.sleep(_POLL_SECONDS)

    def _wait_for_checkpoint(
        self, process: subprocess.Popen[bytes], skipped: int, delay: float
    ) -> None:
        """Until a checkpoint was stored, after some others: now its shards get their names."""
        path = self.out / ".lowtide" / "progress.json"
        seen = _inode(path)
        while process.poll() is None:
            now = _inode(path)
            skipped -= now != seen
            seen = now
            if skipped < 0:
                _sleep(process, delay)
                return
            time.sleep(_POLL_SECONDS)

    def _wait_for_seal(self, process: subprocess.Popen[bytes], delay: float) -> None:
        """Until an index is published by this very run: one of before is taken back at its start."""
        missing_once = False
        while process.poll() is None:
            sealed = any(name.startswith("documents_") for name in published(self.out))
            if sealed and missing_once:
                _sleep(process, delay)
                return
            missing_once = missing_once or not sealed
            time.sleep(_POLL_SECONDS)


def _sleep(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal by now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def run_campaigns(folder: Path, *, kills: int, terms: int, seed: int) -> list[Campaign]:
    """All kills, then all SIGTERMs, round after round over the jobs."""
    chance = random.Random(seed)
    jobs = make_jobs(folder / "inputs", text_bytes=TEXT_BYTES, shard_tokens=SHARD_TOKENS)
    campaigns = [Campaign(job=job, folder=folder, random=chance) for job in jobs]
    for campaign in campaigns:
        campaign.run_undisturbed()
    for number, wanted in ((signal.SIGKILL, kills), (signal.SIGTERM, terms)):
        turn = 0
        while wanted > 0:
            wanted -= campaigns[turn % len(campaigns)].disturb(number, wanted)
            turn += 1
    return campaigns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--terms", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Where to work.  [default: a temporary folder]")
    chosen = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        campaigns = run_campaigns(
            Path(folder), kills=chosen.kills, terms=chosen.terms, seed=chosen.seed
        )
    outcomes = sum((campaign.outcomes for campaign in campaigns), Counter[str]())
    phases = sum((campaign.phases for campaign in campaigns), Counter[str]())
    for campaign in campaigns:
        sys.stdout.write(
            f"{campaign.job.name}: {campaign.rounds} rounds, {campaign.outcomes.total()} signals, "
            f"{campaign.seconds:.1f} s undisturbed, "
            f"at most {campaign.most_repeated} tokens done again\n"
        )
    sys.stdout.write("".join(f"{phase}: {count}\n" for phase, count in phases.most_common()))
    said = ", ".join(f"{count} × {outcome}" for outcome, count in sorted(outcomes.items()))
    rounds = sum(campaign.rounds for campaign in campaigns)
    repeated = max(campaign.most_repeated for campaign in campaigns)
    sys.stdout.write(
        f"{said}; {rounds} of {rounds} folders byte-identical; at most {repeated} of "
        f"{SHARD_TOKENS} tokens done again; seed {chosen.seed}; {time.monotonic() - started:.0f} s\n"
    )


if __name__ == "__main__":
    main()
