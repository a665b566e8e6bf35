"""One line of `lowtide doctor`: what was found, how grave it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["problem", "advice", "ok"]
LEVELS: tuple[Level, ...] = ("problem", "advice", "ok")
"""The gravest first. Advice is not wrong: it says what may bite later."""


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


def ok(name: str, finding: str) -> Check:
    """Nothing to do, or not looked at: the finding says which."""
    return Check(name=name, level="ok", finding=finding)


def advice(name: str, finding: str, remedy: str) -> Check:
    """Works, and may bite."""
    return Check(name=name, level="advice", finding=finding, remedy=remedy)


def problem(name: str, finding: str, remedy: str) -> Check:
    """Something that lowtide does will fail here."""
    return Check(name=name, level="problem", finding=finding, remedy=remedy)


def gravest_first(checks: Iterable[Check]) -> list[Check]:
    """Problems, then advice, then the rest; among equals as they came."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


def as_root(command: str, *, container: str | None) -> str:
    """Kernel settings are the host's: inside a container nobody can change them."""
    return f"on the host, as root: `{command}`" if container else f"as root: `{command}`"
