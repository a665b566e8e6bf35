"""Readings: what is private is counted once, what is page cache is not counted, what ended is not there."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.guard.reading import Reader
from lowtide.memory.meter import read_process, tree_of
from lowtide.units import MIB
from tests.memory.vfork import child_in_vfork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own files")

HOLD = "kept = bytearray(b'x') * ({mib} << 20); print('ready', flush=True); input()"
NOBODY = 4_194_999
"""Linux gives out no such id."""
FORKS = """
import os
kept = bytearray(b'x') * (100 << 20)
for _ in range(3):
    if os.fork() == 0:
        input()
        os._exit(0)
print('ready', flush=True)
input()
"""


def held(code: str, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_what_a_process_holds_is_read_with_its_name() -> None:
    process = held(HOLD.format(mib=64))
    try:
        reading = Reader(pid=process.pid).read()
        assert reading is not None
        assert 64 * MIB < reading.private_bytes < 90 * MIB
        (one,) = reading.top
        assert (one.pid, one.name[:6]) == (process.pid, "python")
        assert reading.available_bytes > 0
    finally:
        end(process)


def test_what_forks_share_is_counted_once() -> None:
    process = held(FORKS)
    try:
        while (reading := Reader(pid=process.pid).read()) and reading.process_count < 4:
            time.sleep(0.05)
        assert reading is not None
        assert reading.process_count == 4
        assert 100 * MIB < reading.private_bytes < 160 * MIB
    finally:
        for pid in list(tree_of(process.pid))[::-1]:
            os.kill(pid, 9)
        end(process)


def test_a_child_between_vfork_and_exec_is_counted_with_its_parent(tmp_path: Path) -> None:
    """A look afterwards is no lower for it."""
    with child_in_vfork(tmp_path, mib=64) as (pid, execute):
        reader = Reader(pid=pid)
        readings = [reader.read(), reader.read(exactly=True)]
        execute()
        readings.append(reader.read())
    for reading in readings:
        assert reading is not None
        assert 64 * MIB < reading.private_bytes < 90 * MIB


def test_a_mapped_file_is_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (64 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = read_process(os.getpid())
        assert sum(mapped[at] for at in range(0, len(mapped), 4096)) > 0
        after = read_process(os.getpid())
    assert before is not None
    assert after is not None
    assert after.mapped_bytes - before.mapped_bytes > 50 * MIB
    assert abs(after.private_bytes - before.private_bytes) < 8 * MIB


def test_a_process_that_has_ended_gives_no_reading() -> None:
    process = held(HOLD.format(mib=1))
    end(process)
    assert Reader(pid=process.pid).read() is None


def test_the_fields_of_a_made_up_machine_are_read(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / str(NOBODY)).mkdir(parents=True)
    (proc / "pressure").mkdir()
    (proc / str(NOBODY) / "status").write_text(
        "Name:\tjob\nRssAnon:\t  100 kB\nRssFile:\t  50 kB\nRssShmem:\t  10 kB\nVmSwap:\t  5 kB\n"
    )
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:  400 kB\n")
    (proc / "vmstat").write_text("pgin 1\npswpin 10\n")
    (proc / "pressure/memory").write_text("some avg10=3.00 avg60=0\nfull avg10=1.50 avg60=0\n")
    reader = Reader(pid=NOBODY, root=tmp_path)
    first = reader.read()
    (proc / "vmstat").write_text("pgin 1\npswpin 1010\n")
    time.sleep(0.01)
    second = reader.read()
    assert first is not None
    assert second is not None
    assert (first.private_bytes, first.shared_bytes) == (110 * 1024, 10 * 1024)
    assert (first.mapped_bytes, first.swapped_bytes) == (50 * 1024, 5 * 1024)
    assert (first.available_bytes, first.stalled_percent) == (400 * 1024, 1.5)
    assert (first.swapped_in_bytes, first.top[0].name) == (0.0, "job")
    assert second.swapped_in_bytes > 0
