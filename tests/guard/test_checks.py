"""Each made-up machine gets the lines that are true of it. Fake `/proc` and `/sys` trees, real files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lowtide.guard.doctor.check_memory import (
    check_cgroup,
    check_huge_pages,
    check_killers,
    check_overcommit,
    check_pressure,
    check_ram,
    check_slurm,
    check_swap,
)
from lowtide.guard.doctor.check_system import (
    Resource,
    Ulimit,
    check_ulimits,
    check_wsl,
    find_container,
)
from lowtide.guard.doctor.checks import Check, Examination, gravest_first
from lowtide.guard.doctor.examine import examine_machine
from lowtide.units import GIB, MIB

MOUNT_ROOT = "23 1 0:21 / / rw - ext4 /dev/vda rw"
MOUNT_V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
MOUNT_V2 = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
THP = "sys/kernel/mm/transparent_hugepage/enabled"


class FakeMachine:
    """Files under a folder that stands for `/`: 64 GiB of RAM, 8 GiB of swap, PSI, nothing wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.meminfo()
        self.write("proc/swaps", "Filename Type Size Used Priority\n/swapfile file 8388604 0 -2\n")
        self.write("proc/self/mountinfo", f"{MOUNT_ROOT}\n")
        self.write("proc/sys/vm/overcommit_memory", "0\n")
        self.write("proc/version", "Linux version 6.8.0-45-generic (buildd@lcy02)\n")
        self.write("proc/pressure/memory", "some avg10=1.00\nfull avg10=0.00 avg60=0.0 total=0\n")
        self.write(THP, "always [madvise] never\n")

    def seen(self, **known: object) -> Examination:
        """The machine with what was read of it beforehand."""
        return Examination(**{"root": self.root, "ram_bytes": 64 * GIB, **known})  # type: ignore[arg-type]

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def meminfo(self, **changed: int) -> None:
        fields = {
            "MemTotal": 64 * GIB,
            "MemAvailable": 32 * GIB,
            "SwapTotal": 8 * GIB,
            "SwapFree": 8 * GIB,
            "CommitLimit": 40 * GIB,
            "Committed_AS": 10 * GIB,
            **changed,
        }
        lines = [f"{name}: {value // 1024} kB\n" for name, value in fields.items()]
        self.write("proc/meminfo", "".join(lines))

    def v1(self, limit_bytes: int) -> None:
        self.write("proc/self/mountinfo", f"{MOUNT_ROOT}\n{MOUNT_V1}\n")
        self.write("proc/self/cgroup", "4:memory:/job\n0::/\n")
        self.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{limit_bytes}\n")
        self.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4096\n")

    def v2(self, limit: str) -> None:
        self.write("proc/self/mountinfo", f"{MOUNT_ROOT}\n{MOUNT_V2}\n")
        self.write("proc/self/cgroup", "0::/job\n")
        self.write("sys/fs/cgroup/job/memory.max", f"{limit}\n")
        self.write("sys/fs/cgroup/job/memory.current", "8192\n")


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def found(check: Check | None) -> tuple[str, str]:
    assert check is not None
    return check.level, check.finding


def test_all_but_ok_have_a_remedy_and_ok_has_none() -> None:
    with pytest.raises(AssertionError):
        Check(name="swap", level="advice", finding="none")
    with pytest.raises(AssertionError):
        Check(name="swap", level="ok", finding="8 GiB", remedy="add more")


def test_problems_come_first_and_equals_keep_their_order() -> None:
    names = [("a", "ok"), ("b", "advice"), ("c", "problem"), ("d", "advice")]
    checks = [
        Check(name=name, level=level, finding="", remedy=None if level == "ok" else "do it")  # type: ignore[arg-type]
        for name, level in names
    ]
    assert [check.name for check in gravest_first(checks)] == ["c", "b", "d", "a"]


@pytest.mark.parametrize(
    ("available", "level"), [(32 * GIB, "ok"), (GIB, "advice"), (100 * MIB, "problem")]
)
def test_ram_that_is_taken_is_told(machine: FakeMachine, available: int, level: str) -> None:
    machine.meminfo(MemAvailable=available)
    assert found(check_ram(machine.seen()))[0] == level
    assert "64.0 GiB" in found(check_ram(machine.seen()))[1]


