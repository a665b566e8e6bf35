"""What happens beside the work: progress told, checkpoints due, memory watched, stops obeyed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from lowtide.errors import InterruptedRun, StoppedError
from lowtide.events import Advanced, Checkpointed, Listener, Note
from lowtide.memory.allocator import give_back
from lowtide.memory.meter import private_bytes
from lowtide.memory.pressure import Stage, judge, take_sample
from lowtide.pipeline.encode_blocks import BlockEncoder
from lowtide.pipeline.folder import take_stop_file
from lowtide.pipeline.prepare import Prepared
from lowtide.pipeline.shard_run import ShardRun
from lowtide.units import format_count

StopReason = Literal["interrupted", "terminated"]
ShouldStop = Callable[[], StopReason | None]

_TELL_SECONDS = 0.2
_SAMPLE_SECONDS = 1.0
_CHECKPOINT_SECONDS = 10.0


def never_stop() -> StopReason | None:
    """Nobody asks this run to stop."""
    return None


class Watch:
    """Called after every block. The clock decides when it acts, never what is written."""

    def __init__(
        self,
        run: ShardRun,
        prepared: Prepared,
        *,
        listen: Listener,
        should_stop: ShouldStop,
        started: float,
    ) -> None:
        self._run = run
        self._prepared = prepared
        self._listen = listen
        self._should_stop = should_stop
        self._started = started
        self._resumed_bytes = run.done_bytes
        self._told = -math.inf  # stops asked for before the first block are obeyed after it
        self._sampled = self._checkpointed = time.monotonic()
        self._stage = Stage.CALM
        self.peak_private_bytes = 0

    def after_block(self, encoder: BlockEncoder, *, checkpoint_is_due: bool) -> None:
        """Tell, checkpoint, judge; raises StoppedError when it is time to go."""
        used_bytes = private_bytes() - self._prepared.foreign_bytes
        self.peak_private_bytes = max(self.peak_private_bytes, used_bytes)
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            self._tell(used_bytes, now)
            self._obey_stops()
        if now - self._sampled >= _SAMPLE_SECONDS:
            self._sampled = now
            self._judge_memory(encoder)
        if checkpoint_is_due or now - self._checkpointed >= _CHECKPOINT_SECONDS:
            self._run.checkpoint()
            self._checkpointed = time.monotonic()
            self._listen(
                Checkpointed(done_bytes=self._run.done_bytes, tokens=self._run.counts.tokens)
            )

    def _tell(self, used_bytes: int, now: float) -> None:
        self._listen(
            Advanced(
                done_bytes=self._run.done_bytes,
                total_bytes=self._prepared.input_bytes,
                documents=self._run.counts.documents,
                tokens=self._run.counts.tokens,
                private_bytes=used_bytes,
                budget_bytes=self._prepared.budget.total_bytes,
                elapsed_seconds=now - self._started,
                resumed_bytes=self._resumed_bytes,
            )
        )

    def _obey_stops(self) -> None:
        reason = self._should_stop()
        if reason == "interrupted":
            raise self._stopped("interrupted", InterruptedRun)
        if reason == "terminated":
            raise self._stopped("asked to end", StoppedError)
        if take_stop_file(self._run.folder):
            raise self._stopped("a .stop file was found", StoppedError)

    def _judge_memory(self, encoder: BlockEncoder) -> None:
        """note → give caches back → seal and stop; the kernel is never left to decide."""
        sample = take_sample()
        own_bytes = sample.private_bytes - self._prepared.foreign_bytes
        stage, why = judge(replace(sample, private_bytes=own_bytes), self._prepared.budget)
        if stage > self._stage and stage is not Stage.STOP:
            self._listen(Note(text=why, level="warning"))
        self._stage = stage
        if stage is Stage.GIVE_BACK:
            encoder.renew()
            give_back()
        if stage is Stage.STOP:
            raise self._stopped(why, StoppedError)

    def _stopped(self, why: str, kind: type[StoppedError]) -> StoppedError:
        remedy = "run the same command again to go on"
        if self._prepared.reads_stdin:
            remedy = "standard input cannot be read again: pass `--restart` to begin again"
        return kind(
            f"stopped after {format_count(self._run.counts.tokens)} tokens: {why}", remedy=remedy
        )
