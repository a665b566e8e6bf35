"""Behind the fence a runaway allocation is an error, and the machine never feels it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.memory.fence import fence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this fence")

PRELUDE = """
import resource, sys
from lowtide.memory.fence import fence
from lowtide.memory.meter import private_bytes
def refused(allocate):
    try:
        kept = allocate()
    except MemoryError:
        return True
    return False
"""


def run(code: str, *arguments: str) -> str:
    """In a process of its own: a limit on the tests themselves would be felt by all of them."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "allocate",
    [
        "bytearray(4 << 30)",
        "b'x' * (4 << 30)",
        "__import__('numpy').ones(4 << 30, dtype='uint8')",
        "__import__('mmap').mmap(-1, 4 << 30, flags=0x22).read(1)",  # private, anonymous
    ],
)
def test_a_runaway_allocation_is_a_memory_error(allocate: str) -> None:
    code = f"""
import numpy
def allocate():
    try:
        return {allocate}
    except OSError as error:
        raise MemoryError from error
with fence(256 << 20) as stands:
    print(stands, refused(allocate), private_bytes() < 200 << 20)
"""
    assert run(code) == "True True True"


def test_what_the_fence_allows_can_be_had_and_no_more() -> None:
    code = """
with fence(64 << 20):
    print(refused(lambda: bytearray(48 << 20)), refused(lambda: bytearray(80 << 20)))
"""
    assert run(code) == "False True"


def test_many_small_allocations_run_into_it_too() -> None:
    code = """
def grow():
    kept = []
    while True:
        kept.append(bytes(50_000))
with fence(64 << 20):
    print(refused(grow))
"""
    assert run(code) == "True"


def test_afterwards_memory_is_free_again_even_after_an_error() -> None:
    code = """
before = resource.getrlimit(resource.RLIMIT_DATA)
try:
    with fence(1 << 20):
        raise KeyError
except KeyError:
    pass
print(before == resource.getrlimit(resource.RLIMIT_DATA), refused(lambda: bytearray(128 << 20)))
"""
    assert run(code) == "True False"


def test_a_file_larger_than_the_fence_can_still_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    code = """
import mmap
with fence(16 << 20), open(sys.argv[1], "rb") as file:
    print(len(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
"""
    assert run(code, str(path)) == str(2 << 30)


def test_a_fence_inside_a_fence_can_only_be_tighter() -> None:
    code = """
with fence(64 << 20):
    with fence(1 << 30):
        print(refused(lambda: bytearray(256 << 20)))
    with fence(8 << 20):
        print(refused(lambda: bytearray(32 << 20)))
    print(refused(lambda: bytearray(32 << 20)))
"""
    assert run(code).split() == ["True", "True", "False"]


def test_the_fence_says_that_it_stands() -> None:
    with fence(1 << 40) as stands:
        assert stands


def test_the_environment_of_the_process_stays_as_it_is() -> None:
    before = dict(os.environ)
    with fence(1 << 40):
        assert dict(os.environ) == before
