"""The least of all limits counts, and it is named. Fake `/proc` and `/sys` trees, real files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.memory.cgroups import memory_cgroups
from lowtide.memory.limits import machine_limit
from lowtide.units import GIB, MIB

UNLIMITED_V1 = "9223372036854771712"
MOUNT_V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
MOUNT_V2 = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
MOUNT_UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
MOUNT_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"


class Machine:
    """A made-up machine: files under a folder that stands for `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")  # 32 GiB
        self.write("proc/self/mountinfo", "23 1 0:21 / / rw - ext4 /dev/vda rw\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mounts(self, *lines: str) -> None:
        self.write("proc/self/mountinfo", "\n".join(lines) + "\n")

    def member_of(self, *lines: str) -> None:
        self.write("proc/self/cgroup", "\n".join(lines) + "\n")

    def v1(self, group: str, limit: str, used: str = "4096") -> None:
        self.write(f"sys/fs/cgroup/memory/{group}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"sys/fs/cgroup/memory/{group}/memory.usage_in_bytes", f"{used}\n")

    def v2(self, group: str, limit: str, high: str = "max", at: str = "sys/fs/cgroup") -> None:
        self.write(f"{at}/{group}/memory.max", f"{limit}\n")
        self.write(f"{at}/{group}/memory.high", f"{high}\n")
        self.write(f"{at}/{group}/memory.current", "8192\n")

    def limit(self, slurm: Mapping[str, str] | None = None) -> tuple[int, str]:
        found = machine_limit(slurm=slurm or {}, root=self.root)
        return found.total_bytes, found.source

    def sources(self) -> list[str]:
        return [candidate.source for candidate in machine_limit(root=self.root).candidates]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_any_cgroup_available_memory_is_the_limit(machine: Machine) -> None:
    assert machine.limit() == (32 * GIB, "available memory")


def test_v2_takes_the_group_that_holds_this_process(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/job")
    machine.v2("job", str(2 * GIB))
    assert machine.limit() == (2 * GIB, "the cgroup /job (memory.max)")


def test_v2_an_ancestor_may_allow_less_than_the_group_itself(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/user.slice/job/step")
    machine.v2("user.slice/job/step", str(8 * GIB))
    machine.v2("user.slice/job", "max")
    machine.v2("user.slice", str(3 * GIB))
    assert machine.limit() == (3 * GIB, "the cgroup /user.slice (memory.max)")


def test_v2_max_is_not_a_limit(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/job")
    machine.v2("job", "max")
    assert machine.sources() == ["available memory"]


def test_v2_high_counts_because_the_kernel_stalls_above_it(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/job")
    machine.v2("job", str(4 * GIB), high=str(1 * GIB))
    assert machine.limit() == (1 * GIB, "the cgroup /job (memory.high)")


def test_v2_inside_a_container_the_mount_is_the_group(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/")
    machine.v2(".", str(512 * MIB))
    assert machine.limit() == (512 * MIB, "the cgroup / (memory.max)")


def test_v1_takes_the_least_of_every_ancestor(machine: Machine) -> None:
    machine.mounts(MOUNT_CPU, MOUNT_V1)
    machine.member_of("5:cpu,cpuacct:/elsewhere", "4:memory:/batch/job", "0::/")
    machine.v1("batch/job", str(8 * GIB))
    machine.v1("batch", str(5 * GIB))
    machine.v1(".", UNLIMITED_V1)
    assert machine.limit() == (5 * GIB, "the cgroup /batch (memory.limit_in_bytes)")


def test_v1_the_huge_number_is_not_a_limit(machine: Machine) -> None:
    machine.mounts(MOUNT_V1)
    machine.member_of("4:memory:/job")
    machine.v1("job", UNLIMITED_V1)
    assert machine.sources() == ["available memory"]


def test_v1_a_container_that_sees_only_its_own_part_of_the_tree(machine: Machine) -> None:
    machine.mounts(MOUNT_V1.replace(" / /sys", " /docker/abc /sys"))
    machine.member_of("4:memory:/docker/abc/inner")
    machine.v1("inner", str(2 * GIB))
    machine.v1(".", str(3 * GIB))
    assert machine.limit() == (2 * GIB, "the cgroup /inner (memory.limit_in_bytes)")


def test_v1_unseen_ancestors_speak_through_the_hierarchical_limit(machine: Machine) -> None:
    machine.mounts(MOUNT_V1.replace(" / /sys", " /docker/abc /sys"))
    machine.member_of("4:memory:/docker/abc")
    machine.v1(".", UNLIMITED_V1)
    machine.write(
        "sys/fs/cgroup/memory/memory.stat", f"cache 0\nhierarchical_memory_limit {GIB}\nrss 1\n"
    )
    assert machine.limit() == (GIB, "the cgroup / (memory.stat)")


def test_a_hybrid_machine_has_memory_in_v1_and_an_empty_v2(machine: Machine) -> None:
    machine.mounts(MOUNT_V1, MOUNT_UNIFIED)
    machine.member_of("4:memory:/job", "0::/user")
    machine.v1("job", str(6 * GIB))
    machine.write("sys/fs/cgroup/unified/user/cgroup.procs", "")
    assert machine.limit() == (6 * GIB, "the cgroup /job (memory.limit_in_bytes)")


def test_when_both_versions_carry_limits_the_least_counts(machine: Machine) -> None:
    machine.mounts(MOUNT_V1, MOUNT_UNIFIED)
    machine.member_of("4:memory:/job", "0::/user")
    machine.v1("job", str(6 * GIB))
    machine.v2("user", str(2 * GIB), at="sys/fs/cgroup/unified")
    assert machine.limit() == (2 * GIB, "the cgroup /user (memory.max)")


def test_a_path_of_another_namespace_falls_back_to_the_mount(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/../../outside")
    machine.v2("outside", str(MIB), at="sys")  # where the path would lead if it were followed
    machine.v2(".", str(7 * GIB))
    assert machine.limit() == (7 * GIB, "the cgroup / (memory.max)")


def test_a_group_that_was_removed_meanwhile_is_passed_over(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/a/gone (deleted)")
    machine.v2("a", str(2 * GIB))
    assert machine.limit() == (2 * GIB, "the cgroup /a (memory.max)")


def test_a_mount_point_with_a_space_is_found(machine: Machine) -> None:
    machine.mounts(MOUNT_V2.replace("/sys/fs/cgroup", r"/my\040groups"))
    machine.member_of("0::/job")
    machine.v2("job", str(GIB), at="my groups")
    assert machine.limit() == (GIB, "the cgroup /job (memory.max)")


def test_every_candidate_is_kept(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/a/b")
    machine.v2("a", str(2 * GIB))
    machine.v2("a/b", str(3 * GIB))
    found = machine_limit(slurm={"SLURM_MEM_PER_NODE": "4096"}, root=machine.root)
    assert [(c.source, c.total_bytes) for c in found.candidates] == [
        ("the cgroup /a/b (memory.max)", 3 * GIB),
        ("the cgroup /a (memory.max)", 2 * GIB),
        ("SLURM_MEM_PER_NODE", 4 * GIB),
        ("available memory", 32 * GIB),
    ]


@pytest.mark.parametrize(
    ("slurm", "total_bytes", "source"),
    [
        ({"SLURM_MEM_PER_NODE": "4096"}, 4 * GIB, "SLURM_MEM_PER_NODE"),
        (
            {"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "6"},
            6 * GIB,
            "SLURM_MEM_PER_CPU × 6 CPUs",
        ),
        (
            {"SLURM_MEM_PER_CPU": "1024", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"},
            8 * GIB,
            "SLURM_MEM_PER_CPU × 8 CPUs",
        ),
        ({"SLURM_MEM_PER_CPU": "512"}, 512 * MIB, "SLURM_MEM_PER_CPU × 1 CPUs"),
        ({"SLURM_MEM_PER_NODE": "0"}, 32 * GIB, "available memory"),
        ({"SLURM_MEM_PER_NODE": "999999999"}, 32 * GIB, "available memory"),
        ({"SLURM_JOB_ID": "7", "PATH": "/bin"}, 32 * GIB, "available memory"),
    ],
)
def test_slurm_counts_in_mib_per_node_or_per_cpu(
    machine: Machine, slurm: dict[str, str], total_bytes: int, source: str
) -> None:
    assert machine.limit(slurm) == (total_bytes, source)


def test_a_cgroup_below_slurms_grant_still_counts(machine: Machine) -> None:
    machine.mounts(MOUNT_V2)
    machine.member_of("0::/job")
    machine.v2("job", str(GIB))
    assert machine.limit({"SLURM_MEM_PER_NODE": "4096"})[0] == GIB


def test_an_unreadable_slurm_value_is_refused_and_unsetting_it_works(machine: Machine) -> None:
    slurm = {"SLURM_MEM_PER_NODE": "lots"}
    with pytest.raises(UsageError) as caught:
        machine.limit(slurm)
    assert "unset SLURM_MEM_PER_NODE" in caught.value.remedy
    del slurm["SLURM_MEM_PER_NODE"]
    assert machine.limit(slurm)[0] == 32 * GIB


def test_a_system_without_proc_still_has_an_answer(tmp_path: Path) -> None:
    found = machine_limit(root=tmp_path)
    assert found.source == "available memory"
    assert found.total_bytes > 0
    assert memory_cgroups(tmp_path) == []


def test_this_machine_has_an_answer() -> None:
    assert 0 < machine_limit().total_bytes < 1 << 60
