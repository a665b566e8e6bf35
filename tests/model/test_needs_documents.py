"""What attention inside documents adds to a step: one mask for all layers, followed from birth to death."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lowtide.model.gpt import GPT
from lowtide.model.needs import Precision, StepKind, peak_of_evaluation, peak_of_step
from lowtide.model.shape import ModelShape
from lowtide.settings import Recipe
from tests.model.test_needs import Held, allocates_like_a_gpu

TOLERANCE = 0.015
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("like_a_gpu")]
like_a_gpu = pytest.fixture(allocates_like_a_gpu.__wrapped__)  # type: ignore[attr-defined]
SHAPE = ModelShape(layers=2, heads=2, width=128, context=1024, vocabulary_size=3000)
"""Thin: a mask is a good part of what it takes."""


def run_forward(model: GPT, micro_batch: int, kind: StepKind) -> Tensor:
    tokens, targets, documents = torch.zeros(
        3, micro_batch, model.shape.context, dtype=torch.int64
    ).unbind(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind.precision == "bfloat16"):
        loss: Tensor = model(tokens, targets, torch.ones(()), documents)
        return loss


@pytest.mark.parametrize("micro_batch", [4, 16])
@pytest.mark.parametrize("recipe", ["fast", "lean"])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_step_is_predicted(precision: Precision, recipe: Recipe, micro_batch: int) -> None:
    kind = StepKind(recipe=recipe, compiled=False, precision=precision, attention="document")
    held = Held()
    with FakeTensorMode(), held:
        model = GPT(SHAPE, recompute=kind.recomputes)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            held.peak = 0
            for _ in range(2):
                run_forward(model, micro_batch, kind).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    needs = peak_of_step(SHAPE, micro_batch, kind)
    assert needs.total - needs.workspace == pytest.approx(held.peak, rel=TOLERANCE)
    without = peak_of_step(SHAPE, micro_batch, replace(kind, attention="window"))
    assert needs.total > (1 + 4 * TOLERANCE) * without.total


@pytest.mark.parametrize("micro_batch", [1, 32])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_an_evaluation_is_predicted(precision: Precision, micro_batch: int) -> None:
    kind, held = StepKind(compiled=False, precision=precision, attention="document"), Held()
    with FakeTensorMode(), held, torch.no_grad():
        run_forward(GPT(SHAPE), micro_batch, kind)
    needs = peak_of_evaluation(SHAPE, micro_batch, kind)
    predicted = needs.total - needs.workspace - needs.optimizer
    assert predicted == pytest.approx(held.peak, rel=2 * TOLERANCE)
