"""What happens beside the steps of a run: what it says is written down, and stops and memory are watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from lowtide.events import Evaluated, Event, Listener, Note, Sampled, Stepped, Stop
from lowtide.journal import LOG_NAME, rewind
from lowtide.memory.allocator import give_back
from lowtide.memory.budget import Budget, advise_memory
from lowtide.memory.pressure import END_SHARE, Stage
from lowtide.stages.chat import decode_answer, prompt_for_samples
from lowtide.stages.guard_memory import MemoryGuard
from lowtide.stages.keep_journal import Thinned, begin_journal, ending, open_journal
from lowtide.training.gpu_memory import GpuUse, GpuWatch, read_gpu_use
from lowtide.training.loop import OpenRun
from lowtide.training.run_folder import TOKENIZER
from lowtide.training.sample_text import Sampler
from lowtide.training.settings import TrainSettings
from lowtide.training.tensorboard import Board, EventFile

_EVERY_STEP_TO = 10_000
"""Steps up to here are all written; a million then take some 19,000 records instead of 500 MB of them."""
_ROOM_SHARE = 0.8
"""Of the `--memory` that is advised, what was used may take: below it nothing is warned of."""


@contextmanager
def follow_run(run: OpenRun, *, boards: Sequence[Board] = ()) -> Iterator[OpenRun]:
    """The run with a listener that writes everything down, and with a guard that looks at memory too."""
    with ExitStack() as stack:
        if run.ranks.leads:
            rewind(run.folder / LOG_NAME, run.state.step)
            listen = stack.enter_context(
                keep_run_journal(
                    run.folder,
                    run.settings,
                    run.listen,
                    after_step=run.state.step,
                    budget_bytes=run.budget.total_bytes,
                    boards=boards,
                )
            )
            run = replace(run, listen=listen)
        guard = RunGuard(
            run.why_stop,
            run.budget,
            run.listen,
            micro_batch=run.settings.micro_batch,
            read_gpu=partial(read_gpu_use, run.device) if run.device.type == "cuda" else None,
        )
        yield replace(run, why_stop=guard.look, write_sample=_make_sampler(run))


def _make_sampler(run: OpenRun) -> Sampler:
    """Writes the samples. A run on examples has its prompt rendered now, not between two steps."""
    tokenizer, settings = run.folder / TOKENIZER, run.settings
    prompt = None
    if run.ranks.leads and settings.sample_every:
        prompt = prompt_for_samples(tokenizer, context=settings.shape.context, listen=run.listen)
    if prompt is None:
        return Sampler(tokenizer, settings.seed)
    read = partial(decode_answer, prompt)
    return Sampler(tokenizer, settings.seed, prompt=prompt.ids, read=read)


@contextmanager
def keep_run_journal(
    folder: Path,
    settings: TrainSettings,
    listen: Listener,
    *,
    after_step: int,
    budget_bytes: int | None = None,
    boards: Sequence[Board] = (),
) -> Iterator[Listener]:
    """A listener that writes everything down before it passes it on; of the steps those that `is_logged` names.

    A warning brings the step that it follows.
    """
    curves: tuple[Board, ...] = (EventFile(folder, after_step=after_step), *boards)
    last_step = after_step
    with open_journal(folder, listen) as log:
        begin_journal(
            log,
            "train",
            settings=settings.as_record(),
            budget_bytes=budget_bytes,
            step=after_step,
        )
        thinned = Thinned(lambda event, at: log.write_event(event, at=at, step=last_step))
        left_out: tuple[Stepped, float] | None = None

        def follow(event: Event) -> None:
            nonlocal last_step, left_out
            last_step = getattr(event, "step", last_step)
            if isinstance(event, Stepped):
                left_out = None if is_logged(event, settings) else (event, round(time.time(), 3))
            if left_out is not None and isinstance(event, Note) and event.level == "warning":
                step, at = left_out
                log.write_event(step, at=at)
                left_out = None
            if left_out is None or event is not left_out[0]:
                thinned(event)
                for board in curves:
                    _draw(board, event)
            listen(event)

        with ending(log, before=thinned.finish):
            try:
                yield follow
            finally:
                for board in curves:
                    board.close()


def is_logged(event: Stepped, settings: TrainSettings) -> bool:
    """Whether a step is written down. Its number decides, so that an interrupted run has the same steps."""
    number = event.step
    thin = 1 if number <= _EVERY_STEP_TO else 2 * 10 ** (len(str(number)) - 4)
    every = (thin, settings.evaluate_every, settings.sample_every, settings.checkpoint_every)
    return event.skipped or number == event.steps or any(one and number % one == 0 for one in every)


def _draw(board: Board, event: Event) -> None:
    match event:
        case Stepped():
            values = {
                "loss/train": event.loss,
                "learning_rate": event.learning_rate,
                "gradient_norm": event.gradient_norm,
                "speed/tokens_per_second": event.tokens_per_second,
                "memory/private_bytes": float(event.private_bytes),
            }
            if event.gpu_bytes is not None:
                values["memory/gpu_bytes"] = float(event.gpu_bytes)
            if event.mfu is not None:
                values["speed/mfu"] = event.mfu
            board.scalars(event.step, values)
        case Evaluated():
            board.scalars(event.step, {"loss/val": event.loss})
        case Sampled():
            board.text(event.step, "sample", event.text)
        case _:
            pass


class RunGuard:
    """Asked after every step whether to stop; looks at memory once a second. A stop stays asked for."""

    def __init__(
        self,
        asked: Callable[[], Stop | None],
        budget: Budget,
        listen: Listener,
        *,
        micro_batch: int = 1,
        read_gpu: Callable[[], GpuUse] | None = None,
    ) -> None:
        """`asked` tells why a person or a machine wants a stop, if one does."""
        self._asked = asked
        self._budget = budget
        self._micro_batch = micro_batch
        self._memory = MemoryGuard(budget, listen)
        self._listen = listen
        self._read_gpu = read_gpu
        self._gpu = GpuWatch()
        self._stop: Stop | None = None

    def look(self) -> Stop | None:
        """None, or why the run should save and leave."""
        self._stop = self._stop or self._asked() or self._judge_memory()
        return self._stop

    def _judge_memory(self) -> Stop | None:
        if not self._memory.is_due:
            return None
        told = self._gpu.see(self._read_gpu()) if self._read_gpu else None
        if told is not None:
            self._listen(Note(text=told, level="warning"))
        stage, why = self._memory.look()
        if stage is Stage.ASK:
            give_back()
        return Stop("terminated", why, self._memory_remedy()) if stage is Stage.END else None

    def _memory_remedy(self) -> str:
        """The same command would meet the same end: a step needs what it needs."""
        used_bytes = self._memory.used_bytes
        if used_bytes < END_SHARE * self._budget.total_bytes:  # others hold it
            return "free memory on this machine, then run the same command again to resume"
        enough = advise_memory(self._budget.limit, int(used_bytes / _ROOM_SHARE))
        smaller = f" or `--micro-batch {self._micro_batch // 2}`" if self._micro_batch > 1 else ""
        return f"{enough}{smaller} with the same command to resume"
