"""200 batch files through an inbox, once undisturbed and once killed 20 times: the same weights, flat memory.

    python bench/inbox_killed.py --files 200 --kills 20

A tiny model on the CPU learns from chat examples. Both runs are processes of their own, with a temporary
folder and a cache of their own, so that the files they leave behind can be counted. Kills (SIGKILL) fall at any
moment; every fifth is meant for the start. Exits 1 when weights, optimizer, the log of steps or the ledger
differ, when a file is left behind, or when private memory after the last file is more than 10 MB away from that
after the fifth.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

from lowtide.journal import read_journal
from lowtide.stages.inbox.ledger import Entry, read_entries
from tests.stages.inboxes import Scene, make_scene, write_chats
from tests.training.small_runs import hidden_in, tensors_of, told_of

START_SHARE = 0.2
MOST_GROWTH_BYTES = 10_000_000
EARLY_FILE = 5


@dataclass(frozen=True)
class Place:
    """A run, and where it may leave things."""

    scene: Scene
    run: Path

    @property
    def temporary(self) -> Path:
        return self.run.with_suffix(".tmp")

    @property
    def cache(self) -> Path:
        return self.run.with_suffix(".cache")

    def start(self) -> subprocess.Popen[bytes]:
        """One process; one thread, for small steps wait longer than they work."""
        for folder in (self.temporary, self.cache):
            folder.mkdir(exist_ok=True)
        own = {
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.cache),
            "HOME": str(self.cache),
        }
        command = [sys.executable, "-m", "lowtide", *self.scene.arguments(self.run, "--quiet")]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **own}
        )

    def finish(self) -> float:
        """To the end; how long it took."""
        began = time.monotonic()
        running = self.start()
        _, said = running.communicate()
        if running.returncode:
            raise SystemExit(f"exit {running.returncode}: {said.decode()}")
        return time.monotonic() - began

    def left(self) -> list[str]:
        """What should not be there."""
        work = [path for path in (self.run / ".lowtide").rglob("*") if path.is_file()]
        kept = [path for path in work if path.name not in ("lock", "run")]
        outside = [path for place in (self.temporary, self.cache) for path in place.rglob("*")]
        files = [path for path in outside if path.is_file()]
        return [str(path) for path in (*kept, *files)] + hidden_in(self.run)

    def entries(self) -> list[Entry]:
        return list(read_entries(self.run))

    def outcome(self) -> tuple[object, ...]:
        """All that must be the same."""
        return tensors_of(self.run), told_of(self.run), self.entries()

    def private_after(self, number: int) -> int:
        """Of the process itself, at the last step on a file."""
        last = self.entries()[number - 1].last_step
        told = [one for one in read_journal(self.run / "log.jsonl") if one["event"] == "step"]
        return next(int(str(one["private_bytes"])) for one in told if one["step"] == last)


def kill_once(place: Place, source: random.Random, *, seconds: float, start_seconds: float) -> str:
    """One more start and one more kill; where it fell."""
    running = place.start()
    if source.random() < START_SHARE:
        time.sleep(source.uniform(0, start_seconds))
    else:
        time.sleep(start_seconds + source.uniform(0, seconds))
    running.send_signal(signal.SIGKILL)
    running.communicate()
    if running.returncode != -signal.SIGKILL:
        raise SystemExit("the run was over before the last kill: use more files or fewer kills")
    stages = [entry.stage for entry in place.entries()]
    now = stages[-1] if stages else "nothing taken"
    torn = f"  half-written: {', '.join(hidden_in(place.run))}" if hidden_in(place.run) else ""
    return f"{stages.count('done'):4} done, last {now}{torn}"


def fill(scene: Scene, count: int, examples: int) -> None:
    for number in range(count):
        write_chats(scene.inbox / f"batch-{number:05}.jsonl", examples, seed=number)


def main() -> int:
    """0 when all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--examples", type=int, default=40, help="in each file")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scene = make_scene(Path(name))
        scene.configure(marker="")
        text = (scene.inbox / "lowtide.toml").read_text().replace('marker = ""\n', "")
        (scene.inbox / "lowtide.toml").write_text(text)
        fill(scene, chosen.files, chosen.examples)
        undisturbed, killed = (Place(scene, Path(name) / one) for one in ("whole", "killed"))
        began = time.monotonic()
        took = undisturbed.finish()
        early, late = (undisturbed.private_after(one) for one in (EARLY_FILE, chosen.files))
        entries = undisturbed.entries()
        print(f"undisturbed: {took:.0f} s, {entries[-1].last_step} steps, {len(entries)} files")
        print(f"private memory after file {EARLY_FILE}: {early / 1e6:.1f} MB, after file "
              f"{chosen.files}: {late / 1e6:.1f} MB ({(late - early) / 1e6:+.1f})", flush=True)  # fmt: skip
        source = random.Random(chosen.seed)
        for number in range(1, chosen.kills + 1):
            where = kill_once(killed, source, seconds=1.4 * took / chosen.kills, start_seconds=3.0)
            print(f"kill {number:3}: {where}", flush=True)
        killed.finish()
        same = killed.outcome() == undisturbed.outcome()
        once = [one.stage for one in killed.entries()] == ["done"] * chosen.files
        left = killed.left() + undisturbed.left()
        print(f"{chosen.kills} kills: every file done once: {once}; weights, optimizer, steps and ledger the "
              f"same: {same}; left behind: {left or 'nothing'}")  # fmt: skip
        print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if same and once and not left and abs(late - early) <= MOST_GROWTH_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
