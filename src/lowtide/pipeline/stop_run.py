"""When a training run should leave: a signal, a `.stop` file, or memory that runs out. And what a GPU lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lowtide.events import Listener, Note, StopReason
from lowtide.memory.allocator import give_back
from lowtide.memory.budget import Budget
from lowtide.memory.pressure import Stage
from lowtide.pipeline.folder import take_stop_file
from lowtide.pipeline.guard_memory import MemoryGuard
from lowtide.pipeline.watch_run import ShouldStop
from lowtide.training.gpu_memory import GpuUse, GpuWatch


class RunGuard:
    """Asked after every step; looks at memory once a second."""

    def __init__(
        self,
        folder: Path,
        budget: Budget,
        should_stop: ShouldStop,
        listen: Listener,
        *,
        read_gpu: Callable[[], GpuUse] | None = None,
    ) -> None:
        self._folder = folder
        self._memory = MemoryGuard(budget, listen)
        self._should_stop = should_stop
        self._listen = listen
        self._read_gpu = read_gpu
        self._gpu = GpuWatch()

    def look(self) -> tuple[StopReason, str] | None:
        """None, or why the run should save and leave."""
        reason = self._should_stop()
        if reason is not None:
            return reason, "interrupted" if reason == "interrupted" else "asked to end"
        stop = take_stop_file(self._folder)
        if stop is not None:
            return "terminated", stop
        if not self._memory.is_due:
            return None
        told = self._gpu.see(self._read_gpu()) if self._read_gpu else None
        if told is not None:
            self._listen(Note(text=told, level="warning"))
        return self._judge_memory()

    def _judge_memory(self) -> tuple[StopReason, str] | None:
        stage, why = self._memory.look()
        if stage is Stage.GIVE_BACK:
            give_back()
        return ("terminated", why) if stage is Stage.STOP else None
