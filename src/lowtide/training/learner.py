"""A model with its optimizer, on the device of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lowtide.model.gpt import GPT
from lowtide.training.build import build_model
from lowtide.training.optimizer import make_optimizer
from lowtide.training.settings import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInTraining:
    """What steps change in place."""

    model: GPT
    optimizer: torch.optim.Optimizer
    device: torch.device


def make_model_in_training(
    settings: TrainSettings, device: torch.device, *, start: Callable[[GPT], None] | None = None
) -> ModelInTraining:
    """As they are at the start of a run; `start` writes the weights, else they are drawn."""
    model = build_model(settings, device, start=start)
    return ModelInTraining(model=model, optimizer=make_optimizer(model, settings), device=device)
