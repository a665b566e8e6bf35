"""What a watch says while it lasts, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lowtide.events import Note
from lowtide.guard.forecast import Forecast
from lowtide.guard.gpus import GpuReading
from lowtide.guard.job import JobEnd
from lowtide.guard.reading import Reading
from lowtide.guard.stages import Alert

Watched: TypeAlias = Reading | Alert | Forecast | Note
WatchListener: TypeAlias = Callable[[Watched], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult:
    """How the job ended, and what it took."""

    end: JobEnd
    seconds: float
    peak_private_bytes: int
    alerts: int
    timeline: Path
    forced: bool
    """Whether the guard ended it."""
    fullest_gpus: tuple[GpuReading, ...] = ()
    """Each card that was read, when it was fullest."""
