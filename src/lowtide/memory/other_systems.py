"""macOS and Windows, through psutil: figures that are estimates, and say so."""

from __future__ import annotations

from dataclasses import dataclass

import psutil  # type: ignore[import-untyped, unused-ignore]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEstimate:
    """What psutil can tell about one process."""

    private_bytes: int
    """Private bytes on Windows, the unique set size elsewhere."""
    resident_bytes: int


def available_ram_bytes() -> int:
    """What can be taken without swapping, as far as psutil can tell."""
    return int(psutil.virtual_memory().available)


def installed_ram_bytes() -> int:
    return int(psutil.virtual_memory().total)


def children_of(pid: int) -> list[int]:
    """The direct children; none when the process has ended."""
    try:
        return [int(child.pid) for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def estimate_process(pid: int) -> ProcessEstimate | None:
    """`None` when the process has ended or is not ours to look at."""
    try:
        process = psutil.Process(pid)
        info = process.memory_info()
        private = getattr(info, "private", None)
        if private is None:
            private = getattr(process.memory_full_info(), "uss", info.rss)
    except psutil.Error:
        return None
    return ProcessEstimate(private_bytes=int(private), resident_bytes=int(info.rss))
