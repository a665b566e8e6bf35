"""Kill `train-tokenizer` again and again, at any moment, and compare what it comes to with an undisturbed run.

    python bench/corpus.py --out /tmp/corpus --megabytes 1050
    python bench/train_killed.py /tmp/corpus/corpus.txt --kills 50

Checkpoints are taken every quarter of a second instead of every half minute, so that kills fall between,
into and behind them; the budget is so small that tables go to disk, too. A run that ends before it is killed
is compared and begun anew. Exits 1 when any byte differs or a run ends in any other way.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter

from bench.jobs import SEPARATOR
from tests.trained import trained_bytes

PROGRAM = """
import sys, lowtide
text, out, separator = sys.argv[1:]
settings = lowtide.TokenizerSettings(vocab_size=(8000, 32000), separator=separator, val=0.001)
lowtide.train_tokenizer([text], out, settings, memory="128MiB", checkpoint_seconds=0.25)
"""


def start(text: Path, out: Path) -> subprocess.Popen[bytes]:
    """One run in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, str(text), str(out), SEPARATOR]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def main() -> int:
    """Kill until there were enough; 0 when every folder has the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    source = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        began = time.monotonic()
        undisturbed = start(chosen.text, Path(folder) / "undisturbed")
        if undisturbed.wait():
            raise SystemExit("the undisturbed run failed")
        seconds = time.monotonic() - began
        expected = trained_bytes(Path(folder) / "undisturbed")
        seen: Counter[str] = Counter()
        while seen["killed"] < chosen.kills or out.exists():
            run = start(chosen.text, out)
            if seen["killed"] < chosen.kills:
                time.sleep(source.uniform(0.1, seconds))
                run.send_signal(signal.SIGKILL)
            _, said = run.communicate()
            if run.returncode == -signal.SIGKILL:
                seen["killed"] += 1
                continue
            if run.returncode:
                raise SystemExit(f"exit {run.returncode} after {dict(seen)}: {said.decode()}")
            made = trained_bytes(out)
            if made != expected:
                unlike = [
                    name for name in {*made, *expected} if made.get(name) != expected.get(name)
                ]
                raise SystemExit(f"other bytes after {dict(seen)}: {sorted(unlike)}")
            seen["finished, same bytes"] += 1
            shutil.rmtree(out)
        print(f"undisturbed {seconds:.1f} s; {dict(seen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
