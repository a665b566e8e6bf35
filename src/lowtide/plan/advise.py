"""Settings by size of model and data, each with its reason in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from lowtide.model.shape import ModelShape
from lowtide.units import format_count

CHINCHILLA = 20
"""Tokens for each parameter: where a given amount of arithmetic is spent best (Hoffmann et al., 2022)."""
MOST_EPOCHS = 4
"""Up to here, seeing text again is nearly as good as new text (Muennighoff et al., 2023)."""
_FULL_BATCH = 1 << 19
_FULL_SIZE = 124e6
_SMALLEST_BATCH_WINDOWS = 8
_FEWEST_STEPS = 1000
_WARMUP_TOKENS = 375_000_000
_WARMUP_SHARE = 0.05
_FINAL_SHARE = 0.1
_RATES = (
    (0.33e6, 3.5e-3),
    (10.7e6, 1e-3),
    (124e6, 6e-4),
    (350e6, 3e-4),
    (760e6, 2.5e-4),
    (1.3e9, 2e-4),
    (2.7e9, 1.6e-4),
    (6.7e9, 1.2e-4),
    (13e9, 1e-4),
)
"""GPT-3's table (Brown et al., 2020, table 2.1); the second line is nanoGPT's for its small character model.

The first was tried here: 300 steps of 2,048 tokens of Python sources bring gpt2-pico to a loss of 4.63, 4.23,
4.16, 4.55 with 1e-3, 2e-3, 4e-3, 8e-3, and 146 steps gpt2-nano to 4.98, 4.72, 5.10 with 1e-3, 2e-3, 4e-3.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A number and why it is what it is."""

    value: float
    reason: str


def choose_run_tokens(
    shape: ModelShape, epoch_tokens: int, *, wanted: int | None, affordable: int | None
) -> Choice:
    """How many tokens the run sees, padding included."""
    if wanted is not None:
        return Choice(value=wanted, reason="as asked for")
    most = MOST_EPOCHS * epoch_tokens
    if affordable is not None:
        value = max(1, min(affordable, most))
        why = "as many as the hours allow" if value == affordable else f"{MOST_EPOCHS} epochs"
        return Choice(value=value, reason=f"{why}, {value / shape.parameter_count:.1f} a parameter")
    best = CHINCHILLA * shape.parameter_count
    if best <= most:
        return Choice(value=best, reason=f"{CHINCHILLA} tokens a parameter, as Chinchilla has it")
    return Choice(
        value=most,
        reason=f"{MOST_EPOCHS} epochs; more of the same text adds little, and {CHINCHILLA} tokens a "
        f"parameter would be {best / epoch_tokens:,.0f} epochs",
    )


def choose_batch_tokens(shape: ModelShape, run_tokens: int, *, wanted: int | None) -> Choice:
    """Tokens of one step, a whole number of windows."""
    if wanted is not None:
        return Choice(value=shape.whole_windows(wanted), reason="as asked for, in whole windows")
    by_size = _FULL_BATCH * min(1.0, math.sqrt(shape.parameter_count / _FULL_SIZE))
    reason = "half a million tokens a step, as GPT-2 and GPT-3 had"
    if by_size < _FULL_BATCH:
        reason = "smaller than GPT-2's half a million, by the root of the model's size"
    by_data = run_tokens / _FEWEST_STEPS
    if by_data < by_size:
        reason = f"small enough for about {_FEWEST_STEPS:,} steps with the tokens there are"
    windows = 1 << int(math.log2(max(1.0, min(by_size, by_data) / shape.context)) + 0.5)
    if windows <= _SMALLEST_BATCH_WINDOWS:
        windows, reason = _SMALLEST_BATCH_WINDOWS, "eight windows: fewer make a noisy gradient"
    return Choice(value=windows * shape.context, reason=reason)


def choose_learning_rate(shape: ModelShape) -> Choice:
    """Between the lines of the table, evenly in the logarithms of size and rate."""
    size = min(max(shape.parameter_count, _RATES[0][0]), _RATES[-1][0])
    for (smaller, high), (larger, low) in pairwise(_RATES):
        if size <= larger:
            share = math.log(size / smaller) / math.log(larger / smaller)
            rate = math.exp(math.log(high) + share * (math.log(low) - math.log(high)))
            break
    return Choice(
        value=float(f"{rate:.2g}"),
        reason=f"GPT-3's table, with smaller models, for {format_count(shape.parameter_count)} parameters",
    )


def choose_final_rate(rate: float) -> Choice:
    """Where the cosine ends."""
    return Choice(
        value=float(f"{rate * _FINAL_SHARE:.2g}"), reason="a tenth, as GPT-3 and Chinchilla"
    )


def choose_warmup(steps: int, batch_tokens: int) -> Choice:
    """Steps until the full learning rate."""
    by_tokens, by_share = _WARMUP_TOKENS // batch_tokens, int(steps * _WARMUP_SHARE)
    if by_tokens <= by_share:
        return Choice(value=max(1, by_tokens), reason="375M tokens, as GPT-3")
    return Choice(value=max(1, by_share), reason="a twentieth of a run this short")
