"""How much memory the machine allows: the least of every ancestor cgroup, Slurm's grant, and free memory.

On a laptop that is MemAvailable, in a container its cgroup, in a cluster job whichever is smaller. The limit
names its source, so that people know where it comes from and can change it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lowtide.errors import UsageError
from lowtide.memory.cgroups import cgroup_limits, memory_cgroups
from lowtide.memory.proc_files import machine_memory
from lowtide.units import MIB

AVAILABLE = "available memory"
"""The source that says what is free now; all others say what there is in total."""
_NO_SLURM: Mapping[str, str] = MappingProxyType({})
_CPU_COUNTS = ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_PER_TASK")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCandidate:
    """One limit on memory, and where it comes from."""

    source: str
    total_bytes: int
    whole_bytes: int | None = None
    """The memory it is the free part of; None where the limit is not a free part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The least of all candidates."""

    candidates: tuple[LimitCandidate, ...]

    @property
    def binding(self) -> LimitCandidate:
        """The candidate that allows least; of equal ones the first (cgroups, Slurm, memory)."""
        return min(self.candidates, key=lambda candidate: candidate.total_bytes)

    @property
    def total_bytes(self) -> int:
        """What the binding candidate allows."""
        return self.binding.total_bytes

    @property
    def spare_bytes(self) -> int:
        """What may be taken so that a quarter of every limit, and of the machine's memory, stays free."""
        spares = (
            one.total_bytes - (one.whole_bytes or one.total_bytes) // 4 for one in self.candidates
        )
        return max(0, min(spares))

    @property
    def source(self) -> str:
        """In words, such as `the cgroup /job (memory.max)` or `available memory`."""
        return self.binding.source


def machine_limit(*, slurm: Mapping[str, str] = _NO_SLURM, root: Path = Path("/")) -> MemoryLimit:
    """The least of every ancestor cgroup's limit, Slurm's variables and available memory.

    `slurm` is the environment or the part of it that starts with `SLURM_`: only the command line
    reads the environment. `root` is where `/proc` and the cgroup mounts are looked for.
    """
    found = cgroup_limits(memory_cgroups(root))
    cgroups = [
        LimitCandidate(
            source=f"the cgroup {limit.group.name} ({limit.file})",
            total_bytes=limit.limit_bytes,
        )
        for limit in found
    ]
    available, installed = machine_memory(root)
    memory = LimitCandidate(source=AVAILABLE, total_bytes=available, whole_bytes=installed)
    return MemoryLimit(candidates=(*cgroups, *_slurm_limits(slurm), memory))


def _slurm_limits(slurm: Mapping[str, str]) -> list[LimitCandidate]:
    """Limits that Slurm has set, in MiB; zero means all that the node has, which is not a limit."""
    candidates = []
    per_node = _slurm_number(slurm, "SLURM_MEM_PER_NODE")
    if per_node:
        candidates.append(LimitCandidate(source="SLURM_MEM_PER_NODE", total_bytes=per_node * MIB))
    per_cpu = _slurm_number(slurm, "SLURM_MEM_PER_CPU")
    if per_cpu:
        name = next((name for name in _CPU_COUNTS if slurm.get(name)), None)
        cpus = (_slurm_number(slurm, name) if name else None) or 1
        source = f"SLURM_MEM_PER_CPU × {cpus} CPUs"
        candidates.append(LimitCandidate(source=source, total_bytes=per_cpu * cpus * MIB))
    return candidates


def _slurm_number(slurm: Mapping[str, str], name: str) -> int | None:
    """`4096` as a number; of `16(x2),8`, a list per node, the least, which is safe on each."""
    text = slurm.get(name)
    if not text:
        return None
    parts = [re.fullmatch(r"(\d+)(?:\(x\d+\))?", part.strip()) for part in text.split(",")]
    if any(part is None for part in parts):
        raise UsageError(f"{name}={text!r} is not a number", remedy=f"correct or unset {name}")
    return min(int(part[1]) for part in parts if part is not None)
