"""The learning rate of every step: up in a line, then down in half a cosine, or flat. No torch here."""

from __future__ import annotations

import math

from lowtide.training.settings import TrainSettings


def learning_rate_at(step: int, settings: TrainSettings) -> float:
    """The rate of step `step`, counted from 0: a pure function, so that a resumed run needs no memory of it."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / (settings.warmup_steps + 1)
    if settings.schedule == "constant":
        return settings.learning_rate
    span = max(1, settings.steps - settings.warmup_steps)
    share = min(1.0, (step - settings.warmup_steps) / span)
    height = 0.5 * (1 + math.cos(math.pi * share))
    return settings.final_learning_rate + height * (
        settings.learning_rate - settings.final_learning_rate
    )
