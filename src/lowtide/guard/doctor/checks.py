"""One line of `lowtide doctor`: what was found, how grave it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lowtide.events import Listener, ignore

if TYPE_CHECKING:
    from lowtide.guard.doctor.check_disk import DiskSpace
    from lowtide.guard.doctor.check_gpu import DriverAnswer
    from lowtide.guard.doctor.check_software import Library
    from lowtide.guard.doctor.check_system import Resource, Ulimit

Level: TypeAlias = Literal["problem", "advice", "ok"]
LEVELS: tuple[Level, ...] = ("problem", "advice", "ok")
"""The gravest first. Advice means: it works, and may cause trouble later."""
NOT_TRIED = "not tried: `--quick`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the checks look at: a machine, a folder on it, and what was read of both."""

    root: Path = Path("/")
    """Stands for `/`, so that any machine can be tried on any other."""
    environ: Mapping[str, str] = field(default_factory=dict)
    container: str | None = None
    """The kind of container this machine is, such as `Docker`; None where it is none."""
    folder: Path = Path("/")
    """Where files will go."""
    quick: bool = False
    """Leave out what takes seconds."""
    listen: Listener = ignore
    space: DiskSpace | None = None
    """What the folder's disk has left."""
    file_system: str | None = None
    """The kind of the folder's file system; None where `/proc` does not say."""
    shared_memory_bytes: int | None = None
    """The size of `/dev/shm`; None where there is none."""
    ram_bytes: int = 0
    ulimits: Mapping[Resource, Ulimit] = field(default_factory=dict)
    gpus: DriverAnswer | None = None
    libraries: Sequence[Library] = ()

    def as_root(self, command: str) -> str:
        """How to run a command that changes the kernel: inside a container nobody can."""
        return f"on the host, as root: `{command}`" if self.container else f"as root: `{command}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. All but `ok` have a remedy."""

    name: str
    level: Level
    finding: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        assert (self.remedy is None) == (self.level == "ok"), (
            f"{self.name}: a remedy for all but ok"
        )


Rule: TypeAlias = Callable[[Examination], Check | Sequence[Check] | None]
"""Looks at one thing; None where the machine has no such thing."""


def ok(name: str, finding: str) -> Check:
    """Nothing to do, or not looked at: the finding says which."""
    return Check(name=name, level="ok", finding=finding)


def advice(name: str, finding: str, remedy: str) -> Check:
    """Works, and may cause trouble later."""
    return Check(name=name, level="advice", finding=finding, remedy=remedy)


def problem(name: str, finding: str, remedy: str) -> Check:
    """Something that lowtide does will fail here."""
    return Check(name=name, level="problem", finding=finding, remedy=remedy)


def gravest_first(checks: Iterable[Check]) -> list[Check]:
    """Problems, then advice, then the rest; equals keep their order."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))
