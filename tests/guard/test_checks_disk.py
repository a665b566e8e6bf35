"""The disk is asked, really written to, and left as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.guard.doctor.check_disk import (
    DiskSpace,
    check_file_system,
    check_shared_memory,
    check_space,
    check_writing,
    file_system,
    find_wrong_temporary,
    judge_speed,
    judge_temporary,
    measure_writing,
    read_disk_space,
)
from lowtide.guard.doctor.checks import Examination
from lowtide.units import GIB, MIB

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:27 / /tmp rw,relatime - tmpfs tmpfs rw,size=24684100k
31 27 0:28 / /mnt/my\\040disk rw shared:4 - xfs /dev/sdb rw
32 27 0:29 / /data rw - ext4 /dev/sdc rw
33 27 0:30 / /data rw - nfs4 server:/data rw
"""


def space(free_bytes: int, free_files: int | None = None) -> DiskSpace:
    return DiskSpace(free_bytes=free_bytes, total_bytes=200 * GIB, free_files=free_files)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", "ext4"),
        ("/tmp", "tmpfs"),
        ("/tmp/a/b", "tmpfs"),
        ("/tmpfiles", "ext4"),
        ("/mnt/my disk/tokens", "xfs"),
        ("/data/tokens", "nfs4"),
    ],
)
def test_the_innermost_and_last_mount_holds_the_folder(
    tmp_path: Path, folder: str, kind: str
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    assert file_system(Path(folder), tmp_path) == kind


def test_a_system_without_mountinfo_says_nothing_of_it(tmp_path: Path) -> None:
    assert file_system(Path("/home"), tmp_path) is None
    assert check_file_system(Examination()) is None
    assert judge_temporary(Path("/tmp"), None, other=None) is None
    assert check_shared_memory(Examination()) is None


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "level"),
    [
        (50 * GIB, 10**6, "ok"),
        (50 * GIB, None, "ok"),
        (5 * GIB, 10**6, "advice"),
        (GIB // 2, 10**6, "problem"),
        (50 * GIB, 12, "problem"),
    ],
)
def test_too_little_room_is_told(free_bytes: int, free_files: int | None, level: str) -> None:
    left = space(free_bytes, free_files)
    assert check_space(Examination(space=left, folder=Path("/data"))).level == level


@pytest.mark.parametrize(
    ("kind", "container", "level"),
    [
        ("ext4", None, "ok"),
        ("nfs4", None, "ok"),
        ("tmpfs", None, "advice"),
        ("overlay", "Docker", "advice"),
        ("overlay", None, "ok"),
        ("9p", None, "advice"),
    ],
)
def test_what_takes_ram_or_goes_away_is_advised_against(
    kind: str, container: str | None, level: str
) -> None:
    check = check_file_system(Examination(file_system=kind, container=container))
    assert check is not None
    assert check.level == level


def test_temporary_files_in_memory_are_sent_elsewhere() -> None:
    check = judge_temporary(Path("/tmp"), "tmpfs", other=Path("/var/tmp"))
    assert check is not None
    assert check.remedy == "`export TMPDIR=/var/tmp`, a folder on a disk"


def test_only_a_setting_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a file's name"
    file.write_text("")
    assert find_wrong_temporary({}, used=Path("/tmp")) is None
    assert find_wrong_temporary({"TMPDIR": ""}, used=Path("/tmp")) is None
    assert find_wrong_temporary({"TMPDIR": str(tmp_path)}, used=Path("/tmp")) is None
    wrong = find_wrong_temporary({"TEMP": str(file)}, used=Path("/tmp"))
    assert wrong is not None
    assert wrong.finding.startswith(f"TEMP is {file}, which is not a folder")


def test_a_folder_is_tried_without_a_trace(tmp_path: Path) -> None:
    left = space(GIB)
    assert check_writing(Examination(folder=tmp_path, space=left, quick=True)).level == "ok"
    assert list(tmp_path.iterdir()) == []
    missing = tmp_path / "missing"
    refused = check_writing(Examination(folder=missing, space=left, quick=True))
    assert refused.level == "problem"


def test_dockers_64_mib_of_shared_memory_are_told() -> None:
    check = check_shared_memory(Examination(shared_memory_bytes=64 * MIB, container="Docker"))
    assert check is not None
    assert check.level == "advice"
    assert "--shm-size" in str(check.remedy)


def test_the_trial_stays_inside_both_bounds_and_leaves_nothing(tmp_path: Path) -> None:
    written_bytes, seconds = measure_writing(tmp_path, most_bytes=5 * MIB, most_seconds=60)
    assert written_bytes == 5 * MIB
    assert seconds > 0
    at_once, _ = measure_writing(tmp_path, most_bytes=1 << 40, most_seconds=0.05)
    assert MIB <= at_once < GIB
    assert list(tmp_path.iterdir()) == []


def test_the_trial_has_no_name_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    real = os.fsync

    def look(file: int) -> None:
        seen.append(os.listdir(tmp_path))  # noqa: PTH208
        real(file)

    monkeypatch.setattr(os, "fsync", look)
    measure_writing(tmp_path, most_bytes=2 * MIB)
    assert seen == [[], []]


def test_the_speed_is_told_with_the_bytes_that_proved_it(tmp_path: Path) -> None:
    check = check_writing(Examination(folder=tmp_path, space=read_disk_space(tmp_path)))
    assert "written and synced in" in check.finding
    assert "(measured:" in check.finding
    slow = judge_speed(MIB, 1.0)
    assert slow.level == "advice"
    assert slow.finding.startswith("1.0 MiB/s (measured: 1.0 MiB written and synced in 1.0s)")


def test_a_full_disk_and_memory_are_not_written_to(tmp_path: Path) -> None:
    full = Examination(folder=tmp_path, space=space(4 * MIB), file_system="ext4")
    assert check_writing(full).finding == "not tried: the disk is full"
    memory = Examination(folder=tmp_path, space=space(GIB), file_system="tmpfs")
    assert check_writing(memory).finding == "not tried: tmpfs is memory"


def test_a_folder_that_refuses_is_a_problem(tmp_path: Path) -> None:
    check = check_writing(Examination(folder=tmp_path / "missing", space=space(GIB)))
    assert check.level == "problem"
    assert "no such file or directory" in check.finding
