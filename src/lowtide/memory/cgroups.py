"""Find the memory cgroups that hold this process, and what each of them allows.

Their folders are read, not guessed: `/proc/self/cgroup` names the group, `/proc/self/mountinfo` the
place where its tree is mounted. A container often sees only the lower part of its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from lowtide.memory.proc_files import read_mounts, read_text

Version = Literal["v1", "v2"]

UNLIMITED_BYTES = 1 << 60  # v1 writes "no limit" as a number just under 2**63
_LIMIT_FILES: dict[Version, tuple[str, ...]] = {
    "v1": ("memory.limit_in_bytes",),
    "v2": ("memory.max", "memory.high"),  # above `high` the kernel stalls the process
}
_USED_FILES: dict[Version, str] = {"v1": "memory.usage_in_bytes", "v2": "memory.current"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCgroup:
    """One group on the way from this process to the top of its tree."""

    version: Version
    folder: Path
    name: str
    """Its path in the tree as people write it, such as `/user.slice`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimit:
    """A limit set by a group, or by an ancestor of it that cannot be seen from here."""

    group: MemoryCgroup
    file: str
    limit_bytes: int
    used_bytes: int | None
    """Everything charged to the group, page cache included."""


def memory_cgroups(root: Path = Path("/")) -> list[MemoryCgroup]:
    """Every visible group that holds this process, innermost first, v1 before v2."""
    memberships = _memberships(read_text(root / "proc/self/cgroup") or "")
    mounts = _memory_mounts(root)
    groups = []
    for version in ("v1", "v2"):
        if version not in mounts or version not in memberships:
            continue
        top, mount_point = mounts[version]
        # From the process's own group up to the mount's top, as far as they can be seen.
        inside = _inside_mount(memberships[version], top)
        for name in map(str, (inside, *inside.parents)):
            folder = root / mount_point.lstrip("/") / name.lstrip("/")
            if folder.is_dir():
                groups.append(MemoryCgroup(version=version, folder=folder, name=name))
    return groups


def cgroup_limits(groups: list[MemoryCgroup]) -> list[CgroupLimit]:
    """The limits that are set; a group that says `max` (or v1's huge number) sets none."""
    limits = []
    for group in groups:
        used = read_text(group.folder / _USED_FILES[group.version])
        limits += [
            CgroupLimit(
                group=group,
                file=file,
                limit_bytes=limit_bytes,
                used_bytes=int(used) if used is not None else None,
            )
            for file, limit_bytes in _read_limits(group)
            if limit_bytes < UNLIMITED_BYTES
        ]
    return limits


def _memberships(text: str) -> dict[Version, str]:
    """`{"v1": "/job", "v2": "/"}` out of `4:memory:/job` and `0::/`."""
    found: dict[Version, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            found["v1"] = path
        elif number == "0" and not controllers:
            found["v2"] = path
    return found


def _memory_mounts(root: Path) -> dict[Version, tuple[str, str]]:
    """The group at the top of each version's first mount that carries memory, and the mount point."""
    found: dict[Version, tuple[str, str]] = {}
    for mount in read_mounts(root):
        if mount.kind == "cgroup" and "memory" in mount.options.split(","):
            found.setdefault("v1", (mount.top, mount.place))
        elif mount.kind == "cgroup2":
            found.setdefault("v2", (mount.top, mount.place))
    return found


def _inside_mount(path: str, top: str) -> PurePosixPath:
    """The group's path below the mount: `/docker/a/b` under a mount of `/docker/a` is `/b`."""
    try:
        relative = PurePosixPath(path).relative_to(top)
    except ValueError:
        return PurePosixPath("/")  # another namespace's path: only the mount itself is known
    if ".." in relative.parts:
        return PurePosixPath("/")
    return PurePosixPath("/") / relative


def _read_limits(group: MemoryCgroup) -> Iterator[tuple[str, int]]:
    """Each file of the group that holds a limit, and the limit."""
    for file in _LIMIT_FILES[group.version]:
        limit = read_text(group.folder / file)
        if limit is not None and limit.strip().isdigit():
            yield file, int(limit)
    if group.version == "v1":
        for line in (read_text(group.folder / "memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == "hierarchical_memory_limit":  # knows the ancestors a container cannot see
                yield "memory.stat", int(value)
