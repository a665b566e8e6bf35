"""What memory there is, what may be used of it, and how the kernel behaves when it runs out.

Each check reads under `root`, which stands for `/`, and answers None where the system has no such thing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.doctor.checks import Check, advice, as_root, ok, problem
from lowtide.memory.cgroups import CgroupLimit, cgroup_limits, memory_cgroups
from lowtide.memory.limits import machine_limit
from lowtide.memory.proc_files import (
    available_bytes,
    available_ram_bytes,
    installed_ram_bytes,
    kib_fields,
    read_text,
    total_ram_bytes,
)
from lowtide.units import GIB, MIB, format_bytes

LEAST_BYTES = 256 * MIB
"""The smallest budget that every stage but training is proven to work in."""
_LITTLE_BYTES = 2 * GIB
_MUCH_BELOW = 0.9
_STALLING_PERCENT = 10.0
_LITTLE_PROMISE_BYTES = GIB
_KILLERS = ("earlyoom", "systemd-oomd", "oomd", "nohang")
_LONGEST_NAME = 32


def ram_bytes(root: Path) -> int:
    """What the kernel manages; psutil's figure where there is no Linux `/proc`."""
    return total_ram_bytes(root) or installed_ram_bytes()


def room_bytes(root: Path) -> int:
    """What a process of ours could take now: available memory, or less where a cgroup allows less."""
    return machine_limit(root=root).total_bytes


