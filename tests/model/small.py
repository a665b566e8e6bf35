"""Small models with numbers that matter, and batches for them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from lowtide.model.gpt import GPT, initialise
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED

SMALL = ModelShape(layers=2, heads=2, width=16, context=12, vocabulary_size=131)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    """Any small shape; the vocabulary may fill its tiles or leave most of one empty."""
    heads = draw(st.integers(1, 3))
    return ModelShape(
        layers=draw(st.integers(1, 3)),
        heads=heads,
        width=heads * draw(st.integers(1, 6)),
        context=draw(st.integers(1, 14)),
        vocabulary_size=draw(st.one_of(st.integers(1, 300), st.sampled_from([127, 128, 129, 256]))),
    )


def lively(shape: ModelShape, *, seed: int = 0, recompute: bool = False) -> GPT:
    """A model none of whose numbers is 0 or 1: at the start biases are, and would hide a mistake.

    Padded rows hold large numbers: whoever reads one gets something else.
    """
    model = GPT(shape, recompute=recompute)
    initialise(model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        model.token_embedding.weight[shape.vocabulary_size :] = 50.0
    return model


def batch(
    shape: ModelShape, *, rows: int = 3, seed: int = 0, ignored: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Tokens and targets; about such a share of targets is ignored."""
    generator = torch.Generator().manual_seed(seed)
    size = (rows, shape.context)
    tokens = torch.randint(shape.vocabulary_size, size, generator=generator)
    targets = torch.randint(shape.vocabulary_size, size, generator=generator)
    targets[torch.rand(size, generator=generator) < ignored] = IGNORED
    return tokens, targets


def gradients(model: GPT) -> dict[str, Tensor]:
    """By name; every parameter must have one."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert None not in found.values()
    return {name: gradient for name, gradient in found.items() if gradient is not None}
