"""Files of a folder or a glob that are not read: counted by reason, and some of them named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide.units import printable

_NAMED_SKIPPED = 3
"""Of each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Files that are not read for one reason."""

    reason: str
    count: int
    first: tuple[str, ...]
    """Some of them, by path; of a hidden folder the folder."""


class SkippedFiles:
    """Collects what is left out."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[str]] = {}

    def add(self, path: Path, reason: str, *, count: int = 1) -> None:
        """Count a file, or a folder of `count` files."""
        if not count:
            return
        self._counts[reason] = self._counts.get(reason, 0) + count
        names = self._first.setdefault(reason, [])
        names.append(printable(str(path)))  # a name may be no UTF-8
        names.sort()
        del names[_NAMED_SKIPPED:]

    def told(self) -> tuple[Skipped, ...]:
        """The most frequent reason first."""
        order = sorted(self._counts, key=lambda reason: (-self._counts[reason], reason))
        return tuple(
            Skipped(reason=reason, count=self._counts[reason], first=tuple(self._first[reason]))
            for reason in order
        )


def describe_skipped(skipped: Sequence[Skipped]) -> str:
    """`skipped 3 files: hidden 2 (.git, …), a zip archive 1 (a.zip); …`."""
    total = sum(item.count for item in skipped)
    parts = []
    for item in skipped:
        more = ", …" if item.count > len(item.first) else ""
        parts.append(f"{item.reason} {item.count:,} ({', '.join(item.first)}{more})")
    return (
        f"skipped {total:,} file{'' if total == 1 else 's'}: {', '.join(parts)}; "
        "to have one read, name it"
    )