def check_ram(root: Path) -> Check:
    """RAM, and how much of it can be taken now."""
    total, available = total_ram_bytes(root), available_bytes(root)
    if total is None or available is None:
        total, available = installed_ram_bytes(), available_ram_bytes()
    finding = f"{format_bytes(total)}, of which {format_bytes(available)} can be taken now"
    remedy = "end what is not needed; `ps aux --sort=-rss | head` lists the largest"
    if available < LEAST_BYTES:
        return problem("RAM", f"{finding}; a stage needs {format_bytes(LEAST_BYTES)}", remedy)
    if available < min(_LITTLE_BYTES, total // 2):
        return advice("RAM", f"{finding}: little", remedy)
    return ok("RAM", finding)


def check_swap(root: Path, *, container: str | None) -> Check | None:
    """Whether there is somewhere to go when RAM is full."""
    fields = kib_fields(read_text(root / "proc/meminfo") or "")
    if "SwapTotal" not in fields:
        return None
    total, free = fields["SwapTotal"], fields.get("SwapFree", 0)
    if not total:
        return _without_swap(root, container)
    finding = f"{format_bytes(total)}, of which {format_bytes(free)} are free"
    if _is_all_zram(read_text(root / "proc/swaps") or ""):
        told = f"{finding}; all of it is zram, which lies compressed in RAM itself"
        return advice("swap", told, "count on RAM alone, or add a swap file on a disk")
    if free < total // 10:
        remedy = "end what is not needed; `ps aux --sort=-rss | head` lists the largest"
        return advice("swap", f"{finding}: the machine is short of memory", remedy)
    return ok("swap", finding)


def _without_swap(root: Path, container: str | None) -> Check:
    told = "none: when memory is full, the kernel kills a process at once"
    if _overcommit(root) == 1:
        told = "none, and overcommit is 1: no request fails, and later the kernel kills"
        remedy = as_root("sysctl vm.overcommit_memory=0", container=container)
        return advice("swap", told, remedy)
    if container:
        return ok("swap", told)
    command = (
        "fallocate -l 8G /swapfile && chmod 600 /swapfile && mkswap /swapfile && swapon /swapfile"
    )
    return advice("swap", told, f"keep `--memory` below what is free, or as root: `{command}`")


def _is_all_zram(swaps: str) -> bool:
    devices = [line.split()[0] for line in swaps.splitlines()[1:] if line.strip()]
    return bool(devices) and all(Path(device).name.startswith("zram") for device in devices)


def check_cgroup(root: Path) -> Check | None:
    """The least that a cgroup above us allows, against what `free` shows."""
    if not (root / "proc/meminfo").exists():
        return None
    groups = memory_cgroups(root)
    if not groups:
        return ok("cgroup", "none that holds memory: nothing limits a job but the machine")
    limits, total = cgroup_limits(groups), ram_bytes(root)
    if not limits:
        return ok("cgroup", f"{groups[0].version}, without a limit")
    least = min(limits, key=lambda limit: limit.limit_bytes)
    return _judge_limit(least, total)


def _judge_limit(least: CgroupLimit, total_bytes: int) -> Check:
    allowed, name = format_bytes(least.limit_bytes), least.group.name
    shown = name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"
    where = f"{least.group.version}, {least.file} of {shown}"
    remedy = (
        "have the limit raised (docker: `--memory`, Slurm: `--mem`, systemd: `MemoryMax=`); "
        "lowtide keeps to it by itself"
    )
    if least.limit_bytes < LEAST_BYTES:
        told = f"allows {allowed} ({where}); a stage needs {format_bytes(LEAST_BYTES)}"
        return problem("cgroup", told, remedy)
    if least.limit_bytes < _MUCH_BELOW * total_bytes:
        told = f"`free` shows {format_bytes(total_bytes)}, but this job may use {allowed} ({where})"
        return advice("cgroup", told, remedy)
    return ok("cgroup", f"allows {allowed} ({where})")


def check_slurm(environ: Mapping[str, str], root: Path) -> Check | None:
    """What Slurm has granted; None outside its jobs."""
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        limit = machine_limit(slurm=environ, root=root)
    except UsageError as error:
        return problem("Slurm", error.problem, error.remedy)
    granted = [one for one in limit.candidates if one.source.startswith("SLURM_")]
    if not granted:
        return ok("Slurm", f"job {job}, no memory named: what the cgroup allows counts")
    least = min(granted, key=lambda one: one.total_bytes)
    told = f"job {job} may use {format_bytes(least.total_bytes)} ({least.source})"
    if least.total_bytes < LEAST_BYTES:
        return problem("Slurm", told, "ask for more, such as `sbatch --mem=8G`")
    return ok("Slurm", told)


def check_overcommit(root: Path, *, container: str | None) -> Check | None:
    """Whether the kernel promises more than it has."""
    mode = _overcommit(root)
    if mode is None:
        return None
    if mode != 2:
        words = {
            0: "mode 0, the usual: only absurd requests are refused",
            1: "mode 1: no request fails",
        }
        return ok("overcommit", words.get(mode, f"mode {mode}"))
    fields = kib_fields(read_text(root / "proc/meminfo") or "")
    left = max(0, fields.get("CommitLimit", 0) - fields.get("Committed_AS", 0))
    told = f"mode 2: reserved memory counts as used, and {format_bytes(left)} can still be reserved"
    judge = problem if left < _LITTLE_PROMISE_BYTES else advice
    return judge("overcommit", told, as_root("sysctl vm.overcommit_memory=0", container=container))


def _overcommit(root: Path) -> int | None:
    text = (read_text(root / "proc/sys/vm/overcommit_memory") or "").strip()
    return int(text) if text.isdigit() else None


def check_pressure(root: Path) -> Check | None:
    """PSI: whether the kernel says how long work stands still for memory."""
    if not (root / "proc/meminfo").exists():
        return None
    text = read_text(root / "proc/pressure/memory")
    found = re.search(r"^full avg10=([0-9.]+)", text or "", re.MULTILINE)
    if found is None:
        told = "not told by this kernel: `watch` goes by free memory and swapping alone"
        remedy = "nothing must be done; a kernel built with PSI tells it when booted with `psi=1`"
        return advice("pressure (PSI)", told, remedy)
    percent = float(found[1])
    told = f"work stood still for memory {percent:.0f} % of the last ten seconds"
    if percent >= _STALLING_PERCENT:
        remedy = "end what is not needed, or wait: this machine is short of memory now"
        return advice("pressure (PSI)", told, remedy)
    return ok("pressure (PSI)", told)


def check_huge_pages(root: Path, *, container: str | None) -> Check | None:
    """Pages of 2 MiB for everybody make many small buffers larger than they are."""
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    found = re.search(r"\[(\w+)\]", read_text(root / path) or "")
    if found is None:
        return None
    if found[1] != "always":
        return ok("huge pages", found[1])
    told = "always: a program may take more memory than it asks for"
    command = f"echo madvise > /{path}"
    return advice("huge pages", told, as_root(command, container=container))


def check_killers(root: Path) -> Check | None:
    """Daemons that end processes before the kernel does."""
    names = {(read_text(path) or "").strip() for path in (root / "proc").glob("[0-9]*/comm")}
    running = [name for name in _KILLERS if name in names]
    if not running:
        return None
    told = f"{' and '.join(running)} ends jobs before memory is full"
    remedy = (
        "leave a tenth of RAM free: pass `--memory`; "
        f"`journalctl -u {running[0]}` tells what it has ended"
    )
    return advice("early killer", told, remedy)
