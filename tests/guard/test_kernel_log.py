# ruff: noqa: E501 - messages of libraries and kernels stand here as they were printed
"""The kernel's words of many releases, and the daemons' words, are read as what they mean."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lowtide.guard.why.kernel_log import (
    Clock,
    KernelLog,
    join_logs,
    parse_kernel_log,
    read_kernel_log,
)
from lowtide.units import KIB

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC).timestamp()
CLOCK = Clock(now=NOW, boot_at=NOW - 100_000)

MODERN_CGROUP = """\
[23150.375783] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job/7,\
task_memcg=/job/7,task=python,pid=28717,uid=0
[23150.375800] Memory cgroup out of memory: Killed process 28717 (python) total-vm:217316kB, anon-rss:97024kB, \
file-rss:5840kB, shmem-rss:0kB, UID:0 pgtables:248kB oom_score_adj:0
[23150.400000] oom_reaper: reaped process 28717 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
"""
MODERN_MACHINE = """\
[2059991.491436] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
task_memcg=/user.slice,task=python3,pid=25315,uid=0
[2059991.491542] Out of memory: Killed process 25315 (python3) total-vm:53312244kB, anon-rss:31451456kB, file-rss:0kB
"""
OLD_CGROUP = """\
May 15 23:01:53 host kernel: [  152.700479] Memory cgroup out of memory: Kill process 4142 (python3) score 68 or \
sacrifice child
May 15 23:01:53 host kernel: [  152.701942] Killed process 4254 (python3) total-vm:11968kB, anon-rss:4288kB
"""
OLD_MACHINE = """\
Apr 28 01:23:30 PC kernel: Out of memory: Kill process 27541 (bash) score 572 or sacrifice child
Apr 28 01:23:30 PC kernel: Killed process 27541 (bash) total-vm:8118236kB, anon-rss:8098448kB, file-rss:3264kB
"""
OLDER_WITH_UID = """\
[ 10.5] Task in /docker/x killed as a result of limit of /docker/x
[ 10.6] Memory cgroup out of memory: Kill process 24984 (palo_be) score 968 or sacrifice child
[ 10.7] Killed process 18177 (palo_be), UID 0, total-vm:70347780kB, anon-rss:45563572kB, file-rss:0kB
"""
NAME_WITH_BRACKETS = (
    "[ 518.06] Out of memory: Killed process 15925 ((resolved)) total-vm:1kB, anon-rss:4064kB\n"
)


def parse(text: str) -> KernelLog:
    return parse_kernel_log(text.splitlines(), source="test", clock=CLOCK)


@pytest.mark.parametrize(
    ("text", "pid", "name", "scope", "held_kib"),
    [
        (MODERN_CGROUP, 28717, "python", "cgroup", 97024),
        (MODERN_MACHINE, 25315, "python3", "machine", 31451456),
        (OLD_CGROUP, 4254, "python3", "cgroup", 4288),
        (OLD_MACHINE, 27541, "bash", "machine", 8098448),
        (OLDER_WITH_UID, 18177, "palo_be", "cgroup", 45563572),
        (NAME_WITH_BRACKETS, 15925, "(resolved)", "machine", 4064),
    ],
    ids=["cgroup", "machine", "old cgroup", "old machine", "older", "brackets"],
)
def test_one_kill_is_one_record_of_who_was_killed_and_whose_limit_it_was(
    text: str, pid: int, name: str, scope: str, held_kib: int
) -> None:
    (record,) = parse(text).records
    assert (record.kind, record.pid, record.name) == ("out of memory", pid, name)
    assert record.scope == scope
    assert record.anonymous_bytes == held_kib * KIB


def test_the_group_of_the_victim_is_kept() -> None:
    assert parse(MODERN_CGROUP).records[0].group == "/job/7"


def test_a_scope_does_not_leak_into_the_next_kill() -> None:
    both = MODERN_CGROUP + "[23151.0] Killed process 9 (bash) total-vm:1kB, anon-rss:4kB\n"
    assert [record.scope for record in parse(both).records] == ["cgroup", None]


def test_an_announcement_without_a_kill_still_counts() -> None:
    first_line = OLD_MACHINE.splitlines()[0]
    (record,) = parse(first_line).records
    assert record.pid == 27541


@pytest.mark.parametrize(
    ("line", "kind", "pid", "detail"),
    [
        (
            "[27026.78] python[10348]: segfault at 0 ip 00007f4 sp 00007ff error 4 in libc.so.6[167ad8,7f4+156000]",
            "crash",
            10348,
            "libc.so.6",
        ),
        (
            "[1.0] traps: python3[77] general protection fault ip:7f sp:7f error:0 in libtorch_cpu.so[7f+1]",
            "crash",
            77,
            "libtorch_cpu.so",
        ),
        (
            "[1.0] NVRM: Xid (PCI:0000:01:00): 31, pid=14292, name=python, Ch 00000030, MMU Fault",
            "gpu fault",
            14292,
            "Xid 31",
        ),
        (
            "[1.0] NVRM: Xid (PCI:0000:0a:00): 62, pid='<unknown>', name=<unknown>, 2023b230",
            "gpu fault",
            None,
            "Xid 62",
        ),
        ("[1.0] NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.", "gpu fault", None, "Xid 79"),
        (
            'Jun 12 06:39:16 h earlyoom[9]: sending SIGTERM to process 696 uid 1001 "ipfs": badness 757, VmRSS 637 MiB',
            "memory daemon",
            696,
            "earlyoom",
        ),
        (
            "Dec 18 19:34:56 h systemd-oomd[840]: Killed /user.slice/a.scope due to memory pressure for /user.slice",
            "memory daemon",
            None,
            "systemd-oomd",
        ),
    ],
)  # fmt: skip
def test_crashes_faults_of_a_card_and_daemons_are_told(
    line: str, kind: str, pid: int | None, detail: str
) -> None:
    (record,) = parse(line).records
    assert (record.kind, record.pid, record.detail) == (kind, pid, detail)


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("[  518.050606] ", CLOCK.boot_at + 518.050606),
        ("1784550000.250000 host kernel: ", 1784550000.25),
        ("2026-05-15T23:09:30.500000+02:00 host kernel: [1.5] ", datetime(2026, 5, 15, 21, 9, 30, 500000, UTC).timestamp()),
        ("Nov 16 10:00:00 host kernel: [1.5] ", datetime(2026, 11, 16, 10, 0).timestamp()),
        ("Dec 31 10:00:00 host kernel: ", datetime(2025, 12, 31, 10, 0).timestamp()),
        ("[Sun Mar 30 08:24:00 2025] ", datetime(2025, 3, 30, 8, 24).timestamp()),
        ("", None),
    ],
)  # fmt: skip
def test_every_kind_of_stamp_is_a_time(stamp: str, seconds: float | None) -> None:
    line = f"{stamp}Out of memory: Killed process 7 (x) total-vm:1kB, anon-rss:4kB"
    (record,) = parse(line).records
    assert record.at == (pytest.approx(seconds) if seconds is not None else None)


def test_two_logs_of_one_event_tell_it_once() -> None:
    one = parse(MODERN_CGROUP)
    other = parse_kernel_log(MODERN_CGROUP.splitlines(), source="kern.log", clock=CLOCK)
    joined = join_logs([one, other])
    assert len(joined.records) == 1
    assert joined.sources == ("test", "kern.log")


def test_a_log_reaches_back_to_its_first_line_and_no_further() -> None:
    log = parse("[100.0] hello\n[200.0] world")
    assert log.reaches(CLOCK.boot_at + 150)
    assert not log.reaches(CLOCK.boot_at + 50)
    assert not log.reaches(None)
    assert not KernelLog().reaches(NOW)


def test_a_log_of_another_boot_has_no_dates() -> None:
    """This boot has lasted 100,000 seconds: a stamp far beyond was counted from another one."""
    (record,) = parse(MODERN_MACHINE + MODERN_CGROUP).records[1:]
    assert record.at is None
    assert not parse(MODERN_MACHINE).reaches(NOW)
    (dated,) = parse(f"Nov 15 10:00:00 host kernel: {MODERN_MACHINE.splitlines()[1]}").records
    assert dated.at is not None


@pytest.mark.parametrize(
    "line", ["", "Killed", "oom-kill:constraint=", "(" * 5000, "[nan] segfault at", "\x1b[2J\0"]
)
def test_lines_that_tell_nothing_are_passed_over(line: str) -> None:
    assert parse(line).records == ()


def test_a_saved_log_is_read_instead_of_the_machines_own(tmp_path: Path) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_bytes(b"\xff\xfe\n" + MODERN_CGROUP.encode())
    log = read_kernel_log(since=None, saved=path)
    assert [record.pid for record in log.records] == [28717]
    assert log.sources == (str(path),)


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    log = read_kernel_log(since=None, saved=tmp_path)
    assert log.sources == ()
    assert log.unread[0].source == str(tmp_path)
    assert "directory" in log.unread[0].reason


def test_this_machines_logs_are_read_or_named() -> None:
    log = read_kernel_log(since=NOW)
    assert log.sources or log.unread


def save(path: Path, text: str, *, written: float) -> KernelLog:
    path.write_text(text)
    os.utime(path, (written, written))
    return read_kernel_log(since=None, saved=path)


def test_a_log_that_was_saved_before_this_boot_has_no_dates(tmp_path: Path) -> None:
    line = "[  100.5] Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:4kB\n"
    now = time.time()
    boot_at = now - time.monotonic()
    (old,) = save(tmp_path / "old.txt", line, written=boot_at - 4 * 86400).records
    (new,) = save(tmp_path / "new.txt", line, written=now).records
    assert (old.at, old.until) == (None, pytest.approx(boot_at - 4 * 86400))
    assert new.at is not None


def test_a_saved_log_says_nothing_of_what_came_later(tmp_path: Path) -> None:
    now = time.time()
    log = save(tmp_path / "log.txt", f"{now - 900:.6f} host kernel: boot\n", written=now - 600)
    assert log.reaches(now - 700)
    assert not log.reaches(now - 500)


@pytest.mark.parametrize(
    "stamp",
    ["[-5.0]", "[1e309]", "[Mon Feb 30 10:00:00 2026]", "Feb 30 10:00:00 host kernel:", "9" * 400 + ".5"],
)  # fmt: skip
def test_a_stamp_that_cannot_be_read_is_no_time(stamp: str) -> None:
    kill = f"{stamp} Out of memory: Killed process 7 (x) total-vm:1kB, anon-rss:4kB"
    (record,) = parse(f"[    0.000000] Linux version 6.8.0\n{kill}").records
    assert record.at is None
