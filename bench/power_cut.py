"""Cut the power of a file system under a running job, and fill another one up. Needs root.

    python -m bench.power_cut --cuts 12 --seed 1

A cut is `xfs_io -x -c shutdown` on a freshly made, loop-mounted xfs or ext4: whatever was not synced is
gone, the journal included. After each: every shard that bore its final name is there and whole, and the
same command goes on. At the end of each round: the same bytes as an undisturbed run. Then a tmpfs too
small for the job: exit code 1 with a hint, and going on when it was made larger. What a drive does with
a flush is not part of this: the loop's image lies in memory of the machine that goes on running.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.jobs import (
    BrokenLawError,
    Job,
    check_nothing_half_written,
    check_whole,
    check_words,
    finish,
    make_jobs,
    name_phase,
    published,
)

TEXT_BYTES = 12_000_000
SHARD_TOKENS = 250_000
FILE_SYSTEMS = ("xfs", "ext4")
_IMAGE_BYTES = 512 << 20
_TMPFS_MEGABYTES = (1, 4, 8, 256)


@dataclass(slots=True, kw_only=True)
class Cuts:
    """One file system, one job, and what the cuts came to."""

    file_system: str
    job: Job
    folder: Path
    reference: Path
    random: random.Random
    seconds: float
    rounds: int = 0
    kept: int = 0
    """Published files that were found whole after a cut, over all cuts."""
    unnamed: int = 0
    """Files whose name was seen before it was synced: whole, and back in the work folder."""
    phases: Counter[str] = field(default_factory=Counter)

    def run_round(self, most: int) -> int:
        """On a fresh file system: run and cut until the job is done, at most so often; how often."""
        image = self.folder / "image"
        with image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        subprocess.run([f"mkfs.{self.file_system}", "-q", str(image)], check=True)
        cuts = 0
        while cuts < most:
            with mounted(image, self.folder / "mount") as mount:
                seen = self._run_and_cut(mount)
            if seen is None:
                break
            cuts += 1
            with mounted(image, self.folder / "mount") as mount:
                self._check(mount / "out", seen)
        with mounted(image, self.folder / "mount") as mount:
            finish(self.job, mount / "out")
            when = f"{self.job.name} on {self.file_system}, round {self.rounds}"
            check_whole(mount / "out", self.reference, when)
        self.rounds += 1
        return cuts

    def _run_and_cut(self, mount: Path) -> set[str] | None:
        """The names published just before the cut; None when the job was done sooner."""
        out = mount / "out"
        process = subprocess.Popen(
            self.job.command(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._wait(process, out)
        if process.poll() is not None:
            words = process.communicate()[1]
            if process.returncode != 0:
                raise BrokenLawError(f"{self.job.name}: exit {process.returncode}: {words}")
            return None
        seen = published(out)
        subprocess.run(["xfs_io", "-x", "-F", "-c", "shutdown", str(mount)], check=True)
        words = process.communicate()[1]
        if process.returncode != 0:
            check_words(process.returncode, words, f"{self.job.name} after a cut")
        return seen

    def _wait(self, process: subprocess.Popen[str], out: Path) -> None:
        """Half the cuts anywhere, half in the moment after a file got its name."""
        ends = time.monotonic() + self.random.uniform(0, 1.1 * self.seconds)
        at_a_name = self.random.random() < 0.5
        first = published(out)
        while process.poll() is None:
            late = time.monotonic() >= ends
            if late and (not at_a_name or published(out) - first):
                return
            if not late:
                first = published(out)
            time.sleep(0.0005)

    def _check(self, out: Path, seen: set[str]) -> None:
        when = f"{self.job.name} on {self.file_system}, cut {name_phase(out)}"
        check_nothing_half_written(out, self.reference, when)
        for name in sorted(seen):
            if (out / name).exists():
                self.kept += 1
            elif self._is_whole_in_work_folder(out, name):
                self.unnamed += 1
            else:
                raise BrokenLawError(f"{when}: {name} was published, and is gone")
        self.phases[name_phase(out)] += 1

    def _is_whole_in_work_folder(self, out: Path, name: str) -> bool:
        """A name that the folder's fsync had not reached; of the last shards, what the mark knows."""
        partial = out / ".lowtide" / f"{name}.partial"
        if name == "lowtide.json":
            return not partial.exists()  # made anew from the rest
        if not partial.exists():
            return False
        stored = json.loads((out / ".lowtide" / "progress.json").read_text())
        finished = {
            item["name"] for split in ("train", "val") for item in stored[split]["finished"]
        }
        return name not in finished or filecmp.cmp(partial, self.reference / name, shallow=False)


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The image's file system, at the folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def mounted_tmpfs(folder: Path, *, megabytes: int) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder.mkdir(exist_ok=True)
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_disk(job: Job, reference: Path, folder: Path, sizes: tuple[int, ...]) -> int:
    """Run into a tmpfs that is too small until it is not; how often the disk was full."""
    full = 0
    with mounted_tmpfs(folder, megabytes=sizes[0]) as mount:
        for megabytes in sizes:
            size = f"remount,size={megabytes}m"
            subprocess.run(["mount", "-o", size, str(mount)], check=True)
            out = mount / "out"
            ended = subprocess.run(job.command(out), capture_output=True, text=True)
            when = f"{job.name} on {megabytes} MB"
            if ended.returncode == 0:
                check_whole(out, reference, when)
                return full
            check_words(ended.returncode, ended.stderr, when)
            if "ENOSPC" not in ended.stderr or "free space" not in ended.stderr:
                raise BrokenLawError(f"{when}: {ended.stderr}")
            check_nothing_half_written(out, reference, when)
            full += 1
    raise BrokenLawError(f"{job.name} did not fit {sizes[-1]} MB: {ended.stderr}")


