"""The memory guard of a run of ours: it measures once a second and judges what follows."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from lowtide.events import Listener, MemoryRead, Note
from lowtide.memory.budget import Budget
from lowtide.memory.pressure import Stage, judge, take_sample

_SAMPLE_SECONDS = 1.0


class MemoryGuard:
    """Reports memory, and each stage of pressure once when it is reached."""

    def __init__(
        self,
        budget: Budget,
        listen: Listener,
        *,
        foreign_bytes: int = 0,
        foreign_pids: Collection[int] = (),
    ) -> None:
        self._budget = budget
        self._listen = listen
        self._foreign_bytes = foreign_bytes
        """Memory that the process held before the run."""
        self._foreign_pids = foreign_pids
        """Child processes from before the run: their memory is not counted."""
        self._sampled = time.monotonic()
        self._stage = Stage.CALM
        self.peak_private_bytes = 0
        """The highest measurement so far, child processes included."""
        self.used_bytes = 0
        """The last measurement, swapped memory included."""

    @property
    def is_due(self) -> bool:
        """Whether a second has passed since the last look."""
        return time.monotonic() - self._sampled >= _SAMPLE_SECONDS

    def look(self) -> tuple[Stage, str]:
        """Measure; the stage of pressure and its reason. The caller acts on it."""
        self._sampled = time.monotonic()
        sample = take_sample(without=self._foreign_pids)
        sample = replace(sample, private_bytes=sample.private_bytes - self._foreign_bytes)
        self.peak_private_bytes = max(self.peak_private_bytes, sample.private_bytes)
        self.used_bytes = sample.private_bytes + sample.swapped_bytes
        self._listen(
            MemoryRead(
                private_bytes=sample.private_bytes,
                mapped_bytes=sample.mapped_bytes,
                swapped_bytes=sample.swapped_bytes,
                available_bytes=sample.available_bytes,
                stalled_percent=sample.stalled_percent,
            )
        )
        stage, why = judge(sample, self._budget)
        if stage > self._stage and stage is not Stage.STOP:
            self._listen(Note(text=why, level="warning"))
        self._stage = stage
        return stage, why
