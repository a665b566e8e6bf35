"""A folder that a process works in stays as long as that very process lives, and then goes with the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.guard.job import start_time
from lowtide.guard.process_folders import process_folder_name, remove_orphan_folders

PREFIX = ".lowtide-test-"


def make(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    (folder / "file").touch()
    return folder


def test_a_folder_goes_when_its_process_has_ended(tmp_path: Path) -> None:
    machine, _, began = process_folder_name("").split("-")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child_began = start_time(child.pid) or began
        left = make(tmp_path, f"{PREFIX}{machine}-{child.pid}-{child_began}-x")
        ours = make(tmp_path, process_folder_name(PREFIX))
        others = [make(tmp_path, "mine"), make(tmp_path, f"{PREFIX}{machine}")]
        if start_time(child.pid) is not None:
            remove_orphan_folders(tmp_path, PREFIX)
            assert left.exists()
        child.kill()
    remove_orphan_folders(tmp_path, PREFIX)
    assert set(tmp_path.iterdir()) == {ours, *others}


@pytest.mark.skipif(start_time(os.getpid()) is None, reason="only Linux tells ticks")
@pytest.mark.parametrize("ticks", [-100, -1, 1])
def test_a_number_that_was_given_out_again_is_not_taken_for_the_owner(
    tmp_path: Path, ticks: int
) -> None:
    """Also within the same second."""
    machine, pid, began = process_folder_name("").split("-")
    before = make(tmp_path, f"{PREFIX}{machine}-{pid}-{int(began) + ticks}")
    remove_orphan_folders(tmp_path, PREFIX)
    assert not before.exists()


def test_numbers_that_no_process_has_are_nobodys(tmp_path: Path) -> None:
    machine, _, began = process_folder_name("").split("-")
    make(tmp_path, f"{PREFIX}{machine}-{10**40}-{began}")
    remove_orphan_folders(tmp_path, PREFIX)
    assert list(tmp_path.iterdir()) == []
