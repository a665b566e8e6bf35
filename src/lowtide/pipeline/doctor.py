"""Everything `lowtide doctor` looks at, in one walk through the machine. Nothing is changed or left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.guard.box import open_box
from lowtide.guard.doctor import (
    check_disk,
    check_gpu,
    check_memory,
    check_software,
    check_system,
    check_torch,
)
from lowtide.guard.doctor.checks import Check, advice, gravest_first, ok, problem
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors
from lowtide.units import MIB, format_bytes

_SKIPPED = "not tried: `--quick`"
_TRIED_LIMIT_BYTES = 64 * MIB


def examine_machine(
    path: str | Path,
    *,
    environ: Mapping[str, str],
    quick: bool = False,
    listen: Listener = ignore,
    root: Path = Path("/"),
) -> list[Check]:
    """What this machine allows and what may go wrong, the gravest first.

    `path` is where files will go; it need not exist yet. `quick` leaves out what takes seconds: writing to the
    disk, starting torch. `root` stands for `/`.
    """
    container = check_system.find_container(root, environ)
    checks = [
        *_memory(root, environ, container),
        *_system(root, container),
        *_disk(as_path(path), root, container, quick=quick),
        _check_temporary(root, environ),
        _check_shared_memory(root, container),
        *_torch(root, environ, container, quick=quick, listen=listen),
        *_software(),
    ]
    return gravest_first(check for check in checks if check is not None)


def _memory(
    root: Path, environ: Mapping[str, str], container: str | None
) -> Iterator[Check | None]:
    yield check_memory.check_ram(root)
    yield check_memory.check_cgroup(root)
    yield check_memory.check_slurm(environ, root)
    yield check_memory.check_swap(root, container=container)
    yield check_memory.check_overcommit(root, container=container)
    yield check_memory.check_huge_pages(root, container=container)
    yield check_memory.check_pressure(root)
    yield check_memory.check_killers(root)
    yield _check_box(root, container)


def _check_box(root: Path, container: str | None) -> Check | None:
    """Whether `lowtide watch` can enforce a limit, tried with a command that does nothing."""
    if root != Path("/") or not (root / "proc/meminfo").exists():
        return None
    with open_box(_TRIED_LIMIT_BYTES) as box:
        if box is not None:
            return ok("limits of jobs", f"`watch --limit` can enforce them ({box.how})")
    told = "no cgroup can be made here: `watch --limit` looks at a job instead of walling it in"
    remedy = "for a wall, run the job as root or in a container with `--memory 8g`"
    if container:
        remedy = "for a wall around all of it, start the container with `--memory 8g`"
    elif (root / "run/systemd/system").exists():
        remedy = "for a wall: `systemd-run --user --scope -p MemoryMax=8G COMMAND`"
    return advice("limits of jobs", told, remedy)


def _system(root: Path, container: str | None) -> Iterator[Check | None]:
    ram = check_memory.ram_bytes(root)
    yield check_system.check_system()
    yield check_system.check_container(container)
    yield check_system.check_wsl(root, ram=ram)
    yield from check_system.check_ulimits(check_system.read_ulimits(), ram=ram)


def _disk(path: Path, root: Path, container: str | None, *, quick: bool) -> Iterator[Check | None]:
    folder = _nearest_folder(path)
    with storage_errors(folder, doing="look at"):
        room, kind = check_disk.read_room(folder), check_disk.file_system(folder, root)
    yield check_disk.check_space(room, folder)
    yield check_disk.check_file_system(kind, container=container)
    refusal = check_disk.find_refusal(folder)
    if refusal is not None:
        yield refusal
    else:
        yield ok("write speed", _SKIPPED) if quick else check_disk.check_writing(folder, room, kind)


def _check_temporary(root: Path, environ: Mapping[str, str]) -> Check | None:
    try:
        folder = Path(tempfile.gettempdir()).resolve()
    except FileNotFoundError:
        told = "no folder takes them: neither TMPDIR nor /tmp can be written"
        return problem("temporary files", told, "`export TMPDIR=DIR`, a folder of your own")
    wrong = check_disk.find_wrong_temporary(environ, used=folder)
    if wrong is not None:
        return wrong
    other, no_disk = Path("/var/tmp"), (*check_disk.IN_MEMORY, None)
    fits = other.is_dir() and check_disk.file_system(other, root) not in no_disk
    kind = check_disk.file_system(folder, root)
    return check_disk.check_temporary(folder, kind, other=other if fits else None)


def _check_shared_memory(root: Path, container: str | None) -> Check | None:
    shared = root / "dev/shm"
    total = check_disk.read_room(shared).total_bytes if shared.is_dir() else None
    return check_disk.check_shared_memory(total, container=container)


def _nearest_folder(path: Path) -> Path:
    """The path itself or the first folder above it that exists."""
    whole = _whole_path(path)
    found = next(one for one in (whole, *whole.parents) if _exists(one))
    if not found.is_dir():
        raise UsageError(f"{found} is a file and no folder", remedy="pass a folder: `--path DIR`")
    return found


def _whole_path(path: Path) -> Path:
    try:
        return path.resolve()
    except FileNotFoundError as cause:  # of a path that is not absolute
        told = "the current folder is not there any more"
        remedy = "`cd` to one that is, or pass a whole path: `--path /DIR`"
        raise UsageError(told, remedy=remedy) from cause
    except (OSError, RuntimeError) as cause:  # links in a circle; newer Pythons resolve them
        raise UsageError(
            f"{path} leads nowhere: {cause}", remedy="pass another `--path`"
        ) from cause


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it is closed to us, or links lead in a circle
        return False


def _torch(
    root: Path, environ: Mapping[str, str], container: str | None, *, quick: bool, listen: Listener
) -> Iterator[Check | None]:
    reading = check_gpu.read_gpus(root)
    yield from check_gpu.check_gpu(reading, environ, container=container)
    if not check_software.is_installed("torch"):
        return  # the extras say so
    left = check_memory.room_bytes(root)
    if quick:
        yield ok("torch", _SKIPPED)
        yield ok("torch.compile", _SKIPPED)
    elif left < check_torch.NEEDED_BYTES:
        told = f"not tried: it may take {format_bytes(check_torch.NEEDED_BYTES)} of memory"
        yield ok("torch", f"{told}, and {format_bytes(left)} are left")
    else:
        listen(
            Note(text="trying torch and its compiler, which takes half a minute; --quick skips it")
        )
        answers = check_torch.ask_torch(compiles=True)
        card_here = bool(reading.cards) and not check_gpu.are_hidden(environ)
        yield check_torch.check_torch(answers, card_here=card_here)
        yield check_torch.check_compile(answers)


def _software() -> Iterator[Check]:
    libraries = check_software.read_libraries()
    yield from check_software.check_libraries(libraries)
    yield from check_software.check_extras(libraries)
    yield check_software.check_native()
