"""When a training run should leave: a signal, a `.stop` file, or memory that runs out. And what a GPU lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowtide.events import Listener, Note
from lowtide.memory.allocator import give_back
from lowtide.memory.budget import Budget, advise_memory
from lowtide.memory.pressure import END_SHARE, Stage
from lowtide.stages.folder import take_stop_file
from lowtide.stages.guard_memory import MemoryGuard
from lowtide.stages.watch_run import ShouldStop
from lowtide.training.gpu_memory import GpuUse, GpuWatch
from lowtide.training.loop import Stop, WhyStop

_ROOM_SHARE = 0.8
"""Of the `--memory` that is advised, what was used may take: below it nothing is warned of."""


class RunGuard:
    """Asked after every step; looks at memory once a second."""

    def __init__(
        self,
        folder: Path,
        budget: Budget,
        should_stop: ShouldStop,
        listen: Listener,
        *,
        micro_batch: int = 1,
        read_gpu: Callable[[], GpuUse] | None = None,
    ) -> None:
        self._folder = folder
        self._budget = budget
        self._micro_batch = micro_batch
        self._memory = MemoryGuard(budget, listen)
        self._should_stop = should_stop
        self._listen = listen
        self._read_gpu = read_gpu
        self._gpu = GpuWatch()

    def look(self) -> WhyStop:
        """None, or why the run should save and leave."""
        reason = self._should_stop()
        if reason is not None:
            return Stop(reason, "interrupted" if reason == "interrupted" else "asked to end")
        stop = take_stop_file(self._folder)
        if stop is not None:
            return Stop("terminated", stop)
        if not self._memory.is_due:
            return None
        told = self._gpu.see(self._read_gpu()) if self._read_gpu else None
        if told is not None:
            self._listen(Note(text=told, level="warning"))
        return self._judge_memory()

    def _judge_memory(self) -> WhyStop:
        stage, why = self._memory.look()
        if stage is Stage.ASK:
            give_back()
        return Stop("terminated", why, self._memory_remedy()) if stage is Stage.END else None

    def _memory_remedy(self) -> str:
        """The same command would meet the same end: a step needs what it needs."""
        used_bytes = self._memory.used_bytes
        if used_bytes < END_SHARE * self._budget.total_bytes:  # others hold it
            return "free memory on this machine, then run the same command again to go on"
        enough = advise_memory(self._budget.limit, int(used_bytes / _ROOM_SHARE))
        smaller = f" or `--micro-batch {self._micro_batch // 2}`" if self._micro_batch > 1 else ""
        return f"{enough}{smaller} with the same command to go on"
