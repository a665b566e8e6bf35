"""Freed memory goes back to the system, or stays for the next use, as was chosen."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import ctypes, sys
from lowtide.memory import allocator
getattr(allocator, sys.argv[1])()
from lowtide.memory.meter import private_bytes
size = int(sys.argv[2]) * 1_000_000
pieces = [ctypes.create_string_buffer(size) for _ in range(2)]
for piece in pieces:
    ctypes.memset(piece, 1, size)
full = private_bytes()
del piece, pieces
print((full - private_bytes()) // 1_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
@pytest.mark.parametrize(
    ("told", "megabytes", "least", "most"),
    [
        ("return_large_pieces", 50, 95, 105),
        ("keep_large_pieces", 50, 0, 5),
        ("keep_large_pieces", 100, 195, 205),  # logits
    ],
)
def test_large_pieces_are_returned_or_kept(
    told: str, megabytes: int, least: int, most: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, told, str(megabytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert least <= int(done.stdout) <= most
