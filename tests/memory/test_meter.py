"""Private memory is measured, and page cache is not taken for it. Real processes, real files."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lowtide.memory import meter
from lowtide.memory.allocator import give_back
from lowtide.memory.meter import (
    PeakMeter,
    child_pids,
    estimate_process,
    measure_processes,
    measure_tree,
    private_bytes,
    with_own_memory,
)
from lowtide.memory.proc_files import read_text
from lowtide.units import MIB
from tests.machine_speed import slowness
from tests.memory.vfork import child_in_vfork

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ALLOCATE = "kept = bytearray(b'x') * (64 << 20)\n"
MAP_AND_READ = """
import mmap, sys
file = open(sys.argv[1], "rb")
kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
total = sum(kept[at] for at in range(0, len(kept), 4096))
"""
SHARE = "import mmap\nkept = mmap.mmap(-1, 32 << 20)\nkept.write(b'x' * (32 << 20))\n"
BOTH_TOUCH = (
    SHARE
    + """
import os
read, write = os.pipe()
if os.fork() == 0:
    sum(kept[::4096]); os.write(write, b"touched"); os.read(0, 1); os._exit(0)
os.read(read, 7)
"""
)
SHARED_BY_NINE = (
    SHARE
    + """
import os
for _ in range(8):
    if os.fork() == 0:
        sum(kept[::4096]); os.read(0, 1); os._exit(0)
"""
)
ALLOCATE_IN_A_GRANDCHILD = f"""
import subprocess, sys
code = {ALLOCATE!r} + "print('ready', flush=True)\\nsys.stdin.read()"
subprocess.run([sys.executable, "-c", "import sys\\n" + code])
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator[int]:
    """A process that has run the code and waits; killed at the end."""
    script = code + "\nprint('ready', flush=True)\nimport sys; sys.stdin.read()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"")  # its input ends, and so does it


@contextmanager
def big_file(path: Path, size_bytes: int) -> Iterator[Path]:
    with path.open("wb") as file:
        for _ in range(size_bytes // MIB):
            file.write(b"y" * MIB)
    yield path
    path.unlink()


def bare_private_bytes() -> int:
    with child("pass") as pid:
        return measure_tree(pid).private_bytes


@linux_only
def test_anonymous_memory_of_a_child_is_private() -> None:
    bare = bare_private_bytes()
    with child(ALLOCATE) as pid:
        use = measure_tree(pid)
    assert 64 * MIB <= use.private_bytes - bare < 70 * MIB
    assert use.exact
    assert use.process_count == 1


@linux_only
def test_a_file_that_was_mapped_and_read_through_is_page_cache(tmp_path: Path) -> None:
    bare = bare_private_bytes()
    with big_file(tmp_path / "big", 200 * MIB) as path, child(MAP_AND_READ, str(path)) as pid:
        use = measure_tree(pid)
        estimate = estimate_process(pid)
    assert use.private_bytes - bare < 4 * MIB
    assert use.mapped_file_bytes > 190 * MIB
    assert estimate is not None
    resident_bytes = estimate.private_bytes + estimate.mapped_bytes
    assert resident_bytes > 190 * MIB  # what other meters would have shown


@linux_only
def test_shared_memory_is_private_to_the_tree_and_counted_once() -> None:
    bare = bare_private_bytes()
    with child(SHARE) as pid:
        alone = measure_tree(pid).private_bytes - bare
    with child(BOTH_TOUCH) as pid:
        shared = measure_tree(pid)
    assert shared.process_count == 2
    assert 32 * MIB <= alone < 36 * MIB
    assert 32 * MIB <= shared.private_bytes - bare < 42 * MIB


@linux_only
@pytest.mark.parametrize("at_a_time", [1, 3, 8])
def test_processes_that_end_during_a_reading_do_not_raise_it(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    bare = bare_private_bytes()
    with child(SHARED_BY_NINE) as pid:
        while len(children := child_pids(pid)) < 8:
            time.sleep(0.02)
        left, has_ended = list(children), False

        def end_some(path: Path) -> str | None:
            nonlocal has_ended
            text = read_text(path)
            if path == Path(f"/proc/{pid}/smaps_rollup"):
                has_ended = False  # a new reading: it begins with this process
            elif left and path == Path(f"/proc/{left[0]}/smaps_rollup") and not has_ended:
                has_ended, ending = True, left[:at_a_time]
                del left[:at_a_time]
                for one in ending:  # one of them was read: the others' share grows now
                    with suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)
                while any(has_memory(one) for one in ending):
                    time.sleep(0.01)
            return text

        monkeypatch.setattr(meter, "read_text", end_some)
        use = measure_processes([pid, *children])
    assert use.process_count == 1
    assert 32 * MIB <= use.private_bytes - bare < 36 * MIB


@linux_only
def test_a_child_between_vfork_and_exec_has_no_memory_of_its_own(tmp_path: Path) -> None:
    with child_in_vfork(tmp_path, mib=64) as (pid, execute):
        (child,) = child_pids(pid)
        assert with_own_memory([pid, child]) == [pid]
        before = measure_tree(pid)
        execute()
        assert with_own_memory([pid, child]) == [pid, child]
        after = measure_tree(pid)
    assert (before.process_count, after.process_count) == (1, 2)
    assert 64 * MIB <= before.private_bytes < 90 * MIB


@linux_only
def test_where_the_system_does_not_tell_a_child_may_execute_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "_KCMP_NUMBERS", {})
    with child_in_vfork(tmp_path, mib=64) as (pid, execute), monkeypatch.context() as patch:
        patch.setattr(meter.time, "sleep", lambda _: execute())
        use = measure_tree(pid)
    assert use.process_count == 2
    assert 64 * MIB <= use.private_bytes < 90 * MIB