def test_a_small_machine_is_not_blamed_for_being_small(machine: FakeMachine) -> None:
    machine.meminfo(MemTotal=2 * GIB, MemAvailable=3 * GIB // 2)
    assert found(check_ram(machine.seen()))[0] == "ok"


def test_a_machine_without_proc_still_has_ram_and_nothing_else(tmp_path: Path) -> None:
    nothing = Examination(root=tmp_path)
    assert check_ram(nothing).name == "RAM"
    assert check_swap(nothing) is None
    assert check_cgroup(nothing) is None
    assert check_overcommit(nothing) is None
    assert check_pressure(nothing) is None
    assert check_huge_pages(nothing) is None
    assert check_killers(nothing) is None


def test_without_swap_a_budget_and_watch_are_advised_and_swap_where_it_can_be_made(
    machine: FakeMachine,
) -> None:
    assert found(check_swap(machine.seen()))[0] == "ok"
    machine.meminfo(SwapTotal=0, SwapFree=0)
    for container, can_be_made in ((None, True), ("Docker", False)):
        check = check_swap(machine.seen(container=container))
        level, told = found(check)
        assert (level, told[:4]) == ("advice", "none")
        remedy = str(check and check.remedy)
        assert "--memory" in remedy
        assert "lowtide watch" in remedy
        assert ("swapon" in remedy) == can_be_made


def test_without_swap_and_with_blind_promises_the_promises_are_the_advice(
    machine: FakeMachine,
) -> None:
    machine.meminfo(SwapTotal=0, SwapFree=0)
    machine.write("proc/sys/vm/overcommit_memory", "1\n")
    check = check_swap(machine.seen(container="Docker"))
    assert found(check)[0] == "advice"
    assert check is not None
    assert check.remedy == "on the host, as root: `sysctl vm.overcommit_memory=0`"


def test_swap_that_is_zram_or_full_is_told(machine: FakeMachine) -> None:
    machine.meminfo(SwapFree=100 * MIB)
    assert "short of memory" in found(check_swap(machine.seen()))[1]
    machine.meminfo()
    machine.write("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 9 0 100\n")
    assert "zram" in found(check_swap(machine.seen()))[1]
    machine.write("proc/swaps", "Filename\n/dev/zram0 partition 9 0 100\n/dev/sda2 partition 9 0\n")
    assert found(check_swap(machine.seen()))[0] == "ok"


def test_a_cgroup_below_the_ram_is_told_in_both_versions(machine: FakeMachine) -> None:
    assert "none" in found(check_cgroup(machine.seen()))[1]
    machine.v1(8 * GIB)
    told = "`free` shows 64.0 GiB, but this job may use 8.0 GiB"
    level, finding = found(check_cgroup(machine.seen()))
    assert level == "advice"
    assert finding == f"{told} (v1, memory.limit_in_bytes of /job)"
    machine.v2(str(8 * GIB))
    assert found(check_cgroup(machine.seen())) == ("advice", f"{told} (v2, memory.max of /job)")


def test_the_least_of_a_cgroup_and_those_above_it_counts(machine: FakeMachine) -> None:
    machine.v2(str(32 * GIB))
    machine.write("sys/fs/cgroup/memory.max", f"{8 * GIB}\n")
    assert "may use 8.0 GiB (v2, memory.max of /)" in found(check_cgroup(machine.seen()))[1]


def test_a_cgroup_without_a_limit_is_fine_and_a_tiny_one_a_problem(machine: FakeMachine) -> None:
    machine.v1(0x7FFFFFFFFFFFF000)
    assert found(check_cgroup(machine.seen())) == ("ok", "v1, without a limit")
    machine.v2("max")
    assert found(check_cgroup(machine.seen())) == ("ok", "v2, without a limit")
    machine.v2(str(60 * GIB))
    assert found(check_cgroup(machine.seen()))[0] == "ok"
    machine.v2(str(64 * MIB))
    assert found(check_cgroup(machine.seen()))[0] == "problem"


@pytest.mark.parametrize(
    ("variables", "level", "told"),
    [
        ({"SLURM_MEM_PER_NODE": "4096"}, "ok", "job 7 may use 4.0 GiB (SLURM_MEM_PER_NODE)"),
        ({}, "ok", "job 7, no memory named: what the cgroup allows counts"),
        ({"SLURM_MEM_PER_NODE": "100"}, "problem", "job 7 may use 100.0 MiB (SLURM_MEM_PER_NODE)"),
        ({"SLURM_MEM_PER_NODE": "lots"}, "problem", "SLURM_MEM_PER_NODE='lots' is not a number"),
    ],
)
def test_slurms_grant_is_read(
    machine: FakeMachine, variables: Mapping[str, str], level: str, told: str
) -> None:
    assert found(check_slurm(machine.seen(environ={"SLURM_JOB_ID": "7", **variables}))) == (
        level,
        told,
    )


def test_outside_slurm_there_is_no_line_about_it(machine: FakeMachine) -> None:
    assert check_slurm(machine.seen(environ={"PATH": "/bin"})) is None


@pytest.mark.parametrize(("mode", "level"), [("0", "ok"), ("1", "ok"), ("2", "advice")])
def test_strict_accounting_is_advised_against(machine: FakeMachine, mode: str, level: str) -> None:
    machine.write("proc/sys/vm/overcommit_memory", f"{mode}\n")
    assert found(check_overcommit(machine.seen()))[0] == level


def test_strict_accounting_with_nothing_left_to_promise_is_a_problem(machine: FakeMachine) -> None:
    machine.write("proc/sys/vm/overcommit_memory", "2\n")
    machine.meminfo(Committed_AS=39 * GIB + 512 * MIB)
    level, told = found(check_overcommit(machine.seen()))
    assert level == "problem"
    assert "512.0 MiB can still be reserved" in told


def test_pressure_is_read_where_the_kernel_tells_it(machine: FakeMachine) -> None:
    assert found(check_pressure(machine.seen()))[0] == "ok"
    machine.write("proc/pressure/memory", "some avg10=70.0\nfull avg10=45.20 avg60=1.0 total=9\n")
    assert found(check_pressure(machine.seen())) == (
        "advice",
        "work stood still for memory 45 % of the last ten seconds",
    )
    (machine.root / "proc/pressure/memory").unlink()
    assert "not reported by this kernel" in found(check_pressure(machine.seen()))[1]


def test_huge_pages_for_everybody_are_advised_against(machine: FakeMachine) -> None:
    assert found(check_huge_pages(machine.seen())) == ("ok", "madvise")
    machine.write(THP, "[always] madvise never\n")
    check = check_huge_pages(machine.seen())
    assert found(check)[0] == "advice"
    assert check is not None
    assert check.remedy == f"as root: `echo madvise > /{THP}`"


def test_daemons_that_kill_early_are_named(machine: FakeMachine) -> None:
    machine.write("proc/1/comm", "systemd\n")
    assert check_killers(machine.seen()) is None
    machine.write("proc/812/comm", "earlyoom\n")
    check = check_killers(machine.seen())
    assert found(check)[1].startswith("earlyoom")
    assert check is not None
    assert "journalctl -u earlyoom" in str(check.remedy)


@pytest.mark.parametrize(
    ("file", "text", "environ", "kind"),
    [
        ("proc/self/cgroup", "0::/user.slice/session-3.scope\n", {}, None),
        ("proc/self/cgroup", "0::/system.slice/docker.service\n", {}, None),
        (".dockerenv", "", {}, "Docker"),
        ("run/.containerenv", "", {}, "Podman"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0", {}, "lxc"),
        ("proc/self/cgroup", "4:memory:/docker/0af3\n", {}, "Docker"),
        ("proc/self/cgroup", "0::/system.slice/docker-0af3.scope\n", {}, "Docker"),
        ("proc/self/cgroup", "4:memory:/kubepods/burstable/pod1\n", {}, "Kubernetes"),
        ("etc/hostname", "node", {"SINGULARITY_CONTAINER": "/images/a.sif"}, "Singularity"),
    ],
)
def test_containers_are_known_by_what_they_leave(
    machine: FakeMachine, file: str, text: str, environ: Mapping[str, str], kind: str | None
) -> None:
    machine.write(file, text)
    assert find_container(machine.root, environ) == kind


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("Linux version 5.15.153.1-microsoft-standard-WSL2 (root@f1)", "version 2: Windows lends"),
        ("Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)", "version 1"),
    ],
)
def test_windows_below_is_told(machine: FakeMachine, version: str, told: str) -> None:
    assert check_wsl(machine.seen(ram_bytes=16 * GIB)) is None
    machine.write("proc/version", version)
    level, finding = found(check_wsl(machine.seen(ram_bytes=16 * GIB)))
    assert level == "advice"
    assert finding.startswith(told)


