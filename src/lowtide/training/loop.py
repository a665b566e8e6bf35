"""The loop: step after step, with evaluations, samples and checkpoints when they are due, and a clean end.

batch → step → logged and judged → a stop, or something due? evaluate, save, sample → leave
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch

from lowtide.dataset.loader import Loader
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import DoesNotFitError, LowtideError, StoppedError, UsageError
from lowtide.events import Evaluated, Listener, Note, Sampled, Saved, Stop
from lowtide.memory.budget import Budget
from lowtide.model.gpt import GPT
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.checkpoint import (
    RunState,
    bad_state,
    checkpoint_of,
    prune,
    resume_hint,
    write_checkpoint,
    write_state,
)
from lowtide.training.data_parallel import Ranks, wait_for_all
from lowtide.training.evaluate import evaluate
from lowtide.training.pace import Pace
from lowtide.training.settings import TrainSettings
from lowtide.training.step import (
    Batch,
    StepResult,
    StepUnderWay,
    fill_up,
    refuse_unknown_tokens,
    start_step,
)
from lowtide.training.watch_loss import LossWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that can be trained: its folder is locked, and its model is on its device."""

    folder: Path
    settings: TrainSettings
    model: GPT
    optimizer: torch.optim.Optimizer
    state: RunState
    """Where the newest checkpoint stands."""
    ranks: Ranks
    budget: Budget
    listen: Listener
    write_sample: Callable[[GPT, Callable[[], bool]], str | None]
    """Its second argument says when to drop the sample."""
    why_stop: Callable[[], Stop | None] = lambda: None
    """Asked after every step, and by a single rank also between the micro-batches of one."""
    peak_flops: float | None = None
    """The GPU's peak arithmetic speed by its data sheet."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


class Loop:
    """Steps of one run in one process; `state` and `settings` are as the last of them has left them."""

    def __init__(
        self,
        run: OpenRun,
        datasets: tuple[TokenDataset, TokenDataset | None],
        *,
        windows_before: int = 0,
    ) -> None:
        """`datasets` are for training and validation. `windows_before` were trained on in earlier data, and
        count among the tokens so far."""
        self.settings = run.settings
        self.model = run.model
        self.optimizer = run.optimizer
        self.train, self.val = datasets
        self.state = run.state
        self._run = run
        self._alone = run.ranks.world_size == 1
        self._watch = LossWatch.from_record(
            run.state.loss_watch,
            warmup_steps=run.settings.warmup_steps,
            vocabulary_size=run.settings.shape.vocabulary_size,
        )
        self._device = run.device
        self.pace = Pace(
            run.settings,
            self._device,
            epoch_windows=self.train.window_count,
            world_size=run.ranks.world_size,
            position=run.state.position,
            windows_before=windows_before,
            peak_flops=run.peak_flops,
        )
        self._under_way: deque[tuple[StepUnderWay, int]] = deque()
        """Each with the position of the data after it."""
        self._ahead = steps_ahead(self._device)
        self._clock = 0.0
        self._last_saved = run.state.step
        self._owes_checkpoint = False
        self._own_stop: Stop | None = None
        """Why this rank is to stop; all stop once a step has told them."""
        self._stop: Stop | None = None

    def run(self) -> RunState:
        """To the last step; StoppedError after a clean stop before it."""
        loader = self.train.loader(
            self.settings.windows_per_step,
            rank=self._run.ranks.rank,
            world_size=self._run.ranks.world_size,
            epochs=self.settings.epochs,
            device=None if self._device.type == "cuda" else "cpu",  # None: pinned, for us to move
            documents=self.settings.attention == "document",
        )
        if self.state.loader:
            self._go_to_position(loader)
        if self.state.owes_evaluation:
            self._evaluate_again()
        batches = iter(loader)
        self._clock = time.perf_counter()
        try:
            while self.state.step < self.settings.steps:
                self._start_step(next(batches), _plain(loader.state_dict()))
                self._finish_earlier_steps()
        finally:
            loader.close()
        return self.state

    def _go_to_position(self, loader: Loader) -> None:
        """Where the checkpoint stood in the data; VerificationError where that cannot be."""
        state, settings = self.state, self.settings
        checkpoint = checkpoint_of(self._run.folder, state.step)
        try:
            loader.load_state_dict(dict(state.loader))
        except UsageError as cause:
            raise bad_state(checkpoint, cause.problem) from cause
        too_far = state.position > state.step * settings.windows_per_step
        if settings.epochs is not None:  # else the data would end before the steps do
            too_far |= len(loader) < settings.steps - state.step
        if too_far:
            raise bad_state(checkpoint, f"{state.position} windows are more than its steps take")

    def _start_step(self, batch: Batch, position: JsonObject) -> None:
        batch = fill_up(batch, self._fewest_rows)
        refuse_unknown_tokens(batch[0], batch[1], self.settings.shape)  # on the CPU: no waiting
        moved = tuple(one.to(self._device, non_blocking=True) for one in batch)
        started = self._step_that_fits(moved)
        if started is None:
            self._catch_up(0)
            self._leave()
        self.state = replace(self.state, step=self.state.step + 1, loader=position)
        self._under_way.append((started, self.state.position))

    @property
    def _fewest_rows(self) -> int:
        """One, for gradients to add up; compiled, all, for another number would be compiled anew."""
        whole = self.settings.windows_per_step // self._run.ranks.world_size
        return whole if self.settings.compiled else 1

    def _step_that_fits(self, batch: Batch) -> StepUnderWay | None:
        """Out of memory halves the part that goes through the model at a time: the step stays the same.

        None for a step that was dropped half-way, because a stop was asked for: it was never begun.
        """
        while True:
            try:
                return start_step(
                    self.model,
                    self.optimizer,
                    self.settings,
                    self.state.step,
                    batch,
                    leaving=self._own_stop is not None,
                    drop=self._drop,
                )
            except torch.OutOfMemoryError:
                pass  # no more in here: the error holds all that the step had made
            self._halve()

    def _finish_earlier_steps(self) -> None:
        """What earlier steps came to; where something is due, all of them are waited for."""
        self._catch_up(self._ahead)
        if not self._is_asked() and not self._is_anything_due():
            return
        self._catch_up(0)
        self._do_what_is_due()
        if self._is_asked() and (
            self.state.step < self.settings.steps or self.state.owes_evaluation
        ):
            self._leave()
        self._clock = time.perf_counter()

    def _drop(self) -> bool:
        """Whether to leave what is under way unfinished: one of several ranks must not."""
        return self._alone and self._is_asked()

    def _is_asked(self) -> bool:
        """Whether to leave: at once where one is alone, else when all ranks have heard of it."""
        if self._own_stop is None:
            self._own_stop = self._run.why_stop()
            if self._own_stop is not None:
                self._run.listen(
                    Note(text=f"stopping: {self._own_stop.sentence}; a checkpoint comes first")
                )
        if self._alone:
            self._stop = self._own_stop
        return self._stop is not None

    def _catch_up(self, ahead: int) -> None:
        """Tell and judge steps until only `ahead` are under way."""
        while len(self._under_way) > ahead:
            started, position = self._under_way.popleft()
            result = started.wait()
            step, now = self.state.step - len(self._under_way), time.perf_counter()
            skipped = self.state.skipped_steps + result.skipped
            self.state = replace(self.state, skipped_steps=skipped)
            seconds = now - self._clock  # waiting for data is part of a step
            self._run.listen(self.pace.describe(step, result, seconds, position=position))
            self._clock = now
            self._judge(step, result)
            if result.leaving and not self._alone:
                self._stop = self._own_stop or Stop("terminated", "another rank stops")

    def _judge(self, step: int, result: StepResult) -> None:
        for verdict in self._watch.see(step, result.loss, result.gradient_norm):
            if verdict.action == "end":
                remedy = resume_hint(self._run.folder, before=verdict.since)
                raise LowtideError(verdict.sentence, remedy=remedy)
            self._run.listen(Note(text=verdict.sentence, level="warning"))

    def _halve(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        micro = self.settings.micro_batch
        if micro == 1 or not self._alone:
            self._give_up()
        self.settings = replace(self.settings, micro_batch=micro // 2)
        text = (
            f"the GPU is out of memory with {micro} windows at a time: going on with {micro // 2}, "
            f"twice as often; a step still has {self.settings.batch_tokens} tokens"
        )
        self._run.listen(Note(text=text, level="warning"))

    def _give_up(self) -> NoReturn:
        """What was learnt is saved; where there is nothing yet, the plan was wrong."""
        windows = self.settings.micro_batch
        problem = f"a micro-batch of {windows} windows does not fit into the GPU's memory"
        smaller = "a smaller `--micro-batch`, " if windows > 1 else ""
        if not self.state.step or not self._alone:
            raise DoesNotFitError(
                problem,
                remedy=f"pass a leaner `--recipe`, {smaller}a smaller model or a shorter context",
            )
        self._catch_up(0)
        self._save_once()
        raise StoppedError(
            f"stopped after step {self.state.step} of {self.settings.steps}: {problem} any more",
            remedy="look at `nvidia-smi` for what others hold of it, then run the same command again to go on; "
            "`--micro-batch` and `--recipe` may change",
        )

    def _is_anything_due(self) -> bool:
        settings, step = self.settings, self.state.step
        every = (settings.evaluate_every, settings.sample_every, settings.checkpoint_every)
        owed = self._owes_checkpoint and not self._watch.is_spiking
        return owed or step == settings.steps or any(_is_due(step, one) for one in every)

    def _do_what_is_due(self) -> None:
        """Samples come last: nothing is lost should one fail."""
        settings, step = self.settings, self.state.step
        ends = step == settings.steps
        if self.val is not None and _is_due(step, settings.evaluate_every, ends):
            best = self._evaluate(self.val)
            if best is None:
                self.state = replace(self.state, owes_evaluation=True)
                return
            self._owes_checkpoint |= best and settings.checkpoint_every > 0
        self._owes_checkpoint |= ends or _is_due(step, settings.checkpoint_every)
        if self._owes_checkpoint and (ends or not self._watch.is_spiking):
            self._save_once()
        if _is_due(step, settings.sample_every, ends):
            self._sample()

    def _evaluate_again(self) -> None:
        """What a stop has dropped; the checkpoint that was written then gets its result."""
        if self.val is not None and self._evaluate(self.val) is None:
            self._leave()
        self.state = replace(self.state, owes_evaluation=False)
        if self._run.ranks.leads:
            write_state(self._run.folder, self.state)
            prune(self._run.folder, self.state.best_step)
        wait_for_all()

    def _evaluate(self, val: TokenDataset) -> bool | None:
        """Whether it is the best so far; None when a stop was asked for meanwhile."""
        loss = self._evaluation_that_fits(val)
        if loss is None:
            return None
        self._run.listen(Evaluated(step=self.state.step, loss=loss))
        best = self.state.best_loss is None or loss < self.state.best_loss
        if best and math.isfinite(loss):
            self.state = replace(self.state, best_loss=loss, best_step=self.state.step)
            return True
        return False

    def _evaluation_that_fits(self, val: TokenDataset) -> float | None:
        while True:
            try:
                return evaluate(self.model, val, self.settings, self._run.ranks, drop=self._drop)
            except torch.OutOfMemoryError:
                pass  # as for a step
            self._halve()

    def _sample(self) -> None:
        if not self._run.ranks.leads:
            return
        try:
            text = self._run.write_sample(self.model, self._drop)
        except (LowtideError, torch.OutOfMemoryError) as reason:
            first = str(reason).splitlines()[0]
            self._run.listen(Note(text=f"no sample could be written: {first}", level="warning"))
            return
        if text is not None:
            self._run.listen(Sampled(step=self.state.step, text=text))

    def _save_once(self) -> None:
        """A checkpoint of where the run stands; ranks wait until it does."""
        if self._last_saved == self.state.step:
            return
        started = time.perf_counter()
        self._refuse_poison()
        state = self.state = replace(self.state, loss_watch=_plain(self._watch.as_record()))
        if self._run.ranks.leads:
            path = write_checkpoint(self._run.folder, self.model, self.optimizer, state)
            prune(self._run.folder, state.best_step)
            seconds = time.perf_counter() - started
            self._run.listen(Saved(step=state.step, path=str(path), seconds=seconds))
        wait_for_all()
        self._last_saved = state.step
        self._owes_checkpoint = False

    def _refuse_poison(self) -> None:
        """Weights that overflowed must not be kept as the last good ones."""
        if not all(bool(one.isfinite().all()) for one in self.model.parameters()):
            raise LowtideError(
                f"the weights are not finite at step {self.state.step}",
                remedy=resume_hint(self._run.folder, before=self.state.step),
            )

    def _leave(self) -> NoReturn:
        assert self._stop is not None, "who leaves was asked to"
        self._save_once()
        raise self._stop.error(f"after step {self.state.step} of {self.settings.steps}")


def steps_ahead(device: torch.device) -> int:
    """How many steps a device has been told of when an earlier one is read: a GPU never waits for a command."""
    return 1 if device.type == "cuda" else 0


def _is_due(step: int, every: int, ends: bool = False) -> bool:
    return bool(every) and (ends or step % every == 0)


def _plain(state: dict[str, object]) -> JsonObject:
    return state  # type: ignore[return-value] # plain values by its own promise
