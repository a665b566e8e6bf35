"""A disk that takes a part, or says no, loses nothing: the same command comes to the same bytes.

A small version of the campaign in `bench/failing_disk.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a library that is preloaded")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("kind", "shorts", "faults"), [("tokenize", 4, 0), ("train", 3, 6), ("inbox", 3, 4)]
)
def test_short_writes_and_failing_calls_lose_nothing(
    tmp_path: Path, kind: str, shorts: int, faults: int
) -> None:
    wanted = ["--shorts", str(shorts), "--faults", str(faults), "--seed", "5"]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.failing_disk", "--only", kind, *wanted, "--folder", tmp_path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
