"""Watches the memory of our own runs: reads it once a second, reports it, and says what must follow."""

from __future__ import annotations

import time
from collections.abc import Collection

from lowtide.events import Listener, Note
from lowtide.memory.budget import Budget
from lowtide.memory.meter import measure_tree
from lowtide.memory.pressure import Stage, Steps, budget_thresholds, judge
from lowtide.memory.proc_files import machine_memory, stalled_percent
from lowtide.memory.reading import MemoryRead

_SAMPLE_SECONDS = 1.0


class MemoryGuard:
    """Reports how much memory is used, and each stage once when it is reached."""

    def __init__(
        self,
        budget: Budget,
        listen: Listener,
        *,
        foreign_bytes: int = 0,
        foreign_pids: Collection[int] = (),
    ) -> None:
        self._thresholds = budget_thresholds(budget.total_bytes, machine_memory()[1])
        self._steps = Steps(self._thresholds)
        self._listen = listen
        self._foreign_bytes = foreign_bytes
        """Memory that the process held before the run."""
        self._foreign_pids = foreign_pids
        """Child processes from before the run: their memory is not counted."""
        self._sampled = time.monotonic()
        self.peak_private_bytes = 0
        """The highest measurement so far, child processes included."""
        self.used_bytes = 0
        """At the last look, swapped pages included."""

    @property
    def is_due(self) -> bool:
        """Whether a second has passed since the last look."""
        return time.monotonic() - self._sampled >= _SAMPLE_SECONDS

    def look(self) -> tuple[Stage, str]:
        """The stage and its reason; the run itself gives memory back or stops. Takes milliseconds."""
        self._sampled = time.monotonic()
        use = measure_tree(without=self._foreign_pids)
        read = MemoryRead(
            private_bytes=use.private_bytes - self._foreign_bytes,
            mapped_bytes=use.mapped_file_bytes,
            swapped_bytes=use.swapped_bytes,
            available_bytes=machine_memory()[0],
            stalled_percent=stalled_percent(),
        )
        self.peak_private_bytes = max(self.peak_private_bytes, read.private_bytes)
        self.used_bytes = read.used_bytes
        self._listen(read)
        alert = self._steps.see(read)
        if alert is not None and alert.stage is not Stage.END:
            self._listen(Note(text=alert.reason, level="warning"))
        return judge(read, self._thresholds)
