"""Everything `lowtide doctor` looks at, in one walk through the machine. Nothing is changed or left behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.events import Listener, ignore
from lowtide.guard.doctor import (
    check_disk,
    check_gpu,
    check_memory,
    check_software,
    check_system,
)
from lowtide.guard.doctor.checks import Check, Examination, Rule, gravest_first
from lowtide.memory.proc_files import machine_memory
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors

RULES: tuple[Rule, ...] = (
    check_memory.check_ram,
    check_memory.check_cgroup,
    check_memory.check_slurm,
    check_memory.check_swap,
    check_memory.check_overcommit,
    check_memory.check_huge_pages,
    check_memory.check_pressure,
    check_memory.check_killers,
    check_memory.check_job_limits,
    check_system.check_system,
    check_system.check_container,
    check_system.check_wsl,
    check_system.check_ulimits,
    check_disk.check_space,
    check_disk.check_file_system,
    check_disk.check_writing,
    check_disk.check_temporary,
    check_disk.check_shared_memory,
    check_gpu.check_gpu,
    check_gpu.check_torch,
    check_software.check_libraries,
    check_software.check_extras,
    check_software.check_native,
)
"""Every check, in the order in which equals are shown. A new one is a function and a line here."""


def examine_machine(
    path: str | Path,
    *,
    environ: Mapping[str, str],
    quick: bool = False,
    listen: Listener = ignore,
    root: Path = Path("/"),
) -> list[Check]:
    """What this machine allows and what is likely to go wrong, the gravest first.

    `path` is where files will go; it need not exist yet. `quick` leaves out what takes seconds: writing to the
    disk, starting torch. `root` stands for `/`.
    """
    folder, shared = _nearest_folder(as_path(path)), root / "dev/shm"
    with storage_errors(folder, doing="look at"):
        space = check_disk.read_disk_space(folder)
    examination = Examination(
        root=root,
        environ=environ,
        container=check_system.find_container(root, environ),
        folder=folder,
        quick=quick,
        listen=listen,
        space=space,
        file_system=check_disk.file_system(folder, root),
        shared_memory_bytes=check_disk.read_disk_space(shared).total_bytes
        if shared.is_dir()
        else None,
        ram_bytes=machine_memory(root)[1],
        ulimits=check_system.read_ulimits(),
        gpus=check_gpu.read_gpus(root),
        libraries=check_software.read_libraries(),
    )
    checks: list[Check] = []
    for rule in RULES:
        found = rule(examination)
        checks += [found] if isinstance(found, Check) else found or []
    return gravest_first(checks)


def _nearest_folder(path: Path) -> Path:
    """The path itself or the first folder above it that exists."""
    try:
        whole = path.resolve()
    except FileNotFoundError as cause:  # a relative path, and the current folder was removed
        raise UsageError(
            "the current folder no longer exists",
            remedy="`cd` to one that is, or pass a whole path: `--path /DIR`",
        ) from cause
    except (OSError, RuntimeError) as cause:  # links in a circle; newer Pythons resolve them
        raise UsageError(
            f"{path} leads nowhere: {cause}", remedy="pass another `--path`"
        ) from cause
    found = next(one for one in (whole, *whole.parents) if _exists(one))
    if not found.is_dir():
        raise UsageError(f"{found} is a file, not a folder", remedy="pass a folder: `--path DIR`")
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it is closed to us, or links lead in a circle
        return False