def ulimits(**changed: Ulimit) -> dict[Resource, Ulimit]:
    names: tuple[Resource, ...] = ("AS", "DATA", "NOFILE", "FSIZE", "CPU")
    return {name: changed.get(name, Ulimit(soft=None, hard=None)) for name in names}


@pytest.mark.parametrize(
    ("changed", "name", "level", "remedy"),
    [
        ({"AS": Ulimit(soft=4 * GIB, hard=None)}, "-v", "problem", "`ulimit -v unlimited`"),
        ({"AS": Ulimit(soft=99 * GIB, hard=None)}, "-v", "advice", "`ulimit -v unlimited`"),
        ({"AS": Ulimit(soft=4 * GIB, hard=4 * GIB)}, "-v", "problem", "limits.conf"),
        ({"DATA": Ulimit(soft=4 * GIB, hard=None)}, "-d", "advice", "`ulimit -d unlimited`"),
        ({"FSIZE": Ulimit(soft=GIB, hard=GIB)}, "-f", "problem", "limits.conf"),
        ({"CPU": Ulimit(soft=3600, hard=3600)}, "-t", "advice", "a batch job"),
        ({"NOFILE": Ulimit(soft=256, hard=None)}, "-n", "advice", "`ulimit -n 4096`"),
        ({"NOFILE": Ulimit(soft=256, hard=512)}, "-n", "advice", "limits.conf"),
    ],
)
def test_limits_of_the_shell_that_bite_are_told_with_who_can_raise_them(
    changed: dict[str, Ulimit], name: str, level: str, remedy: str
) -> None:
    (check,) = check_ulimits(Examination(ulimits=ulimits(**changed), ram_bytes=24 * GIB))
    assert (check.name, check.level) == (f"ulimit {name}", level)
    assert remedy in str(check.remedy)


