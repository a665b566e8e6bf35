"""A file that changed is found, by the compiled part as by Python, whatever was done to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import VerificationError
from lowtide.shards.stamps import NativeStamps, StampedFiles, stamp_of
from tests.shards.streams import fresh_folder


def cut(path: Path) -> None:
    os.truncate(path, 3)


def replace(path: Path) -> None:
    """By another file of the same size and time: only its identity tells."""
    other, found = path.with_suffix(".other"), path.stat()
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def turn_back(path: Path) -> None:
    os.utime(path, ns=(0, -1))


CHANGES: list[Callable[[Path], None]] = [cut, replace, touch, turn_back, Path.unlink]


def write_some(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"ä {number}.bin" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(b"tokens")
        os.utime(path, ns=(0, (number - 2) * 1_000_000_001))  # some before 1970
    return paths


@given(data=st.data())
def test_the_compiled_part_finds_the_same_file_as_python(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    numbers = data.draw(st.lists(st.integers(0, count - 1), max_size=12))
    with fresh_folder() as folder:
        paths = write_some(folder, count)
        stamps = [stamp_of(path.stat()) for path in paths]
        plain, native = StampedFiles(paths), NativeStamps(list(map(str, paths)), stamps)
        assert plain.first_changed(numbers) == native.first_changed(numbers) == len(numbers)
        changed = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
        for number in changed:
            data.draw(st.sampled_from(CHANGES))(paths[number])
        wanted = next((at for at, number in enumerate(numbers) if number in changed), len(numbers))
        assert plain.first_changed(numbers) == native.first_changed(numbers) == wanted


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("count", [1, 20])
def test_one_changed_file_is_named(
    count: int, change: Callable[[Path], None], tmp_path: Path
) -> None:
    paths = write_some(tmp_path, count)
    files = StampedFiles(paths)
    files.check(range(count))
    change(paths[-1])
    with pytest.raises(VerificationError, match=paths[-1].name):
        files.check(range(count))
