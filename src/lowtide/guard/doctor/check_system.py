"""What kind of machine this is: system, container, WSL, and the limits that a shell has set."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lowtide.guard.doctor.checks import Check, Examination, advice, ok, problem
from lowtide.memory.proc_files import read_text
from lowtide.units import format_bytes, format_seconds

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Resource: TypeAlias = Literal["AS", "DATA", "NOFILE", "FSIZE", "CPU"]
"""As in RLIMIT_AS: address space, private memory, open files, a file's size, seconds of CPU time."""

_FLAGS: dict[Resource, str] = {"AS": "v", "DATA": "d", "NOFILE": "n", "FSIZE": "f", "CPU": "t"}
_FEW_FILES = 1024
_WANTED_FILES = 4096
_CONTAINER_FILES = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
_CONTAINER_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "APPTAINER_CONTAINER": "Apptainer",
    "SINGULARITY_CONTAINER": "Singularity",
}
_CONTAINER_PATHS = {
    "/kubepods": "Kubernetes",
    "/docker/": "Docker",
    "/docker-": "Docker",  # not /docker.service, which is the daemon's own
    "/libpod": "Podman",
    "/lxc": "LXC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulimit:
    """A limit of this process; None is unlimited."""

    soft: int | None
    hard: int | None


def check_system(_examination: Examination) -> Check:
    """Kernel, Python and cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    finding = f"{system}, Python {platform.python_version()}, {cores} cores"
    if sys.maxsize < 1 << 32:
        return problem("system", f"{finding}, 32 bits", "install a Python of 64 bits")
    return ok("system", finding)


def find_container(root: Path, environ: Mapping[str, str]) -> str | None:
    """The kind of container we run in, such as `Docker`; None outside one."""
    for variable, kind in _CONTAINER_VARIABLES.items():
        if environ.get(variable):
            return kind
    for file, kind in _CONTAINER_FILES.items():
        if (root / file).exists():
            return kind
    first = re.search(r"(?:^|\0)container=(\w+)", read_text(root / "proc/1/environ") or "")
    if first is not None:  # systemd's word: lxc, podman, systemd-nspawn
        return first[1]
    groups = read_text(root / "proc/self/cgroup") or ""
    return next((kind for part, kind in _CONTAINER_PATHS.items() if part in groups), None)


def check_container(examination: Examination) -> Check | None:
    """A container shows the host's figures as its own."""
    if examination.container is None:
        return None
    finding = f"inside {examination.container}: what `free` shows and the kernel's settings are the host's"
    return ok("container", finding)


def check_wsl(examination: Examination) -> Check | None:
    """Linux inside Windows has half of the RAM, unless set otherwise."""
    version = read_text(examination.root / "proc/version") or ""
    if "microsoft" not in version.lower():
        return None
    if "-Microsoft" in version:  # 4.4.0-19041-Microsoft; version 2 writes -microsoft
        finding = "version 1: it has neither cgroups nor the GPU"
        return advice("WSL", finding, "in Windows: `wsl --set-version NAME 2`, NAME from `wsl -l`")
    ram = format_bytes(examination.ram_bytes)
    finding = f"version 2: Windows lends it {ram} of RAM, half of its own by default"
    remedy = (
        "in Windows, write `[wsl2]` and below it `memory=24GB` (as fits) into `.wslconfig` in "
        "your user folder, then `wsl --shutdown`; keep data in the Linux home, for /mnt/c is slow"
    )
    return advice("WSL", finding, remedy)


def read_ulimits() -> dict[Resource, Ulimit]:
    """Those of this process; empty on Windows."""
    if resource is None:
        return {}
    found: dict[Resource, Ulimit] = {}
    unlimited = resource.RLIM_INFINITY
    for name in _FLAGS:
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        found[name] = Ulimit(
            soft=None if soft == unlimited else soft, hard=None if hard == unlimited else hard
        )
    return found


def check_ulimits(examination: Examination) -> list[Check]:
    """One line for each limit of this process that may be reached, or one that says there is none."""
    limits = examination.ulimits
    if not limits:
        return []
    found = list(_low_limits(limits, examination.ram_bytes))
    if found:
        return found
    files = limits["NOFILE"].soft
    count = "any number of" if files is None else f"{files:,}"
    return [ok("ulimits", f"none that matters; {count} files may be open")]


def _low_limits(limits: Mapping[Resource, Ulimit], ram: int) -> Iterator[Check]:
    def remedy(name: Resource, wanted: int | None = None) -> str:
        """A shell may raise its soft limit up to the hard one; beyond, somebody else must."""
        hard = limits[name].hard
        if hard is None or (wanted is not None and hard >= wanted):
            return f"in this shell: `ulimit -{_FLAGS[name]} {wanted or 'unlimited'}`"
        return (
            f"a new shell, if this one set it; else `{name.lower()}` in /etc/security/limits.conf, by the "
            "administrator; on a cluster: a batch job instead of the login node"
        )

    space, data, size, seconds, files = (
        limits[name].soft for name in ("AS", "DATA", "FSIZE", "CPU", "NOFILE")
    )
    if space is not None:
        shown = format_bytes(space)
        finding = f"{shown} of addresses: mapped files count too, and torch maps many GiB"
        yield (problem if space < ram else advice)("ulimit -v", finding, remedy("AS"))
    if data is not None and data < ram:
        shown = format_bytes(data)
        finding = f"a process may take {shown} of private memory; beyond, allocations fail"
        yield advice("ulimit -d", finding, remedy("DATA"))
    if size is not None:
        finding = f"no file may grow beyond {format_bytes(size)}"
        yield problem("ulimit -f", finding, remedy("FSIZE"))
    if seconds is not None:
        finding = f"a process is killed after {format_seconds(seconds)} of CPU time"
        yield advice("ulimit -t", finding, remedy("CPU"))
    if files is not None and files < _FEW_FILES:
        finding = f"{files} open files: few for a folder of many shards"
        yield advice("ulimit -n", finding, remedy("NOFILE", _WANTED_FILES))
