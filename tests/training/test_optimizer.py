"""AdamW moves what it should, decays matrices alone, and its state has names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from lowtide.errors import UsageError
from lowtide.training.optimizer import (
    make_empty_state,
    make_optimizer,
    set_learning_rate,
    state_tensors,
)
from tests.model.small import lively
from tests.training.small_runs import SHAPE, make_settings

SETTINGS = make_settings(Path("somewhere"), weight_decay=0.5)


def test_decay_shrinks_matrices_and_leaves_biases_and_norms_alone() -> None:
    model = lively(SHAPE)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    optimizer = make_optimizer(model, SETTINGS)
    set_learning_rate(optimizer, 0.1)
    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    optimizer.step()
    for name, one in model.named_parameters():
        share = 1 - 0.1 * 0.5 if one.dim() >= 2 else 1.0
        torch.testing.assert_close(one.detach(), before[name] * share, msg=name)


def test_every_parameter_is_in_one_group_and_has_named_state() -> None:
    model = lively(SHAPE)
    optimizer = make_optimizer(model, SETTINGS)
    grouped = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert sorted(grouped) == sorted(id(one) for one in model.parameters())
    assert list(state_tensors(model, optimizer)) == []
    make_empty_state(model, optimizer)
    wanted = [
        f"{name}.{key}"
        for name, _ in model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq", "step")
    ]
    assert [name for name, _ in state_tensors(model, optimizer)] == wanted


def test_empty_state_is_what_a_new_optimizer_begins_with() -> None:
    stepped = []
    for emptied in (False, True):
        model = lively(SHAPE)
        optimizer = make_optimizer(model, SETTINGS)
        if emptied:
            make_empty_state(model, optimizer)
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        stepped.append([one.detach().clone() for one in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*stepped, strict=True))


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is here")
def test_eight_bits_without_torchao_are_refused_with_what_to_install() -> None:
    with pytest.raises(UsageError) as refused:
        make_optimizer(lively(SHAPE), make_settings(Path("somewhere"), recipe="leanest"))
    assert "lowtide[lean]" in refused.value.remedy
