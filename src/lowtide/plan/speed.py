"""How long a run takes, and where that figure comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowtide.model.shape import SHAPES, ModelShape
from lowtide.plan.machine import Machine
from lowtide.settings import Recipe
from lowtide.training.settings import TrainSettings
from lowtide.units import format_count

UTILISATION = 0.35
"""Share of a card's peak that training reaches. Assumed: 30 to 50 % are usual for models of this kind."""
MEASURED_HERE = "measured here"
_AGAIN = 4 / 3
"""Running the forward pass a second time is a third more arithmetic."""
_MEASURED = {("H200", "gpt2"): 554_000}
"""Tokens a second at a context of 1,024 with the recipe fast: `bench/training.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second, and how they are known."""

    tokens_per_second: float
    basis: str


def predict_speed(shape: ModelShape, machine: Machine, recipe: Recipe) -> Speed | None:
    """Measured here, else on such a card, else assumed; None where nobody said how fast the card is."""
    return (
        _measured_here(shape, machine, recipe)
        or _measured_elsewhere(shape, machine, recipe)
        or _as_others_here(shape, machine, recipe)
        or _assumed(shape, machine, recipe)
    )


def hours_of_run(
    steps: int, *, batch_tokens: int, evaluate_every: int, evaluate_tokens: int, speed: Speed
) -> float:
    """Steps and evaluations; one evaluates without the way back, which is two thirds of a step."""
    evaluations = steps // evaluate_every if evaluate_every else 0
    tokens = steps * batch_tokens + evaluations * evaluate_tokens / 3
    return tokens / speed.tokens_per_second / 3600


def hours_of_settings(settings: TrainSettings, speed: Speed) -> float:
    """How long `train` takes with these settings."""
    return hours_of_run(
        settings.steps,
        batch_tokens=settings.batch_tokens,
        evaluate_every=settings.evaluate_every,
        evaluate_tokens=settings.evaluate_windows * settings.shape.context,
        speed=speed,
    )


def _measured_here(shape: ModelShape, machine: Machine, recipe: Recipe) -> Speed | None:
    for one in reversed(machine.measured):
        if (one.shape, one.recipe) == (shape, recipe):
            return Speed(tokens_per_second=one.tokens_per_second, basis=MEASURED_HERE)
    return None


def _measured_elsewhere(shape: ModelShape, machine: Machine, recipe: Recipe) -> Speed | None:
    for (card, model), measured in _MEASURED.items():
        if machine.name == card and shape == SHAPES[model]:
            basis = f"measured on such a card, {format_count(measured)} tokens/s"
            if _again(recipe) > 1:
                basis += ", a third slower for running blocks again (assumed)"
            return Speed(tokens_per_second=measured / _again(recipe), basis=basis)
    return None


def _as_others_here(shape: ModelShape, machine: Machine, recipe: Recipe) -> Speed | None:
    """By arithmetic from the model of the nearest size that was measured here."""
    if not machine.measured:
        return None
    size = shape.flops_per_token
    nearest = min(machine.measured, key=lambda one: abs(math.log(one.shape.flops_per_token / size)))
    done = nearest.tokens_per_second * nearest.shape.flops_per_token * _again(nearest.recipe)
    return Speed(
        tokens_per_second=done / (size * _again(recipe)),
        basis=f"from a run of a {format_count(nearest.shape.parameter_count)} model on this machine",
    )


def _assumed(shape: ModelShape, machine: Machine, recipe: Recipe) -> Speed | None:
    if machine.peak_flops is None:
        return None
    rate = machine.peak_flops * UTILISATION / (shape.flops_per_token * _again(recipe))
    peak = f"{machine.peak_flops / 1e12:,.1f} TFLOP/s"
    return Speed(
        tokens_per_second=rate,
        basis=f"assumed: {UTILISATION:.0%} of {peak} ({machine.peak_source})",
    )


def _again(recipe: Recipe) -> float:
    return 1.0 if recipe == "fast" else _AGAIN
