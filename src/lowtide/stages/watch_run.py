"""What happens between two units of work: progress is reported, checkpoints taken, memory and stops watched."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lowtide.errors import StoppedError
from lowtide.events import (
    Advanced,
    Checkpointed,
    Event,
    Learnt,
    Listener,
    Stop,
    StopReason,
)
from lowtide.memory.allocator import give_back
from lowtide.memory.meter import private_bytes
from lowtide.memory.pressure import Stage
from lowtide.source.blocks import Block
from lowtide.stages.folder import STOP_NAME, find_stop
from lowtide.stages.guard_memory import MemoryGuard

if TYPE_CHECKING:
    from lowtide.stages.stage import StagePlan, Work

ShouldStop = Callable[[], StopReason | None]

_TELL_SECONDS = 0.2
_DEAF_SECONDS = 1.0
"""After so long without a block, reading looks for stops: an earlier stop must not undo all progress."""
_PATIENCE_SECONDS = 0.7


def never_stop() -> StopReason | None:
    """Nobody asks this run to stop."""
    return None


class Watch:
    """Called after every block. Time decides when it acts, never what is written."""

    def __init__(
        self,
        work: Work[object],
        plan: StagePlan,
        *,
        listen: Listener,
        should_stop: ShouldStop,
        started: float,
        checkpoint_seconds: float,
    ) -> None:
        self._work = work
        self._plan = plan
        self.listen = listen
        self._should_stop = should_stop
        self._started = started
        self._checkpoint_seconds = checkpoint_seconds
        self._resumed_bytes = work.done_bytes
        self._stop_seen_at = math.inf
        """When a pending stop was first noticed; infinity when there is none."""
        self._told = -math.inf  # stops asked for before the first block are obeyed after it
        self._checkpointed = self._began = time.monotonic()
        self._guard = MemoryGuard(
            plan.budget,
            listen,
            foreign_bytes=plan.foreign_bytes,
            foreign_pids=plan.foreign_pids,
        )
        self.peak_private_bytes = 0

    def after_block(self, *, checkpoint_is_due: bool) -> None:
        """Report, judge memory and take a checkpoint, each if it is due; StoppedError if it is time to stop."""
        self._look(self._how_far)
        if checkpoint_is_due or time.monotonic() - self._checkpointed >= self._checkpoint_seconds:
            self._work.checkpoint()
            self._checkpointed = time.monotonic()
            self.listen(
                Checkpointed(done_bytes=self._work.done_bytes, tokens=self._work.counts.tokens)
            )

    def while_reading(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks as they come. Where reading is slow, a stop is obeyed before the first block is done.

        A stop waits a moment for the block that is being worked on, so that it need not be done again.
        """
        for block in blocks:
            self.while_waiting()
            yield block

    def while_waiting(self) -> None:
        """StoppedError if a stop is pending for `_PATIENCE_SECONDS`, and no block ended for `_DEAF_SECONDS`."""
        now = time.monotonic()
        if now - max(self._told, self._began) <= _DEAF_SECONDS:
            return
        if now - self._stop_seen_at > _PATIENCE_SECONDS:
            self._obey_stops()
        asked = self._should_stop() or os.path.lexists(self._work.folder / STOP_NAME)
        self._stop_seen_at = min(self._stop_seen_at, now) if asked else math.inf

    def after_slice(self, merges: int, most_merges: int) -> None:
        """Report progress and judge memory while merges are learned, which takes no checkpoint."""

        def how_far(used_bytes: int, seconds: float) -> Learnt:
            return Learnt(
                merges=merges,
                most_merges=most_merges,
                private_bytes=used_bytes,
                budget_bytes=self._plan.budget.total_bytes,
                elapsed_seconds=seconds,
            )

        self._look(how_far)

    @property
    def elapsed_seconds(self) -> float:
        """Wall time since the run began."""
        return time.monotonic() - self._started

    def after_all(self) -> None:
        """Report that all input is done. If there was no block, memory is measured here for the first time."""
        used_bytes = private_bytes() - self._plan.foreign_bytes
        self.peak_private_bytes = max(self.peak_private_bytes, used_bytes)
        self.listen(self._how_far(used_bytes, self.elapsed_seconds))

    def _look(self, how_far: Callable[[int, float], Event]) -> None:
        used_bytes = private_bytes() + self._work.take_child_bytes()
        used_bytes -= self._plan.foreign_bytes
        self.peak_private_bytes = max(self.peak_private_bytes, used_bytes)
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            self.listen(how_far(used_bytes, now - self._started))
            self._obey_stops()
        if self._guard.is_due:
            self._judge_memory()

    def _how_far(self, used_bytes: int, seconds: float) -> Advanced:
        return Advanced(
            done_bytes=self._work.done_bytes,
            total_bytes=self._plan.total_bytes,
            documents=self._work.counts.documents,
            tokens=self._work.counts.tokens,
            private_bytes=used_bytes,
            budget_bytes=self._plan.budget.total_bytes,
            elapsed_seconds=seconds,
            resumed_bytes=self._resumed_bytes,
        )

    def _obey_stops(self) -> None:
        stop = find_stop(self._work.folder, self._should_stop())
        if stop is not None:
            raise self._stopped(stop)

    def _judge_memory(self) -> None:
        """Note pressure, then empty caches, then stop: the kernel must not have to kill."""
        stage, why = self._guard.look()
        self.peak_private_bytes = max(self.peak_private_bytes, self._guard.peak_private_bytes)
        if stage is Stage.ASK:
            self._work.give_back()
            give_back()
        if stage is Stage.END:
            raise self._stopped(Stop("terminated", why))

    def _stopped(self, stop: Stop) -> StoppedError:
        if (stream := self._plan.stream) is not None:
            once = f"{stream.name} cannot be read again: pass `{stream.restart}` to begin again"
            stop = stop._replace(remedy=once)
        return stop.error(f"after {self._work.in_words}")