@linux_only
def test_dead_processes_cost_no_second_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0

    def count(path: Path) -> str | None:
        nonlocal walks
        walks += path == Path(f"/proc/{pid}/smaps_rollup")
        return read_text(path)

    with child("pass") as pid, subprocess.Popen(["true"]) as gone:
        while has_memory(gone.pid):
            time.sleep(0.01)
        monkeypatch.setattr(meter, "read_text", count)
        assert measure_processes([pid, gone.pid]).process_count == 1
    assert walks == 1


@linux_only
def test_processes_that_keep_ending_do_not_hold_up_a_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a second, the figure of the last walk stays."""
    seconds = 0.0

    def end_one(path: Path) -> str | None:
        nonlocal seconds
        text = read_text(path)
        if path == Path(f"/proc/{pid}/smaps_rollup"):
            seconds += 0.4
            ending = children.pop()
            os.kill(ending, signal.SIGKILL)
            while has_memory(ending):
                time.sleep(0.01)
        return text

    with child(SHARED_BY_NINE) as pid:
        while len(children := child_pids(pid)) < 8:
            time.sleep(0.02)
        monkeypatch.setattr(meter, "read_text", end_one)
        monkeypatch.setattr(meter.time, "monotonic", lambda: seconds)
        assert measure_processes([pid, *children]).process_count > 1
        monkeypatch.undo()
    assert len(children) == 4


def has_memory(pid: int) -> bool:
    """False for a zombie: only then the kernel has taken all pages back."""
    status = read_text(Path(f"/proc/{pid}/status"))
    return status is not None and "\nState:\tZ" not in status


@linux_only
def test_grandchildren_belong_to_the_tree() -> None:
    with child_that_has_a_child() as pid:
        use = measure_tree(pid)
    assert use.process_count == 2
    assert use.private_bytes > 64 * MIB


@contextmanager
def child_that_has_a_child() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", ALLOCATE_IN_A_GRANDCHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"")


def test_a_process_that_has_ended_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert measure_tree(process.pid).process_count == 0
    assert measure_tree(process.pid).private_bytes == 0


def figures_of(code: str) -> list[int]:
    """What the code prints in a process of its own, without this one's children and malloc settings."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(figure) for figure in done.stdout.split()]


def test_a_process_sees_its_own_allocation_and_its_release() -> None:
    grown, left = figures_of("""
from lowtide.memory.meter import private_bytes
before = private_bytes()
block = bytearray(b"x") * (64 << 20)
grown = private_bytes() - before
del block
print(grown, private_bytes() - before)
""")
    assert 62 * MIB <= grown < 68 * MIB
    assert left < 4 * MIB


@linux_only
def test_the_cheap_figure_and_the_exact_one_agree_for_one_process() -> None:
    cheap, exact = figures_of("""
from lowtide.memory.meter import measure_tree, private_bytes
block = bytearray(b"x") * (32 << 20)
print(private_bytes(), measure_tree().private_bytes)
""")
    assert cheap == pytest.approx(exact, rel=0.1)
    assert cheap > 32 * MIB


@linux_only
def test_the_cheap_figure_is_cheap() -> None:
    best_seconds = min(_seconds_of_a_hundred() for _ in range(5)) / 100
    assert best_seconds < 100e-6 * slowness()


def _seconds_of_a_hundred() -> float:
    start = time.process_time()
    for _ in range(100):
        private_bytes()
    return time.process_time() - start


def test_a_peak_stays_after_the_memory_is_gone() -> None:
    peak, last, count = figures_of("""
import time
from lowtide.memory.meter import PeakMeter
with PeakMeter(interval_seconds=0.01) as meter:
    block = bytearray(b"x") * (64 << 20)
    seen = meter.sample_count
    while meter.sample_count < seen + 2:
        time.sleep(0.01)
    del block
print(meter.peak.private_bytes, meter.last.private_bytes, meter.sample_count)
""")
    assert peak - last > 56 * MIB
    assert count >= 3


@linux_only
def test_the_peak_of_a_child_outlives_the_child() -> None:
    code = ALLOCATE + "input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    with process, PeakMeter(process.pid, interval_seconds=0.02) as meter:
        while meter.peak.private_bytes <= 64 * MIB:
            assert process.poll() is None
            time.sleep(0.01)
        process.communicate(b"\n")
    assert meter.peak.private_bytes > 64 * MIB
    assert meter.last.process_count == 1


@linux_only
def test_freed_small_objects_go_back_only_when_asked() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library has no malloc_trim")
    returned, freed = figures_of("""
import ctypes
from lowtide.memory.allocator import give_back
from lowtide.memory.meter import private_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(4000) for _ in range(20_000)]
for block in blocks: ctypes.memset(block, 1, 4000)
for block in blocks[:-1]: libc.free(block)   # the last one keeps the top of the heap
before = private_bytes()
returned = give_back()
print(int(returned), before - private_bytes())
""")
    assert returned
    assert freed > 60 * MIB


def test_giving_back_never_fails() -> None:
    assert give_back() in (True, False)


def test_other_systems_get_an_estimate() -> None:
    estimate = estimate_process(os.getpid())
    assert estimate is not None
    assert estimate.private_bytes > 0
    assert estimate.mapped_bytes >= 0
