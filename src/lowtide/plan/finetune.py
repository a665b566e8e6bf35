"""Settings for a model that knows something already: small steps over little data, down to none at the end."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.model.needs import peak_of_run
from lowtide.model.shape import ModelShape
from lowtide.plan.advise import choose_learning_rate
from lowtide.plan.fit import Fit, choose_fit, does_not_fit, fit_recipes, runnable_recipes, step_kind
from lowtide.plan.machine import Machine
from lowtide.plan.make_plan import (
    MOST_BETWEEN_CHECKPOINTS,
    MOST_BETWEEN_EVALUATIONS,
    PlanData,
    now_and_then,
)
from lowtide.training.settings import TrainSettings, steps_for
from lowtide.units import format_bytes

EPOCHS = 3.0
WINDOWS_PER_STEP = 32
WEIGHT_DECAY = 0.01
_RATE_SHARE = 0.1
_WARMUP_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """What is trained further, and what was asked for; None leaves it to us."""

    init: str
    model: str
    shape: ModelShape
    window_count: int
    """Of the data, in an epoch."""
    epochs: float | None = None
    steps: int | None = None
    batch_tokens: int | None = None

    @property
    def windows_per_step(self) -> int:
        if self.batch_tokens is None:
            return WINDOWS_PER_STEP
        return self.shape.whole_windows(self.batch_tokens) // self.shape.context


def finetune_settings(asked: FineTuning, data: PlanData, machine: Machine) -> TrainSettings:
    """A tenth of the rate that such a model is trained with, three epochs; DoesNotFitError if it cannot be."""
    epochs = (asked.epochs or EPOCHS) if asked.steps is None else None
    steps = asked.steps or steps_for(
        epochs or EPOCHS, window_count=asked.window_count, windows_per_step=asked.windows_per_step
    )
    fit = _fit(asked, data, machine)
    return TrainSettings(
        model=asked.model,
        shape=asked.shape,
        data=data.path,
        val_fraction=data.val_fraction,
        tokenizer=data.tokenizer,
        windows=data.windows,
        attention=data.attention,
        init=asked.init,
        batch_tokens=asked.windows_per_step * asked.shape.context,
        micro_batch=fit.micro_batch,
        steps=steps,
        epochs=epochs,
        learning_rate=float(f"{choose_learning_rate(asked.shape).value * _RATE_SHARE:.2g}"),
        final_learning_rate=0.0,
        warmup_steps=int(steps * _WARMUP_SHARE),
        weight_decay=WEIGHT_DECAY,
        evaluate_every=now_and_then(steps, most=MOST_BETWEEN_EVALUATIONS),
        checkpoint_every=now_and_then(steps, most=MOST_BETWEEN_CHECKPOINTS),
        sample_every=now_and_then(steps, most=MOST_BETWEEN_CHECKPOINTS),
        recipe=fit.recipe,
        compiled=fit.kind.compiled,
        precision=fit.kind.precision,
        device=machine.device,
    )


def _fit(asked: FineTuning, data: PlanData, machine: Machine) -> Fit:
    windows, attention = asked.windows_per_step, data.attention
    recipes = fit_recipes(asked.shape, machine, windows_per_step=windows, attention=attention)
    found = choose_fit(asked.shape, recipes, windows_per_step=windows)
    if found is not None:
        return found
    recipe = runnable_recipes(machine)[-1]
    needs = peak_of_run(asked.shape, 1, step_kind(machine, recipe, attention=attention))
    raise does_not_fit(
        f"{asked.model} needs {format_bytes(needs.total)} for one window of {asked.shape.context} tokens with "
        f"the recipe {recipe}",
        needs.total,
        machine,
        remedy="pass a smaller `--context`, or start from a smaller model",
    )
