"""One step: parts of a batch forward and backward, gradients clipped, weights moved, or left alone.

A GPU is told what to do and never asked in between, so that it need not wait for the next command: whether a
step is to be skipped is decided there, and what the step came to is read when the next one is under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lowtide.dataset.document_ids import PADDING
from lowtide.errors import DataError, DoesNotFitError
from lowtide.model.gpt import GPT
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from lowtide.training.data_parallel import add_up, add_up_gradients
from lowtide.training.optimizer import is_fused, set_learning_rate, step_on_gpu
from lowtide.training.schedule import learning_rate_at
from lowtide.training.settings import TrainSettings

Batch: TypeAlias = tuple[Tensor, ...]
"""Tokens, targets and, where attention stays inside documents, the documents' numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step came to."""

    loss: float
    """The mean over all targets of the step, before the weights moved."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    skipped: bool
    """A loss or a gradient was not finite: weights and optimizer are as they were."""
    leaving: bool = False
    """Whether a rank wants to leave: every rank reads the same."""


class StepUnderWay:
    """A step that a GPU may still be working at. Holds three numbers."""

    def __init__(
        self, loss: Tensor, norm: Tensor, learning_rate: float, *, leaving: Tensor
    ) -> None:
        found = torch.stack([loss.double(), norm.double(), leaving.double()])
        self._learning_rate = learning_rate
        self._done: torch.cuda.Event | None = None
        if found.is_cuda:
            self._found = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._found.copy_(found, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()
        else:
            self._found = found

    def wait(self) -> StepResult:
        """What it came to, as soon as that is known."""
        if self._done is not None:
            self._done.synchronize()
        loss, norm, leaving = self._found.tolist()
        return StepResult(
            loss=loss,
            gradient_norm=norm,
            learning_rate=self._learning_rate,
            skipped=not (math.isfinite(loss) and math.isfinite(norm)),
            leaving=leaving > 0,
        )


def never() -> bool:
    """Nobody asks for a stop."""
    return False


def computing(settings: TrainSettings) -> AbstractContextManager[object]:
    """Autocast to bfloat16, where the settings want it."""
    if settings.precision == "float32":
        return nullcontext()
    return torch.autocast(settings.device, torch.bfloat16)


def refuse_unknown_tokens(tokens: Tensor, targets: Tensor, shape: ModelShape) -> None:
    """DataError for ids beyond the vocabulary: a peer's files promise none, and a GPU would only abort."""
    largest = int(torch.maximum(tokens.max(), targets.max()))
    if largest >= shape.vocabulary_size:
        raise DataError(
            f"the data holds token {largest}, and the model knows {shape.vocabulary_size}",
            remedy="start a new run for the vocabulary of the data: pass the `--tokenizer` that made it",
        )


def fill_up(batch: Batch, rows: int) -> Batch:
    """At least so many rows, the last of them padding: the rows of a last batch may be few, or none."""
    missing = rows - len(batch[0])
    if missing <= 0:
        return batch
    padding = (0, IGNORED, PADDING)
    return tuple(
        torch.cat([one, one.new_full((missing, one.shape[1]), number)])
        for one, number in zip(batch, padding, strict=False)
    )


def start_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    step: int,
    batch: Batch,
    *,
    leaving: bool = False,
    drop: Callable[[], bool] = never,
) -> StepUnderWay | None:
    """Step `step` with this rank's rows of its batch. However they are cut, gradients are those of the mean.

    `leaving` is told to all ranks with the loss. `drop` is asked between parts; None where it says yes, and
    nothing has moved.
    """
    rate = learning_rate_at(step, settings)
    set_learning_rate(optimizer, rate)
    total = _gather_gradients(model, settings, batch, drop)
    if total is None:
        optimizer.zero_grad(set_to_none=True)
        return None
    add_up_gradients(model.parameters())
    loss, leavers = add_up(torch.stack([total, torch.full_like(total, leaving)]))
    norm = nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
    _move(model, optimizer, settings, norm, torch.isfinite(loss) & torch.isfinite(norm))
    optimizer.zero_grad(set_to_none=True)
    return StepUnderWay(loss, norm, rate, leaving=leavers)


def take_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    step: int,
    batch: Batch,
) -> StepResult:
    """A step from beginning to end."""
    started = start_step(model, optimizer, settings, step, batch)
    assert started is not None, "nobody asked to drop it"
    return started.wait()


def _gather_gradients(
    model: GPT, settings: TrainSettings, batch: Batch, drop: Callable[[], bool]
) -> Tensor | None:
    x, y, *others = batch
    count = add_up((y != IGNORED).sum().float()).clamp(min=1)
    total = torch.zeros((), device=x.device)
    for at in range(0, len(x), settings.micro_batch):
        if at and drop():
            return None
        rows = slice(at, at + settings.micro_batch)
        with computing(settings):
            loss = model(x[rows], y[rows], count, *(one[rows] for one in others))
        loss.backward()
        total += loss.detach()
    return total


def _move(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    norm: Tensor,
    finite: Tensor,
) -> None:
    """Gradients are clipped and weights moved, unless something is not finite."""
    try:
        if is_fused(optimizer):
            step_on_gpu(optimizer, shrink_by=(norm / settings.clip).clamp(min=1), skip=~finite)
        elif bool(finite):
            nn.utils.clip_grads_with_norm_(model.parameters(), settings.clip, norm)
            optimizer.step()
    except (
        torch.OutOfMemoryError
    ) as cause:  # smaller parts would not help, and some weights may have moved
        raise DoesNotFitError(
            "the optimizer's step does not fit into the GPU's memory",
            remedy="pass a leaner `--recipe` or a smaller model; the last checkpoint stands",
        ) from cause
