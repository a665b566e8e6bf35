"""What `lowtide watch` costs: a job that computes, alone and watched, by turns; and what the watch takes.

    python bench/watch_overhead.py [--pairs 7] [--seconds 20] [--hold 2GiB]

The job does a fixed amount of work and holds some memory. CPU seconds of the job are compared, for a noisy
neighbour changes them less than the clock; the clock stands beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass

from lowtide.memory.meter import measure_processes
from lowtide.units import format_bytes, parse_bytes

JOB = """
import resource, sys, time
kept = bytearray(b'x') * int(sys.argv[1])
began, total = time.perf_counter(), 0
for number in range(int(sys.argv[2])):
    total += number * number % 7
used = resource.getrusage(resource.RUSAGE_SELF)
open(sys.argv[3], 'w').write(f'{used.ru_utime + used.ru_stime} {time.perf_counter() - began}')
"""
_TRIAL_ROUNDS = 3_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run of the job."""

    cpu_seconds: float
    wall_seconds: float
    watch_cpu_share: float = 0.0
    watch_private_bytes: int = 0


def run_job(rounds: int, hold_bytes: int, folder: Path, *, watched: bool) -> Cost:
    told = folder / "told"
    command = [sys.executable, "-c", JOB, str(hold_bytes), str(rounds), str(told)]
    if watched:
        flags = ["--timeline", str(folder / "timeline.jsonl"), "--limit", "90%", "--quiet"]
        command = [sys.executable, "-m", "lowtide", "watch", *flags, "--", *command]
    began, private = time.perf_counter(), 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        time.sleep(0.5)
        if watched:
            private = max(private, measure_processes([process.pid]).private_bytes)
    wall = time.perf_counter() - began
    cpu, work = (float(part) for part in told.read_text().split())
    return Cost(
        cpu_seconds=cpu,
        wall_seconds=work,
        watch_cpu_share=watch_cpu(folder) / wall if watched else 0.0,
        watch_private_bytes=private,
    )


def watch_cpu(folder: Path) -> float:
    """CPU seconds between the first reading and the last, as the watch's own record tells."""
    records = [json.loads(line) for line in (folder / "timeline.jsonl").open()]
    return float(records[-1]["own_cpu_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hold", type=parse_bytes, default=parse_bytes("2GiB"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trial = run_job(_TRIAL_ROUNDS, 0, folder, watched=False)
        rounds = round(_TRIAL_ROUNDS * chosen.seconds / trial.cpu_seconds)
        pairs = []
        for number in range(chosen.pairs):
            order = (False, True) if number % 2 else (True, False)
            costs = {}
            for watched in order:
                (folder / "timeline.jsonl").unlink(missing_ok=True)
                costs[watched] = run_job(rounds, chosen.hold, folder, watched=watched)
            pairs.append((costs[False], costs[True]))
            show(number, *pairs[-1])
    cpu = statistics.median(under.cpu_seconds / alone.cpu_seconds for alone, under in pairs)
    wall = statistics.median(under.wall_seconds / alone.wall_seconds for alone, under in pairs)
    own = statistics.median(under.watch_cpu_share for _, under in pairs)
    most = max(under.watch_private_bytes for _, under in pairs)
    print(
        f"median of {len(pairs)} pairs on {os.cpu_count()} cores: CPU of the job × {cpu:.4f}, wall time "
        f"× {wall:.4f}; the watch takes {own:.2%} of a core and {format_bytes(most)} private"
    )


def show(number: int, alone: Cost, under: Cost) -> None:
    print(
        f"pair {number + 1}: alone {alone.cpu_seconds:.2f} CPU s, {alone.wall_seconds:.2f} s; watched "
        f"{under.cpu_seconds:.2f} CPU s, {under.wall_seconds:.2f} s; watch {under.watch_cpu_share:.2%} of "
        f"a core, {format_bytes(under.watch_private_bytes)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
