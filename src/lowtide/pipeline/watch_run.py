"""What happens beside the work: progress told, checkpoints due, memory watched, stops obeyed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol

from lowtide.errors import InterruptedRun, StoppedError
from lowtide.events import (
    Advanced,
    Checkpointed,
    Event,
    Learnt,
    Listener,
    StopReason,
)
from lowtide.memory.allocator import give_back
from lowtide.memory.budget import Budget
from lowtide.memory.meter import private_bytes
from lowtide.memory.pressure import Stage
from lowtide.pipeline.folder import STOP_NAME, take_stop_file
from lowtide.pipeline.guard_memory import MemoryGuard
from lowtide.pipeline.job import Counts
from lowtide.source.blocks import Block

ShouldStop = Callable[[], StopReason | None]

_TELL_SECONDS = 0.2
_DEAF_SECONDS = 1.0
"""If stops were not looked at for so long, reading looks: one asked for earlier must not undo all progress."""
_PATIENCE_SECONDS = 0.7
_CHECKPOINT_SECONDS = 10.0


class WatchedRun(Protocol):
    """A run that can be stored between two blocks."""

    @property
    def folder(self) -> Path: ...
    @property
    def done_bytes(self) -> int: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def in_words(self) -> str:
        """How far it has come, such as `98.1M tokens`."""

    def checkpoint(self) -> None: ...


class Setting(Protocol):
    """What was decided before the run began."""

    @property
    def budget(self) -> Budget: ...
    @property
    def foreign_bytes(self) -> int: ...
    @property
    def foreign_pids(self) -> Collection[int]: ...
    @property
    def input_bytes(self) -> int: ...
    @property
    def reads_stdin(self) -> bool: ...


class Renewable(Protocol):
    """Something that can give back what it keeps for speed."""

    def renew(self) -> None: ...

    def take_apart_bytes(self) -> int:
        """Peak memory of its child processes since the last call."""


def never_stop() -> StopReason | None:
    """Nobody asks this run to stop."""
    return None


class Watch:
    """Called after every block. The clock decides when it acts, never what is written."""

    def __init__(
        self,
        run: WatchedRun,
        prepared: Setting,
        *,
        listen: Listener,
        should_stop: ShouldStop,
        started: float,
        checkpoint_seconds: float = _CHECKPOINT_SECONDS,
    ) -> None:
        self._run = run
        self._prepared = prepared
        self._listen = listen
        self._should_stop = should_stop
        self._started = started
        self._checkpoint_seconds = checkpoint_seconds
        self._resumed_bytes = run.done_bytes
        self._stop_seen_at = math.inf
        """When a pending stop was first noticed; infinity when there is none."""
        self._told = -math.inf  # stops asked for before the first block are obeyed after it
        self._checkpointed = self._began = time.monotonic()
        self._guard = MemoryGuard(
            prepared.budget,
            listen,
            foreign_bytes=prepared.foreign_bytes,
            foreign_pids=prepared.foreign_pids,
        )
        self.peak_private_bytes = 0

    def after_block(self, encoder: Renewable, *, checkpoint_is_due: bool) -> None:
        """Tell, checkpoint, judge; raises StoppedError when it is time to go."""
        self._look(self._how_far, encoder)
        if checkpoint_is_due or time.monotonic() - self._checkpointed >= self._checkpoint_seconds:
            self._run.checkpoint()
            self._checkpointed = time.monotonic()
            self._listen(
                Checkpointed(done_bytes=self._run.done_bytes, tokens=self._run.counts.tokens)
            )

    def while_reading(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks as they come. Where reading is slow, a stop is obeyed before the first one is done.

        A stop waits a moment for the block that is under way: what it holds need not be done again.
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
        asked = self._should_stop() or os.path.lexists(self._run.folder / STOP_NAME)
        self._stop_seen_at = min(self._stop_seen_at, now) if asked else math.inf

    def after_slice(self, encoder: Renewable, merges: int, most_merges: int) -> None:
        """The same while merges are learnt, which is not worth a checkpoint."""

        def how_far(used_bytes: int, seconds: float) -> Learnt:
            return Learnt(
                merges=merges,
                most_merges=most_merges,
                private_bytes=used_bytes,
                budget_bytes=self._prepared.budget.total_bytes,
                elapsed_seconds=seconds,
            )

        self._look(how_far, encoder)

    def after_all(self) -> None:
        """The last that is told of the input: all of it. Without a block, this is the peak."""
        used_bytes = private_bytes() - self._prepared.foreign_bytes
        self.peak_private_bytes = max(self.peak_private_bytes, used_bytes)
        self._listen(self._how_far(used_bytes, time.monotonic() - self._started))

    def _look(self, how_far: Callable[[int, float], Event], encoder: Renewable) -> None:
        used_bytes = private_bytes() + encoder.take_apart_bytes()
        used_bytes -= self._prepared.foreign_bytes
        self.peak_private_bytes = max(self.peak_private_bytes, used_bytes)
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            self._listen(how_far(used_bytes, now - self._started))
            self._obey_stops()
        if self._guard.is_due:
            self._judge_memory(encoder)

    def _how_far(self, used_bytes: int, seconds: float) -> Advanced:
        return Advanced(
            done_bytes=self._run.done_bytes,
            total_bytes=self._prepared.input_bytes,
            documents=self._run.counts.documents,
            tokens=self._run.counts.tokens,
            private_bytes=used_bytes,
            budget_bytes=self._prepared.budget.total_bytes,
            elapsed_seconds=seconds,
            resumed_bytes=self._resumed_bytes,
        )

    def _obey_stops(self) -> None:
        reason = self._should_stop()
        if reason == "interrupted":
            raise self._stopped("interrupted", InterruptedRun)
        if reason == "terminated":
            raise self._stopped("asked to end", StoppedError)
        stop = take_stop_file(self._run.folder)
        if stop is not None:
            raise self._stopped(stop, StoppedError)

    def _judge_memory(self, encoder: Renewable) -> None:
        """note → give caches back → seal and stop; the kernel is never left to decide."""
        stage, why = self._guard.look()
        self.peak_private_bytes = max(self.peak_private_bytes, self._guard.peak_private_bytes)
        if stage is Stage.GIVE_BACK:
            encoder.renew()
            give_back()
        if stage is Stage.STOP:
            raise self._stopped(why, StoppedError)

    def _stopped(self, why: str, kind: type[StoppedError]) -> StoppedError:
        remedy = "run the same command again to go on"
        if self._prepared.reads_stdin:
            remedy = "standard input cannot be read again: pass `--restart` to begin again"
        return kind(f"stopped after {self._run.in_words}: {why}", remedy=remedy)
