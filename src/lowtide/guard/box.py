"""A memory cgroup for one command: where it runs out of memory, only its own processes are killed.

    with open_box(256 * MIB) as box:
        command = box.command_inside(["python", "job.py"]) if box else ["python", "job.py"]

The box is a child of this process's own cgroup (v1) or a sibling of it (v2, where a group with processes may
have no children), so that every limit that holds here holds inside too.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lowtide.memory.cgroups import UNLIMITED_BYTES, MemoryCgroup, memory_cgroups
from lowtide.memory.proc_files import read_text

How: TypeAlias = Literal["cgroup v1", "cgroup v2"]

_ENTER = 'echo $$ > "$0" && exec "$@"'
_TRIES, _WAIT_SECONDS = 100, 0.02
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A cgroup that a process may enter."""

    how: How
    folder: Path
    home: Path | None = None
    """The group of the process that made the box."""

    def command_inside(self, command: Sequence[str]) -> list[str]:
        """A shell that enters the group and becomes the command: all it takes is charged inside."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder / "cgroup.procs"), *command]

    def members(self) -> list[int]:
        """The processes inside now, also in groups that were made inside."""
        texts = [read_text(folder / "cgroup.procs") or "" for folder in _groups(self.folder)]
        return [int(pid) for text in texts for pid in text.split()]

    def enter(self) -> None:
        """Move this process, and all that it starts from now on, inside."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def limit_bytes(self) -> int | None:
        """What the kernel enforces; None where nothing is set."""
        limit = _number(self.folder / self._file("memory.limit_in_bytes", "memory.max"))
        return None if limit is None or limit >= UNLIMITED_BYTES else limit

    def release(self) -> None:
        """Move the processes inside to the group of the box's maker: they outlive the box."""
        place = (self.home or self.folder.parent) / "cgroup.procs"
        for _ in range(_TRIES):  # processes that are started meanwhile too
            members = self.members()
            for pid in members:
                with suppress(OSError):  # it has ended meanwhile, or may not leave
                    place.write_text(str(pid))
            if not members:
                return

    def private_bytes(self) -> int | None:
        """Anonymous and shared-memory pages of all inside, each counted once; None where that is unknown."""
        text = read_text(self.folder / "memory.stat") or ""
        sizes = dict(line.split(" ", 1) for line in text.splitlines())
        names = self._file("total_rss total_shmem", "anon shmem").split()
        if any(name not in sizes for name in names):
            return None
        return sum(int(sizes[name]) for name in names)

    def charged_bytes(self) -> int | None:
        """The memory charged to the box now, page cache included."""
        return _number(self.folder / self._file("memory.usage_in_bytes", "memory.current"))

    def peak_charged_bytes(self) -> int | None:
        """The most memory ever charged; None where the kernel does not keep it."""
        return _number(self.folder / self._file("memory.max_usage_in_bytes", "memory.peak"))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed at this limit."""
        text = read_text(self.folder / self._file("memory.oom_control", "memory.events")) or ""
        counts = dict(line.split(" ", 1) for line in text.splitlines())
        return int(counts.get("oom_kill", 0))

    def _file(self, v1: str, v2: str) -> str:
        return v1 if self.how == "cgroup v1" else v2


@contextmanager
def open_box(limit_bytes: int | None, *, kill: bool = True) -> Iterator[Box | None]:
    """A box with this limit, or without one; None where none can be made.

    At the end processes inside are killed. Without `kill` they stay, and so does the box until another is made.
    """
    box = _make_box(limit_bytes)
    try:
        yield box
    finally:
        if box is not None and kill:
            _remove(box)
        elif box is not None:
            _is_gone(box.folder)


def _groups(folder: Path) -> list[Path]:
    """The group and those inside it, inner ones first."""
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)]


def _is_gone(folder: Path) -> bool:
    """Remove the group and those inside it; False where a process lives in one."""
    for group in _groups(folder):
        with suppress(OSError):
            group.rmdir()
    return not folder.exists()


def _make_box(limit_bytes: int | None) -> Box | None:
    homes = {group.version: group.folder for group in reversed(memory_cgroups())}
    for parent in _parents():
        _sweep(parent.folder)
        name = f"lowtide-{os.getpid()}-{next(_numbers)}"
        how: How = "cgroup v1" if parent.version == "v1" else "cgroup v2"
        box = Box(how=how, folder=parent.folder / name, home=homes[parent.version])
        try:
            box.folder.mkdir()
        except OSError:
            continue
        try:
            if limit_bytes is not None:
                _set_limit(box, limit_bytes)
            # A group may be made and still be closed: v2 asks for rights on the common ancestor.
            inside = box.command_inside(["/bin/sh", "-c", ":"])
            subprocess.run(inside, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            _remove(box)
            continue
        return box
    return None


def _sweep(folder: Path) -> None:
    """Remove empty boxes whose maker was killed."""
    for path in folder.glob("lowtide-*-*"):
        maker = path.name.split("-")[1]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            _is_gone(path)


def _parents() -> Iterator[MemoryCgroup]:
    """Groups that may hold a box, the nearest first."""
    for group in memory_cgroups():
        shared = read_text(group.folder / "cgroup.subtree_control") or ""
        if group.version == "v1" or "memory" in shared.split():
            yield group


def _set_limit(box: Box, limit_bytes: int) -> None:
    if box.how == "cgroup v1":
        (box.folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        swap, swap_limit = box.folder / "memory.memsw.limit_in_bytes", str(limit_bytes)
    else:
        (box.folder / "memory.max").write_text(str(limit_bytes))
        swap, swap_limit = box.folder / "memory.swap.max", "0"
    if swap.exists():  # else the overflow would hide there
        swap.write_text(swap_limit)


def _remove(box: Box) -> None:
    """Kill what is in the box, which was all started in it, and remove it.

    The last charge may take a moment to go; what cannot be removed is swept when the next box is made."""
    for _ in range(_TRIES):
        for pid in box.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if _is_gone(box.folder):
            return
        time.sleep(_WAIT_SECONDS)


def _number(path: Path) -> int | None:
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() else None
