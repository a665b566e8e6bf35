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

from lowtide.guard.doctor.checks import Check, advice, ok, problem
from lowtide.memory.proc_files import read_text
from lowtide.units import format_bytes, format_seconds

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Resource: TypeAlias = Literal["AS", "DATA", "NOFILE", "FSIZE", "CPU"]
"""As in RLIMIT_AS: address space, private memory, open files, a file's size, seconds of CPU time."""

_RESOURCES: tuple[Resource, ...] = ("AS", "DATA", "NOFILE", "FSIZE", "CPU")
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
    """None is unlimited."""

    soft: int | None
    hard: int | None


def check_system() -> Check:
    """Kernel, Python and cores, as they are."""
    asked = getattr(os, "sched_getaffinity", None)
    cores = len(asked(0)) if asked else os.cpu_count() or 1
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    told = f"{system}, Python {platform.python_version()}, {cores} cores"
    if sys.maxsize < 1 << 32:
        return problem("system", f"{told}, 32 bits", "install a Python of 64 bits")
    return ok("system", told)


def find_container(root: Path, environ: Mapping[str, str]) -> str | None:
    """Its kind, such as `Docker`; None on a machine of our own."""
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


def check_container(container: str | None) -> Check | None:
    """A container shows the host's figures as its own."""
    if container is None:
        return None
    told = f"inside {container}: what `free` shows and the kernel's settings are the host's"
    return ok("container", told)


def check_wsl(root: Path, *, ram: int) -> Check | None:
    """Linux inside Windows: half of the RAM, unless told otherwise."""
    version = read_text(root / "proc/version") or ""
    if "microsoft" not in version.lower():
        return None
    if "-Microsoft" in version:  # 4.4.0-19041-Microsoft; version 2 writes -microsoft
        told = "version 1: it has neither cgroups nor the GPU"
        return advice("WSL", told, "in Windows: `wsl --set-version NAME 2`, NAME from `wsl -l`")
    told = f"version 2: Windows lends it {format_bytes(ram)} of RAM, half of its own by default"
    remedy = (
        "in Windows, write `[wsl2]` and below it `memory=24GB` (as fits) into `.wslconfig` in "
        "your user folder, then `wsl --shutdown`; keep data in the Linux home, for /mnt/c is slow"
    )
    return advice("WSL", told, remedy)


def read_ulimits() -> dict[Resource, Ulimit]:
    """Those of this process; empty on Windows."""
    if resource is None:
        return {}
    found: dict[Resource, Ulimit] = {}
    for name in _RESOURCES:
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        found[name] = Ulimit(soft=_finite(soft), hard=_finite(hard))
    return found


def _finite(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def check_ulimits(limits: Mapping[Resource, Ulimit], *, ram: int) -> list[Check]:
    """One line for each limit that bites, or one that says none does."""
    if not limits:
        return []
    bites = list(_bites(limits, ram))
    if bites:
        return bites
    files = limits["NOFILE"].soft
    return [
        ok(
            "ulimits",
            f"none that bites; {'any number of' if files is None else f'{files:,}'} files may be open",
        )
    ]


def _bites(limits: Mapping[Resource, Ulimit], ram: int) -> Iterator[Check]:
    space, data, size = limits["AS"].soft, limits["DATA"].soft, limits["FSIZE"].soft
    if space is not None:
        told = (
            f"{format_bytes(space)} of addresses: mapped files count too, and torch maps many GiB"
        )
        judge = problem if space < ram else advice
        yield judge("ulimit -v", told, _raise("AS", limits["AS"], None))
    if data is not None and data < ram:
        told = (
            f"a process may take {format_bytes(data)} of private memory; beyond, allocations fail"
        )
        yield advice("ulimit -d", told, _raise("DATA", limits["DATA"], None))
    if size is not None:
        told = f"no file may grow beyond {format_bytes(size)}"
        yield problem("ulimit -f", told, _raise("FSIZE", limits["FSIZE"], None))
    seconds, files = limits["CPU"].soft, limits["NOFILE"].soft
    if seconds is not None:
        told = f"a process is killed after {format_seconds(seconds)} of CPU time"
        yield advice("ulimit -t", told, _raise("CPU", limits["CPU"], None))
    if files is not None and files < _FEW_FILES:
        told = f"{files} open files: few for a folder of many shards"
        yield advice("ulimit -n", told, _raise("NOFILE", limits["NOFILE"], _WANTED_FILES))


def _raise(name: Resource, limit: Ulimit, wanted: int | None) -> str:
    """A shell may raise its soft limit up to the hard one; beyond, somebody else must."""
    flag = _FLAGS[name]
    if limit.hard is None or (wanted is not None and limit.hard >= wanted):
        return f"in this shell: `ulimit -{flag} {wanted or 'unlimited'}`"
    item = {"AS": "as", "DATA": "data", "NOFILE": "nofile", "FSIZE": "fsize", "CPU": "cpu"}[name]
    return (
        f"a new shell, if this one set it; else `{item}` in /etc/security/limits.conf, by the administrator; "
        "on a cluster: a batch job instead of the login node"
    )
