"""A step is the mean over all its targets, however it is cut; what is not finite moves nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lowtide.errors import DataError
from lowtide.model.gpt import GPT
from lowtide.model.targets import IGNORED
from lowtide.training.optimizer import make_optimizer
from lowtide.training.step import refuse_unknown_tokens, take_step
from tests.model.plain_gpt import plain_loss
from tests.model.small import batch, lively
from tests.training.small_runs import SHAPE, make_settings

SETTINGS = make_settings(Path("somewhere"))


def weights(model: GPT) -> list[Tensor]:
    return [one.detach().clone() for one in model.parameters()]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def plain_step(rows: tuple[Tensor, Tensor]) -> tuple[float, float, list[Tensor]]:
    """The loss, the gradient's length and the new weights, by autograd over all logits at once."""
    model = lively(SHAPE)
    loss = plain_loss(dict(model.named_parameters()), SHAPE, *rows)
    loss.backward()
    grads = [one.grad for one in model.parameters() if one.grad is not None]
    norm = math.sqrt(sum(float((one.double() ** 2).sum()) for one in grads))
    rate = SETTINGS.learning_rate / (SETTINGS.warmup_steps + 1)
    length = rate * min(1.0, SETTINGS.clip / max(norm, 1e-9))
    pairs = zip(weights(model), grads, strict=True)
    return loss.item(), norm, [one - length * gradient for one, gradient in pairs]


@given(
    rows=st.integers(1, 9),
    micro_batch=st.integers(1, 10),
    ignored=st.sampled_from([0.0, 0.3, 0.95]),
    recompute=st.booleans(),
)
def test_a_step_is_the_plain_one_however_it_is_cut(
    rows: int, micro_batch: int, ignored: float, recompute: bool
) -> None:
    given_rows = batch(SHAPE, rows=rows, ignored=ignored)
    loss, norm, wanted = plain_step(given_rows)
    model = lively(SHAPE, recompute=recompute)
    cut = replace(SETTINGS, micro_batch=micro_batch)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)  # Adam's first step would hide the length
    result = take_step(model, plain, cut, 0, given_rows)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    assert result.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert result.learning_rate == pytest.approx(SETTINGS.learning_rate / 5)
    for one, other in zip(weights(model), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_a_part_of_nothing_but_padding_changes_nothing() -> None:
    tokens, targets = batch(SHAPE, rows=4)
    padded = targets.clone()
    padded[2:] = IGNORED
    found = []
    for rows in ((tokens[:2], targets[:2]), (tokens, padded)):
        model = lively(SHAPE)
        cut = replace(SETTINGS, micro_batch=2)
        found.append(take_step(model, make_optimizer(model, cut), cut, 0, rows))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-6)
    assert found[0].gradient_norm == pytest.approx(found[1].gradient_norm, rel=1e-5)


def test_a_step_without_a_single_target_is_zero_and_finite() -> None:
    tokens, targets = batch(SHAPE, rows=2, ignored=1.1)
    model = lively(SHAPE)
    result = take_step(model, make_optimizer(model, SETTINGS), SETTINGS, 0, (tokens, targets))
    assert (result.loss, result.gradient_norm, result.skipped) == (0.0, 0.0, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_poisoned_weight_skips_the_step_and_moves_nothing(bad: float) -> None:
    model = lively(SHAPE)
    optimizer = make_optimizer(model, SETTINGS)
    take_step(model, optimizer, SETTINGS, 0, batch(SHAPE))
    states = [
        {key: one.clone() for key, one in optimizer.state[p].items()} for p in model.parameters()
    ]
    with torch.no_grad():
        bias = model.blocks[0].attention.out.bias  # type: ignore[union-attr]
        bias[0] = bad  # type: ignore[index]
    before = weights(model)
    result = take_step(model, optimizer, SETTINGS, 1, batch(SHAPE, seed=1))
    assert result.skipped
    assert not math.isfinite(result.loss) or not math.isfinite(result.gradient_norm)
    after = weights(model)
    assert same([one.nan_to_num(7.0) for one in before], [one.nan_to_num(7.0) for one in after])
    for parameter, kept in zip(model.parameters(), states, strict=True):
        assert all(torch.equal(optimizer.state[parameter][key], kept[key]) for key in kept)
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_a_fused_step_clips_as_the_plain_one_does(clip: float) -> None:
    found, cut = [], replace(SETTINGS, clip=clip)
    for fused in (False, True):
        model = lively(SHAPE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, eps=0.1, fused=fused)
        for step in range(3):
            result = take_step(model, optimizer, cut, step, batch(SHAPE, seed=step))
        found.append((result, weights(model)))
    (plain, wanted), (result, moved) = found
    assert result.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-5)
    assert not same(wanted, weights(lively(SHAPE)))
    for one, other in zip(moved, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_fused_step_that_is_not_finite_moves_nothing_and_counts_nothing() -> None:
    model = lively(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    take_step(model, optimizer, SETTINGS, 0, batch(SHAPE))
    kept = [[one.clone() for one in optimizer.state[p].values()] for p in model.parameters()]
    before = weights(model)
    hook = model.final_norm.bias.register_hook(lambda gradient: gradient * math.inf)
    assert take_step(model, optimizer, SETTINGS, 1, batch(SHAPE, seed=1)).skipped
    assert same(before, weights(model))
    for parameter, state in zip(model.parameters(), kept, strict=True):
        assert same(list(optimizer.state[parameter].values()), state)
    hook.remove()
    assert not take_step(model, optimizer, SETTINGS, 1, batch(SHAPE, seed=1)).skipped
    assert not same(before, weights(model))


def test_a_poisoned_gradient_skips_the_step_and_the_next_one_goes_on() -> None:
    model = lively(SHAPE)
    optimizer = make_optimizer(model, SETTINGS)
    norm = model.final_norm.bias
    hook = norm.register_hook(lambda gradient: gradient * math.nan)
    before = weights(model)
    assert take_step(model, optimizer, SETTINGS, 0, batch(SHAPE)).skipped
    assert same(before, weights(model))
    hook.remove()
    assert not take_step(model, optimizer, SETTINGS, 1, batch(SHAPE)).skipped
    assert not same(before, weights(model))


def test_tokens_beyond_the_vocabulary_are_refused_and_padding_is_not() -> None:
    tokens, targets = batch(SHAPE, ignored=0.5)
    refuse_unknown_tokens(tokens, targets, SHAPE)
    for which in (tokens, targets):
        kept = int(which[0, 0])
        which[0, 0] = SHAPE.vocabulary_size
        with pytest.raises(DataError, match=f"token {SHAPE.vocabulary_size}"):
            refuse_unknown_tokens(tokens, targets, SHAPE)
        which[0, 0] = kept
