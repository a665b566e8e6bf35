"""What one look at memory finds: a process tree, its processes, their machine and its cards.

`guard/reading.py` takes readings, journals store them, and `journal.read_reading` gives them back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Memory of one card; what is used belongs to all processes on it."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Memory of one process; memory that several share is counted for each."""

    pid: int
    name: str
    private_bytes: int
    """Anonymous and shared-memory pages."""
    shared_bytes: int = 0
    """The shared memory in `private_bytes`."""
    mapped_bytes: int = 0
    """Page cache that it has mapped."""
    swapped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRead:
    """Memory that a process tree uses and that its machine has left."""

    private_bytes: int
    """Pages that processes share are counted once; between exact looks it may be too high."""
    mapped_bytes: int = 0
    """Mapped page cache: shown, never counted."""
    swapped_bytes: int = 0
    available_bytes: int | None = None
    """Memory that the machine has left; None in records that do not say."""
    stalled_percent: float | None = None
    """Share of the last ten seconds in which all work waited for memory; None where unknown."""

    @property
    def used_bytes(self) -> int:
        """What counts against a limit: swapped pages left memory only because there was not enough of it."""
        return self.private_bytes + self.swapped_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(MemoryRead):
    """Memory of a process tree in detail, as `watch` sees it."""

    at: float
    """Monotonic seconds; in a journal Unix seconds, 0 where a record has no time."""
    shared_bytes: int = 0
    process_count: int = 0
    swapped_in_bytes: float = 0.0
    """Bytes a second that the whole machine swapped in since the last reading."""
    cgroup_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    gpus: tuple[GpuReading, ...] = ()
    top: tuple[ProcessUse, ...] = ()
    """The largest processes, largest first."""