def missing_tools() -> list[str]:
    """What this machine lacks for the campaign."""
    tools = ["mount", "umount", "xfs_io", *(f"mkfs.{name}" for name in FILE_SYSTEMS)]
    found = [f"{tool} (xfsprogs, e2fsprogs)" for tool in tools if shutil.which(tool) is None]
    return found + ([] if os.geteuid() == 0 else ["root"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=12, help="On each file system.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Where to work.  [default: a temporary folder]")
    chosen = parser.parse_args()
    if lacking := missing_tools():
        raise SystemExit(f"this needs {', '.join(lacking)}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        run_all(Path(name), cuts=chosen.cuts, seed=chosen.seed)
    sys.stdout.write(f"seed {chosen.seed}; {time.monotonic() - started:.0f} s\n")


def run_all(folder: Path, *, cuts: int, seed: int) -> None:
    """Both file systems, then the small one; a line of figures for each."""
    chance = random.Random(seed)
    jobs = make_jobs(folder / "inputs", text_bytes=TEXT_BYTES, shard_tokens=SHARD_TOKENS)
    jobs = [job for job in jobs if job.name in ("npy", "llmc")]
    seconds = {}
    for job in jobs:
        started = time.monotonic()
        finish(job, folder / job.name)
        seconds[job.name] = time.monotonic() - started
    for file_system in FILE_SYSTEMS:
        turns = [
            Cuts(
                file_system=file_system,
                job=job,
                folder=folder,
                reference=folder / job.name,
                random=chance,
                seconds=seconds[job.name],
            )
            for job in jobs
        ]
        _cut(turns, cuts)
    full = sum(
        fill_disk(job, folder / job.name, folder / "small", _TMPFS_MEGABYTES) for job in jobs
    )
    sys.stdout.write(
        f"tmpfs: {full} times full, each exit 1 with a hint; "
        f"{len(jobs)} of {len(jobs)} folders byte-identical once there was room\n"
    )


def _cut(turns: list[Cuts], wanted: int) -> None:
    started, done, turn = time.monotonic(), 0, 0
    while done < wanted:
        done += turns[turn % len(turns)].run_round(wanted - done)
        turn += 1
    phases = sum((cuts.phases for cuts in turns), Counter[str]())
    rounds = sum(cuts.rounds for cuts in turns)
    sys.stdout.write(
        f"{turns[0].file_system}: {done} power cuts "
        f"({', '.join(f'{count} {phase}' for phase, count in phases.most_common())}), "
        f"{sum(cuts.kept for cuts in turns)} published files found whole, "
        f"{sum(cuts.unnamed for cuts in turns)} seen before their name was synced and whole in the "
        f"work folder, 0 lost; {rounds} of {rounds} folders byte-identical; "
        f"{time.monotonic() - started:.0f} s\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
