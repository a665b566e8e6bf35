"""The loop: step after step, with evaluations, samples and checkpoints when they are due, and a clean end.

    batch → step → told, logged, judged → asked to stop, or something due? evaluate, sample, save → leave

It is handed what it needs to know of the world: whether to stop, whom to tell, how to write a sample.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import Tensor

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import DoesNotFitError, InterruptedRun, LowtideError, StoppedError
from lowtide.events import Evaluated, Listener, Note, Sampled, Saved, Stepped
from lowtide.memory.meter import private_bytes
from lowtide.model.gpt import GPT
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.checkpoint import RunState, find_checkpoints, prune, write_checkpoint
from lowtide.training.data_parallel import Ranks, any_rank, wait_for_all
from lowtide.training.evaluate import evaluate
from lowtide.training.settings import RunSettings
from lowtide.training.step import StepResult, StepUnderWay, refuse_unknown_tokens, start_step
from lowtide.training.watch_loss import LossWatch

StopReason = Literal["interrupted", "terminated"]
_SMOOTHING = 0.1
_STARTING_STEPS = 3
"""They compile, and say nothing about the time that is left: only the last of them is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the loop is told of the world."""

    run: Path
    ranks: Ranks
    listen: Listener
    why_stop: Callable[[], tuple[StopReason, str] | None]
    """Asked after every step: None, or a reason and its sentence."""
    write_sample: Callable[[GPT], str | None]
    peak_flops: float | None = None
    """Of the card, by its own data sheet."""


class Loop:
    """One run in one process. Holds model, optimizer, and where it stands."""

    def __init__(
        self,
        settings: RunSettings,
        model: GPT,
        optimizer: torch.optim.Optimizer,
        datasets: tuple[TokenDataset, TokenDataset | None],
        state: RunState,
        around: Surroundings,
    ) -> None:
        self.settings = settings
        self.model = model
        self.optimizer = optimizer
        self.train, self.val = datasets
        self.state = state
        self._around = around
        self._watch = LossWatch.from_record(
            state.loss_watch,
            warmup_steps=settings.warmup_steps,
            vocabulary_size=settings.shape.vocabulary_size,
        )
        self._device = next(model.parameters()).device
        self._under_way: deque[StepUnderWay] = deque()
        self._ahead = steps_ahead(self._device)
        self._clock = self._step_seconds = 0.0
        self._told = 0
        self._last_saved = state.step

    def run(self) -> RunState:
        """To the last step; StoppedError after a clean stop before it."""
        loader = self.train.loader(
            self.settings.windows_per_step,
            rank=self._around.ranks.rank,
            world_size=self._around.ranks.world_size,
        )
        if self.state.loader:
            loader.load_state_dict(dict(self.state.loader))
        batches = iter(loader)
        self._clock = time.perf_counter()
        try:
            while self.state.step < self.settings.steps:
                x, y = next(batches)
                self._start_step((x, y), _plain(loader.state_dict()))
                self._go_on()
        finally:
            loader.close()
        return self.state

    def _start_step(self, batch: tuple[Tensor, Tensor], position: JsonObject) -> None:
        refuse_unknown_tokens(*batch, self.settings.shape)  # before they leave the CPU: no waiting
        x, y = (one.to(self._device, non_blocking=True) for one in batch)
        self._under_way.append(self._step_that_fits((x, y)))
        self.state = replace(self.state, step=self.state.step + 1, loader=position)

    def _go_on(self) -> None:
        """What earlier steps came to; where something is due, all of them are waited for."""
        self._catch_up(self._ahead)
        asked = self._asked_to_stop()
        if asked is None and not self._is_anything_due():
            return
        self._catch_up(0)
        self._do_what_is_due()
        if asked is not None:
            self._leave(*asked)
        self._clock = time.perf_counter()

    def _catch_up(self, ahead: int) -> None:
        """Tell and judge steps until only `ahead` are under way."""
        while len(self._under_way) > ahead:
            result = self._under_way.popleft().wait()
            step, now = self.state.step - len(self._under_way), time.perf_counter()
            skipped = self.state.skipped_steps + result.skipped
            self.state = replace(self.state, skipped_steps=skipped)
            self._tell(step, result, now - self._clock)  # waiting for data is part of a step
            self._clock = now
            self._judge(step, result)

    def _step_that_fits(self, batch: tuple[Tensor, Tensor]) -> StepUnderWay:
        """Out of memory halves the part that goes through the model at a time: the step stays the same."""
        while True:
            try:
                return start_step(self.model, self.optimizer, self.settings, self.state.step, batch)
            except torch.OutOfMemoryError as cause:
                self.optimizer.zero_grad(set_to_none=True)
                self._halve(cause)

    def _halve(self, cause: torch.OutOfMemoryError) -> None:
        torch.cuda.empty_cache()
        micro = self.settings.micro_batch
        if micro == 1 or self._around.ranks.world_size > 1:
            self._give_up(cause)
        self.settings = replace(self.settings, micro_batch=micro // 2)
        text = (
            f"the GPU is out of memory with {micro} windows at a time: going on with {micro // 2}, "
            f"twice as often; a step still has {self.settings.batch_tokens} tokens"
        )
        self._around.listen(Note(text=text, level="warning"))

    def _give_up(self, cause: torch.OutOfMemoryError) -> NoReturn:
        """What was learnt is saved; where there is nothing yet, the plan was wrong."""
        problem = (
            f"a part of {self.settings.micro_batch} windows does not fit into the GPU's memory"
        )
        remedy = (
            "pass `--recipe lean`, a smaller `--micro-batch`, a smaller model or a shorter context"
        )
        if not self.state.step or self._around.ranks.world_size > 1:
            raise DoesNotFitError(problem, remedy=remedy) from cause
        self._catch_up(0)
        self._save_once()
        raise StoppedError(
            f"stopped after step {self.state.step} of {self.settings.steps}: {problem} any more",
            remedy="look at `nvidia-smi` for what others hold of it, then run the same command again to go on; "
            "`--micro-batch` and `--recipe` may change",
        ) from cause

    def _tell(self, step: int, result: StepResult, seconds: float) -> None:
        self._told += 1
        share = 1.0 if self._told <= _STARTING_STEPS else _SMOOTHING
        self._step_seconds += share * (seconds - self._step_seconds)
        settings = self.settings
        rate = settings.batch_tokens / seconds
        flops = rate * settings.shape.flops_per_token / self._around.ranks.world_size
        on_gpu = self._device.type == "cuda"
        peak = self._around.peak_flops
        self._around.listen(
            Stepped(
                step=step,
                steps=settings.steps,
                loss=result.loss,
                learning_rate=result.learning_rate,
                gradient_norm=result.gradient_norm,
                seconds=seconds,
                tokens=step * settings.batch_tokens,
                tokens_per_second=rate,
                epoch=step * settings.windows_per_step / self.train.window_count,
                private_bytes=private_bytes(),
                seconds_left=self._step_seconds * (settings.steps - step),
                gpu_bytes=torch.cuda.max_memory_allocated(self._device) if on_gpu else None,
                mfu=flops / peak if peak else None,
                skipped=result.skipped,
            )
        )

    def _judge(self, step: int, result: StepResult) -> None:
        for verdict in self._watch.see(step, result.loss, result.gradient_norm):
            if verdict.action == "end":
                raise LowtideError(verdict.sentence, remedy=self._last_good())
            self._around.listen(Note(text=verdict.sentence, level="warning"))

    def _last_good(self) -> str:
        found = find_checkpoints(self._around.run)
        if not found:
            return "start again with a lower learning rate or a longer warm-up"
        return (
            f"the last good checkpoint is {found[-1].name}: the same command goes on from it; should it "
            "happen again, start a new run with a lower learning rate or a longer warm-up"
        )

    def _is_anything_due(self) -> bool:
        settings, step = self.settings, self.state.step
        every = (settings.evaluate_every, settings.sample_every, settings.checkpoint_every)
        return step == settings.steps or any(_is_due(step, one, ends=False) for one in every)

    def _do_what_is_due(self) -> None:
        settings, step = self.settings, self.state.step
        ends = step == settings.steps
        best = False
        if self.val is not None and _is_due(step, settings.evaluate_every, ends):
            best = self._evaluate(self.val)
        if _is_due(step, settings.sample_every, ends):
            self._sample()
        if _is_due(step, settings.checkpoint_every, ends or best):
            self.save()

    def _evaluate(self, val: TokenDataset) -> bool:
        """Whether it is the best so far."""
        loss = evaluate(self.model, val, self.settings, self._around.ranks)
        self._around.listen(Evaluated(step=self.state.step, loss=loss))
        best = self.state.best_loss is None or loss < self.state.best_loss
        if best and math.isfinite(loss):
            self.state = replace(self.state, best_loss=loss, best_step=self.state.step)
            return True
        return False

    def _sample(self) -> None:
        if not self._around.ranks.leads:
            return
        text = self._around.write_sample(self.model)
        if text is not None:
            self._around.listen(Sampled(step=self.state.step, text=text))

    def save(self) -> None:
        """A checkpoint of where the run stands; ranks wait until it does."""
        started = time.perf_counter()
        self._refuse_poison()
        state = self.state = replace(self.state, loss_watch=_plain(self._watch.as_record()))
        if self._around.ranks.leads:
            path = write_checkpoint(self._around.run, self.model, self.optimizer, state)
            prune(self._around.run, state.best_step)
            seconds = time.perf_counter() - started
            self._around.listen(Saved(step=state.step, path=str(path), seconds=seconds))
        wait_for_all()
        self._last_saved = state.step

    def _refuse_poison(self) -> None:
        """Weights that overflowed must not be kept as the last good ones."""
        if not all(bool(one.isfinite().all()) for one in self.model.parameters()):
            raise LowtideError(
                f"the weights are not finite at step {self.state.step}", remedy=self._last_good()
            )

    def _asked_to_stop(self) -> tuple[StopReason, str] | None:
        """None also after the last step: such a run is finished."""
        asked = self._around.why_stop()
        if self._around.ranks.world_size > 1:
            stops = any_rank(asked is not None, self._device)
            asked = (asked or ("terminated", "another rank stops")) if stops else None
        return asked if self.state.step < self.settings.steps else None

    def _save_once(self) -> None:
        if self._last_saved != self.state.step:
            self.save()

    def _leave(self, reason: StopReason, sentence: str) -> NoReturn:
        self._save_once()
        kind = InterruptedRun if reason == "interrupted" else StoppedError
        raise kind(
            f"stopped after step {self.state.step} of {self.settings.steps}: {sentence}",
            remedy="run the same command again to go on",
        )


def steps_ahead(device: torch.device) -> int:
    """How many steps a device has been told of when an earlier one is read: a GPU never waits for a command."""
    return 1 if device.type == "cuda" else 0


def _is_due(step: int, every: int, ends: bool) -> bool:
    return bool(every) and (ends or step % every == 0)


def _plain(state: dict[str, object]) -> JsonObject:
    return state  # type: ignore[return-value] # plain values by its own promise
