"""AdamW moves what it should, decays matrices alone, and its state has names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lowtide.errors import StoppedError, UsageError
from lowtide.stages.train import train
from lowtide.training.optimizer import (
    make_empty_state,
    make_optimizer,
    set_learning_rate,
    state_tensors,
)
from lowtide.training.step import take_step
from tests.model.small import batch, lively
from tests.training.small_runs import (
    SHAPE,
    Heard,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
)

SETTINGS = make_settings(Path("somewhere"), weight_decay=0.5)
WIDE = replace(SHAPE, width=64)
"""torchao leaves tensors of fewer than 4,096 numbers as they are."""
LEANEST = make_settings(Path("somewhere"), shape=WIDE, recipe="leanest")


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


def test_eight_bits_without_torchao_are_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(UsageError) as refused:
        make_optimizer(lively(SHAPE), LEANEST)
    assert "lowtide[gpu]" in refused.value.remedy


@pytest.fixture
def no_compiling() -> Iterator[None]:
    """torchao compiles its step for every shape, which takes a CPU a minute; the sums are the same."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.usefixtures("no_compiling")
def test_eight_bits_move_as_thirty_two_do_and_take_a_quarter() -> None:
    found = []
    for settings in (replace(LEANEST, recipe="lean"), LEANEST):
        model = lively(WIDE)
        optimizer = make_optimizer(model, settings)
        losses = [
            take_step(model, optimizer, settings, step, batch(WIDE, seed=step)).loss
            for step in range(6)
        ]
        size = sum(one.numel() * one.element_size() for _, one in state_tensors(model, optimizer))
        found.append((losses, size))
    (wanted, whole), (losses, quarter) = found
    assert losses == pytest.approx(wanted, abs=2e-2)
    assert losses != wanted
    assert quarter < 0.3 * whole


@pytest.mark.usefixtures("no_compiling")
def test_eight_bits_go_on_where_they_were(tmp_path: Path) -> None:
    data, heard = make_tokens(tmp_path / "tokens"), Heard()
    settings = make_settings(
        data, shape=WIDE, recipe="leanest", steps=9, checkpoint_every=3, micro_batch=8
    )
    whole, straight = run_heard(tmp_path / "whole", settings)
    with pytest.raises(StoppedError, match="after step 5"):
        train(
            tmp_path / "cut",
            settings,
            listen=heard,
            should_stop=lambda: "terminated" if len(heard.losses) >= 5 else None,
        )
    _, rest = run_heard(tmp_path / "cut", settings)
    assert rest.losses == straight.losses[5:]
    assert tensors_of(whole.folder) == tensors_of(tmp_path / "cut")
