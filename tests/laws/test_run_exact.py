"""A run's losses are those of the loop that everyone writes: all logits at once, nothing cut, nothing fused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lowtide import TokenDataset
from lowtide.model.gpt import GPT, initialise
from lowtide.training.settings import TrainSettings
from tests.model.plain_gpt import plain_loss
from tests.training.small_runs import SHAPE, losses_told, make_settings, make_tokens, run_heard

STEPS = 50
CLOSE = {"rel": 2e-4}
"""50 steps of Adam enlarge the last bits of a sum; a wrong factor anywhere shows in the first digits."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("exact") / "tokens")


def settings_for(data: Path, **changed: object) -> TrainSettings:
    usual = {"steps": STEPS, "checkpoint_every": 0, "evaluate_every": 0, "micro_batch": 8}
    return make_settings(data, **{**usual, **changed})


def plain_losses(settings: TrainSettings) -> list[float]:
    """The reference: 8 windows through plain formulas, plain AdamW, a cosine by hand."""
    start = GPT(settings.shape)
    initialise(start, settings.seed)
    state = {name: one.detach().clone().requires_grad_() for name, one in start.named_parameters()}
    matrices = [one for one in state.values() if one.dim() == 2]
    vectors = [one for one in state.values() if one.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
    )
    dataset = TokenDataset(
        settings.data, context=settings.shape.context, seed=0, windows=settings.windows
    )
    losses = []
    for step in range(STEPS):
        x, y = (torch.from_numpy(one) for one in dataset.batch(step, 8))
        loss = plain_loss(state, settings.shape, x, y)
        optimizer.zero_grad()
        loss.backward()
        _clip(list(state.values()))
        for group in optimizer.param_groups:
            group["lr"] = _rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _clip(parameters: list[Tensor]) -> None:
    grads = [one.grad for one in parameters if one.grad is not None]
    norm = math.sqrt(sum(float((one**2).sum()) for one in grads))
    for one in grads:
        one.mul_(min(1.0, 1.0 / (norm + 1e-6)))


def _rate(step: int) -> float:
    if step < 4:
        return 3e-3 * (step + 1) / 5
    return 3e-4 + (3e-3 - 3e-4) * (1 + math.cos(math.pi * (step - 4) / (STEPS - 4))) / 2


@pytest.fixture(scope="module")
def wanted(data: Path) -> list[float]:
    losses = plain_losses(settings_for(data))
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.parametrize(
    "changed",
    [
        {"micro_batch": 1},
        {"micro_batch": 3},
        {"micro_batch": 8},
        {"recipe": "lean", "micro_batch": 3},
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_the_first_fifty_losses_are_the_plain_ones_however_steps_are_cut(
    data: Path, tmp_path: Path, wanted: list[float], changed: dict[str, object]
) -> None:
    _, heard = run_heard(tmp_path / "run", settings_for(data, **changed))
    assert heard.losses == pytest.approx(wanted, **CLOSE)
    assert losses_told(tmp_path / "run") == heard.losses


def test_windows_of_documents_with_their_padding_give_the_plain_losses_too(
    data: Path, tmp_path: Path
) -> None:
    settings = settings_for(data, windows="document", micro_batch=3)
    _, targets = TokenDataset(data, context=SHAPE.context, windows="document").batch(0, 8)
    assert (targets == -100).any()
    _, heard = run_heard(tmp_path / "run", settings)
    assert heard.losses == pytest.approx(plain_losses(settings), **CLOSE)


@pytest.mark.parametrize("micro_batch", [1, 5, 16])
def test_an_evaluation_is_the_plain_mean_over_the_same_windows(
    data: Path, tmp_path: Path, micro_batch: int
) -> None:
    still = {"learning_rate": 1e-30, "final_learning_rate": 0.0, "micro_batch": micro_batch}
    settings = settings_for(data, steps=1, evaluate_every=1, evaluate_windows=11, **still)
    _, heard = run_heard(tmp_path / "run", settings)
    start = GPT(settings.shape)
    initialise(start, 0)
    val = TokenDataset(data, "val", SHAPE.context, order="sequential")
    x, y = (torch.from_numpy(one) for one in val.read(0, 11))
    loss = plain_loss(dict(start.named_parameters()), SHAPE, x, y).item()
    assert heard.evaluations == pytest.approx([loss], rel=1e-5)
