"""The box that proves budgets is proven itself: what exceeds it dies in it, what fits passes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.guard import box as box_room
from lowtide.memory.cgroups import memory_cgroups
from lowtide.units import MIB
from tests.boxes import drop_from_page_cache, how_boxes_work, run_in_box

pytestmark = [
    pytest.mark.cgroup,
    pytest.mark.skipif(sys.platform != "linux", reason="boxes are made of Linux cgroups"),
]

ALLOCATE_200_MIB = "kept = bytearray(b'x') * (200 << 20); print('survived')"
READ_THROUGH = """
import sys
with open(sys.argv[1], "rb", buffering=0) as file:
    piece, total = bytearray(1 << 20), 0
    while got := file.readinto(piece):
        total += got
print(total)
"""


@pytest.fixture
def walls() -> str:
    """Which cgroup the boxes are made of; without one there is nothing to prove here."""
    how = how_boxes_work()
    if how == "sampled":
        pytest.skip("no memory cgroup is writable here: boxes only sample")
    return how


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_what_exceeds_the_box_is_killed_in_it_and_reported(walls: str) -> None:
    result = run_in_box(python(ALLOCATE_200_MIB), limit_bytes=100 * MIB, timeout=300)
    assert result.returncode == -9
    assert result.oom_kills >= 1
    assert "survived" not in result.stdout
    assert result.how == walls
    assert result.peak_charged_bytes is None or result.peak_charged_bytes <= 100 * MIB


def test_what_fits_the_box_passes_with_its_peaks_shown() -> None:
    code = ALLOCATE_200_MIB + "; import sys; sys.stdin.read()"
    result = run_in_box(
        python(code), limit_bytes=300 * MIB, timeout=300, until_peak_bytes=200 * MIB
    )
    assert (result.returncode, result.oom_kills, result.stdout) == (0, 0, "survived\n")
    assert 200 * MIB <= result.peak_private_bytes < 230 * MIB
    if result.peak_charged_bytes is not None:
        assert 200 * MIB <= result.peak_charged_bytes <= 300 * MIB


def test_a_file_larger_than_the_box_can_be_read_in_it(tmp_path: Path, walls: str) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        for _ in range(150):
            file.write(b"z" * MIB)
    drop_from_page_cache(path)
    result = run_in_box(python(READ_THROUGH, str(path)), limit_bytes=64 * MIB, timeout=300)
    assert (result.returncode, result.oom_kills) == (0, 0), result
    assert result.stdout == f"{150 * MIB}\n"
    assert result.peak_private_bytes < 40 * MIB
    assert result.peak_charged_bytes is None or result.peak_charged_bytes > 48 * MIB  # page cache


def test_a_child_of_the_command_is_in_the_box_too(walls: str) -> None:
    inner = f"[sys.executable, '-c', {ALLOCATE_200_MIB!r}]"
    code = f"import subprocess, sys; sys.exit(subprocess.call({inner}))"
    result = run_in_box(python(code), limit_bytes=100 * MIB, timeout=300)
    assert result.returncode != 0
    assert result.oom_kills >= 1


def test_output_status_and_environment_pass_through() -> None:
    code = "import os, sys; print(os.environ['WORD']); print('talk', file=sys.stderr); sys.exit(75)"
    result = run_in_box(python(code), limit_bytes=200 * MIB, timeout=300, env={"WORD": "tide"})
    assert (result.returncode, result.stdout, result.stderr) == (75, "tide\n", "talk\n")


def test_a_command_that_takes_too_long_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_in_box(["sleep", "60"], limit_bytes=100 * MIB, timeout=0.3)
    assert time.monotonic() - start < 50


def test_no_box_is_left_behind(walls: str) -> None:
    run_in_box(python("pass"), limit_bytes=100 * MIB, timeout=300)
    ours = f"lowtide-{os.getpid()}-*"
    assert [box for group in memory_cgroups() for box in group.folder.glob(ours)] == []


def test_without_a_writable_cgroup_the_box_samples_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box_room, "memory_cgroups", list)  # a machine that has none
    code = ALLOCATE_200_MIB + "; import sys; sys.stdin.read()"
    result = run_in_box(
        python(code), limit_bytes=100 * MIB, timeout=300, until_peak_bytes=200 * MIB
    )
    assert (result.how, result.returncode, result.oom_kills) == ("sampled", 0, 0)
    assert result.peak_private_bytes > 200 * MIB
    assert result.peak_charged_bytes is None


def test_a_v2_box_uses_the_files_that_the_kernel_documents(tmp_path: Path) -> None:
    """On plain files, for machines whose memory lies in v1: names and formats only."""
    box = box_room.Box(how="cgroup v2", folder=tmp_path)
    (tmp_path / "memory.swap.max").write_text("max\n")
    box_room._set_limit(box, 64 * MIB)
    assert (tmp_path / "memory.max").read_text() == str(64 * MIB)
    assert (tmp_path / "memory.swap.max").read_text() == "0"
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n")
    assert box.peak_charged_bytes() == 4096
    assert box.oom_kills() == 1
