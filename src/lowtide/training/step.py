"""One step: parts of a batch forward and backward, gradients clipped, weights moved, or left alone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowtide.errors import DataError
from lowtide.model.gpt import GPT
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from lowtide.training.data_parallel import add_up, add_up_gradients
from lowtide.training.optimizer import set_learning_rate
from lowtide.training.schedule import learning_rate_at
from lowtide.training.settings import RunSettings


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


def computing(settings: RunSettings) -> AbstractContextManager[object]:
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


def take_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    settings: RunSettings,
    step: int,
    batch: tuple[Tensor, Tensor],
) -> StepResult:
    """Step `step` with this rank's rows of its batch. However they are cut, gradients are those of the mean."""
    rate = learning_rate_at(step, settings)
    set_learning_rate(optimizer, rate)
    loss = _gather_gradients(model, settings, batch)
    norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
    finite = bool(torch.isfinite(loss) & torch.isfinite(norm))
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=loss.item(), gradient_norm=norm.item(), learning_rate=rate, skipped=not finite
    )


def _gather_gradients(model: GPT, settings: RunSettings, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    count = add_up((y != IGNORED).sum().float()).clamp(min=1)
    total = torch.zeros((), device=x.device)
    for at in range(0, len(x), settings.micro_batch):
        rows = slice(at, at + settings.micro_batch)
        with computing(settings):
            loss = model(x[rows], y[rows], count)
        loss.backward()
        total += loss.detach()
    add_up_gradients(model.parameters())
    return add_up(total)
