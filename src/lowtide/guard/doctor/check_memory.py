"""What memory there is, what may be used of it, and how the kernel behaves when it runs out.

Each check answers None where the system has no such thing.
"""

from __future__ import annotations

import re
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.box import open_box
from lowtide.guard.doctor.checks import Check, Examination, advice, ok, problem
from lowtide.memory.cgroups import cgroup_limits, memory_cgroups
from lowtide.memory.limits import machine_limit
from lowtide.memory.proc_files import kib_fields, machine_memory, read_text, stalled_percent
from lowtide.units import GIB, MIB, format_bytes

LEAST_BYTES = 256 * MIB
"""The smallest budget that every stage but training is proven to work in."""
_LITTLE_BYTES = 2 * GIB
_MUCH_BELOW = 0.9
_STALLING_PERCENT = 10.0
_LITTLE_PROMISE_BYTES = GIB
_TRIED_LIMIT_BYTES = 64 * MIB
_KILLERS = ("earlyoom", "systemd-oomd", "oomd", "nohang")
_LONGEST_NAME = 32
_END_OTHERS = "end what is not needed; `ps aux --sort=-rss | head` lists the largest"


def check_ram(examination: Examination) -> Check:
    """RAM, and how much of it can be taken now."""
    available, total = machine_memory(examination.root)
    finding = f"{format_bytes(total)}, of which {format_bytes(available)} can be taken now"
    if available < LEAST_BYTES:
        return problem("RAM", f"{finding}; a stage needs {format_bytes(LEAST_BYTES)}", _END_OTHERS)
    if available < min(_LITTLE_BYTES, total // 2):
        return advice("RAM", f"{finding}: little", _END_OTHERS)
    return ok("RAM", finding)


def check_swap(examination: Examination) -> Check | None:
    """Whether there is somewhere to go when RAM is full."""
    fields = kib_fields(read_text(examination.root / "proc/meminfo") or "")
    if "SwapTotal" not in fields:
        return None
    total, free = fields["SwapTotal"], fields.get("SwapFree", 0)
    if not total:
        return _without_swap(examination)
    finding = f"{format_bytes(total)}, of which {format_bytes(free)} are free"
    swaps = read_text(examination.root / "proc/swaps") or ""
    devices = [line.split()[0] for line in swaps.splitlines()[1:] if line.strip()]
    if devices and all(Path(device).name.startswith("zram") for device in devices):
        finding = f"{finding}; all of it is zram, which lies compressed in RAM itself"
        return advice("swap", finding, "count on RAM alone, or add a swap file on a disk")
    if free < total // 10:
        return advice("swap", f"{finding}: the machine is short of memory", _END_OTHERS)
    return ok("swap", finding)


def _without_swap(examination: Examination) -> Check:
    finding = "none: when memory is full, the kernel kills a process at once"
    if _overcommit(examination.root) == 1:
        finding = "none, and overcommit is 1: no request fails, and later the kernel kills"
        return advice("swap", finding, examination.as_root("sysctl vm.overcommit_memory=0"))
    remedy = (
        "keep `--memory` below what can be taken now, and start other jobs with `lowtide watch --limit SIZE "
        "-- COMMAND`, which asks them to stop before the kernel kills"
    )
    if not examination.container:
        command = "fallocate -l 8G /swapfile && chmod 600 /swapfile && mkswap /swapfile && swapon /swapfile"
        remedy += f"; or make swap, as root: `{command}`"
    return advice("swap", finding, remedy)


def check_cgroup(examination: Examination) -> Check | None:
    """The least that a cgroup above us allows, compared with what `free` shows."""
    root = examination.root
    if not (root / "proc/meminfo").exists():
        return None
    groups = memory_cgroups(root)
    if not groups:
        return ok("cgroup", "none that holds memory: nothing limits a job but the machine")
    limits = cgroup_limits(groups)
    if not limits:
        return ok("cgroup", f"{groups[0].version}, without a limit")
    least = min(limits, key=lambda limit: limit.limit_bytes)
    allowed, name = format_bytes(least.limit_bytes), least.group.name
    shown = name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"
    where = f"{least.group.version}, {least.file} of {shown}"
    remedy = (
        "have the limit raised (docker: `--memory`, Slurm: `--mem`, systemd: `MemoryMax=`); "
        "lowtide keeps to it by itself"
    )
    if least.limit_bytes < LEAST_BYTES:
        finding = f"allows {allowed} ({where}); a stage needs {format_bytes(LEAST_BYTES)}"
        return problem("cgroup", finding, remedy)
    if least.limit_bytes < _MUCH_BELOW * examination.ram_bytes:
        shown = f"`free` shows {format_bytes(examination.ram_bytes)}"
        return advice("cgroup", f"{shown}, but this job may use {allowed} ({where})", remedy)
    return ok("cgroup", f"allows {allowed} ({where})")


def check_slurm(examination: Examination) -> Check | None:
    """What Slurm has granted; None outside its jobs."""
    job = examination.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        limit = machine_limit(slurm=examination.environ, root=examination.root)
    except UsageError as error:
        return problem("Slurm", error.problem, error.remedy)
    granted = [one for one in limit.candidates if one.source.startswith("SLURM_")]
    if not granted:
        return ok("Slurm", f"job {job}, no memory named: what the cgroup allows counts")
    least = min(granted, key=lambda one: one.total_bytes)
    finding = f"job {job} may use {format_bytes(least.total_bytes)} ({least.source})"
    if least.total_bytes < LEAST_BYTES:
        return problem("Slurm", finding, "ask for more, such as `sbatch --mem=8G`")
    return ok("Slurm", finding)


def check_overcommit(examination: Examination) -> Check | None:
    """Whether the kernel promises more than it has."""
    mode = _overcommit(examination.root)
    if mode is None:
        return None
    if mode != 2:
        words = {
            0: "mode 0, the usual: only absurd requests are refused",
            1: "mode 1: no request fails",
        }
        return ok("overcommit", words.get(mode, f"mode {mode}"))
    fields = kib_fields(read_text(examination.root / "proc/meminfo") or "")
    left = max(0, fields.get("CommitLimit", 0) - fields.get("Committed_AS", 0))
    finding = (
        f"mode 2: reserved memory counts as used, and {format_bytes(left)} can still be reserved"
    )
    judge = problem if left < _LITTLE_PROMISE_BYTES else advice
    return judge("overcommit", finding, examination.as_root("sysctl vm.overcommit_memory=0"))


def _overcommit(root: Path) -> int | None:
    text = (read_text(root / "proc/sys/vm/overcommit_memory") or "").strip()
    return int(text) if text.isdigit() else None


def check_pressure(examination: Examination) -> Check | None:
    """PSI: whether the kernel says how long work stands still for memory."""
    if not (examination.root / "proc/meminfo").exists():
        return None
    percent = stalled_percent(examination.root)
    if percent is None:
        finding = "not reported by this kernel: `watch` goes by free memory and swapping alone"
        remedy = "nothing must be done; a kernel built with PSI reports it when booted with `psi=1`"
        return advice("pressure (PSI)", finding, remedy)
    finding = f"work stood still for memory {percent:.0f} % of the last ten seconds"
    if percent >= _STALLING_PERCENT:
        remedy = "end what is not needed, or wait: this machine is short of memory now"
        return advice("pressure (PSI)", finding, remedy)
    return ok("pressure (PSI)", finding)


def check_huge_pages(examination: Examination) -> Check | None:
    """Pages of 2 MiB for everybody make many small buffers larger than they are."""
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    found = re.search(r"\[(\w+)\]", read_text(examination.root / path) or "")
    if found is None:
        return None
    if found[1] != "always":
        return ok("huge pages", found[1])
    finding = "always: a program may take more memory than it asks for"
    return advice("huge pages", finding, examination.as_root(f"echo madvise > /{path}"))


def check_killers(examination: Examination) -> Check | None:
    """Daemons that end processes before the kernel does."""
    names = {
        (read_text(path) or "").strip() for path in (examination.root / "proc").glob("[0-9]*/comm")
    }
    running = [name for name in _KILLERS if name in names]
    if not running:
        return None
    finding = f"{' and '.join(running)} ends jobs before memory is full"
    remedy = (
        "leave a tenth of RAM free: pass `--memory`; "
        f"`journalctl -u {running[0]}` shows what it has ended"
    )
    return advice("early killer", finding, remedy)


def check_job_limits(examination: Examination) -> Check | None:
    """Whether `lowtide watch` can enforce a limit, tried with a command that does nothing."""
    root = examination.root
    if root != Path("/") or not (root / "proc/meminfo").exists():
        return None
    with open_box(_TRIED_LIMIT_BYTES) as box:
        if box is not None:
            return ok("limits of jobs", f"`watch --limit` can enforce them ({box.how})")
    finding = (
        "no cgroup can be made here: `watch --limit` watches a job, but the kernel enforces nothing"
    )
    remedy = "for a hard limit, run the job as root or in a container with `--memory 8g`"
    if examination.container:
        remedy = "for a hard limit on everything, start the container with `--memory 8g`"
    elif (root / "run/systemd/system").exists():
        remedy = "for a hard limit: `systemd-run --user --scope -p MemoryMax=8G COMMAND`"
    return advice("limits of jobs", finding, remedy)