def test_a_shell_without_limits_is_one_line() -> None:
    files = Ulimit(soft=1024, hard=524288)
    limits = ulimits(NOFILE=files, DATA=Ulimit(soft=64 * GIB, hard=None))
    (check,) = check_ulimits(Examination(ulimits=limits, ram_bytes=GIB))
    assert check.level == "ok"
    assert "1,024 files" in check.finding


def test_without_gpu_without_swap_in_a_container_with_cgroup_v1_nothing_is_wrong(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.meminfo(SwapTotal=0, SwapFree=0)
    machine.v1(8 * GIB)
    machine.write(".dockerenv", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no nvidia-smi there
    checks = examine_machine(tmp_path, environ={}, quick=True, root=machine.root)
    lines = {check.name: check for check in checks}
    asked_of_this_one = {"disk space", "ulimit -v", "ulimit -f", "libraries", "extras"}
    assert {check.name for check in checks if check.level == "problem"} <= asked_of_this_one
    assert found(lines["GPU"]) == (
        "ok",
        "no NVIDIA card found: training runs on the CPU, which is for small models",
    )
    assert found(lines["swap"])[0] == "advice"
    assert found(lines["container"])[1].startswith("inside Docker")
    assert "but this job may use 8.0 GiB (v1" in found(lines["cgroup"])[1]
    assert [check.level for check in checks if check.name == "cgroup"] == ["advice"]
    assert checks == gravest_first(checks)
