"""GPT-2 once more, from its description: einsum, explicit masks and sums, no module and no kernel of torch.

Takes the model's numbers by their names and shares no code with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lowtide.model.shape import ModelShape


def plain_logits(state: Mapping[str, Tensor], shape: ModelShape, tokens: Tensor) -> Tensor:
    """(B, T) to (B, T, vocabulary): everything at once, in the precision of the numbers."""
    time = tokens.shape[1]
    embedding = state["token_embedding.weight"]
    x = embedding[tokens] + state["position_embedding.weight"][:time]
    for layer in range(shape.layers):
        own = _within(state, f"blocks.{layer}.")
        x = x + _attend(own, shape.heads, _norm(_within(own, "attention_norm."), x))
        x = x + _think(own, _norm(_within(own, "perceptron_norm."), x))
    x = _norm(_within(state, "final_norm."), x)
    return torch.einsum("btc,vc->btv", x, embedding[: shape.vocabulary_size])


def plain_loss(
    state: Mapping[str, Tensor], shape: ModelShape, tokens: Tensor, targets: Tensor
) -> Tensor:
    """The mean of -log p over all targets that are not -100."""
    logits = plain_logits(state, shape, tokens)
    log_probabilities = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    counted = targets != -100
    hits = log_probabilities.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return -(hits * counted).sum() / max(1, int(counted.sum()))


def _attend(own: Mapping[str, Tensor], heads: int, x: Tensor) -> Tensor:
    batch, time, width = x.shape
    joined = _linear(_within(own, "attention.queries_keys_values."), x)
    q, k, v = (
        part.reshape(batch, time, heads, width // heads) for part in joined.split(width, dim=-1)
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, time, width)
    return _linear(_within(own, "attention.out."), mixed)


def _think(own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    x = _linear(_within(own, "perceptron.widen."), x)
    x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return _linear(_within(own, "perceptron.narrow."), x)


def _norm(own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred**2).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5) * own["weight"] + own["bias"]


def _linear(own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return torch.einsum("btc,oc->bto", x, own["weight"]) + own["bias"]


def _within(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
