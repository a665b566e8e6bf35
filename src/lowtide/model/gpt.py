"""GPT-2, to be read from top to bottom. B windows of T tokens, each token C numbers wide.

    tokens (B, T) → embeddings (B, T, C) → blocks (B, T, C) → norm → loss, one number

The model returns the loss and nothing else: logits, 200 KB for every token, never exist whole (`head_loss`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from lowtide.model.head_loss import count_targets, head_loss
from lowtide.model.shape import ModelShape

EVERY_KERNEL = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_WHOLE_LAYERS = 12
_INITIAL_DEVIATION = 0.02
_TWICE_ROOT = 2 * math.sqrt(2 / math.pi)


class Attention(nn.Module):
    """Every position looks at itself and at those before it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.kernels = EVERY_KERNEL
        """Which implementations of attention may be used."""
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        q, k, v = self.split(x)
        with sdpa_kernel(self.kernels):
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.join(mixed)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each position asks, offers and says, a head apart: (B, heads, T, C / heads) each."""
        B, T, C = x.shape
        parts = self.queries_keys_values(x).split(C, dim=2)
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in parts)
        return q, k, v

    def join(self, mixed: Tensor) -> Tensor:
        """The heads side by side again, and mixed."""
        B, heads, T, width = mixed.shape
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(B, T, heads * width))
        return joined


class Perceptron(nn.Module):
    """Each position thinks for itself, four times as wide."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        narrowed: Tensor = self.narrow(gelu(self.widen(x)))
        return narrowed


def gelu(x: Tensor) -> Tensor:
    """GPT-2's: x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2.

    Compiled, in another spelling: (1 + tanh z) / 2 is sigmoid(2 z), which a GPU has for a third of the work.
    """
    if torch.compiler.is_compiling():
        return x * torch.sigmoid(_TWICE_ROOT * (x + 0.044715 * x * x * x))
    return functional.gelu(x, approximate="tanh")


class Block(nn.Module):
    """Attention, then thought, each added to what came in."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.perceptron = Perceptron(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.attention(self.attention_norm(x))
        summed: Tensor = x + self.perceptron(self.perceptron_norm(x))
        return summed


class GPT(nn.Module):
    """The whole model; the head shares its weights with the embedding."""

    def __init__(self, shape: ModelShape, *, recompute: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.recompute = recompute
        """Keep only what enters each block, and run it again for its gradients: a fifth of the memory."""
        self.token_embedding = nn.Embedding(shape.padded_vocabulary, shape.width)
        self.position_embedding = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor, targets: Tensor, count: Tensor | None = None) -> Tensor:
        """The loss summed over all targets that are not -100, divided by their count.

        Parts of a step pass the count of the whole step, so that their losses add up to its mean.
        """
        features = self.features(tokens).flatten(0, 1)
        weight, aims = self.token_embedding.weight, targets.flatten()
        divisor = count_targets(aims) if count is None else count
        return head_loss(features, weight, aims, self.shape.vocabulary_size, divisor)

    def features(self, tokens: Tensor) -> Tensor:
        """(B, T) to (B, T, C): what the head turns into predictions."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = self._run(block, x)
        normed: Tensor = self.final_norm(x)
        # Autocast leaves a norm in float32, which would double the head's work.
        return normed.to(x.dtype)

    def embed(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Tokens and where they stand. In bfloat16 under autocast: all that follows moves half the bytes."""
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        if torch.is_autocast_enabled(tokens.device.type):
            x = x.to(torch.get_autocast_dtype(tokens.device.type))
        embedded: Tensor = x
        return embedded

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            kept: Tensor = checkpoint(block, x, use_reentrant=False)
            return kept
        ran: Tensor = block(x)
        return ran


def initialise(model: GPT, seed: int) -> None:
    """GPT-2's start: small normal numbers, smaller where layers add up, the same on every machine.

    Numbers are drawn on the CPU, one tensor after another, so that neither device nor padding changes them.
    """
    generator = torch.Generator().manual_seed(seed)
    smaller = _INITIAL_DEVIATION / math.sqrt(2 * model.shape.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
                continue
            adds_up = name.endswith(("attention.out.weight", "perceptron.narrow.weight"))
            deviation = smaller if adds_up else _INITIAL_DEVIATION
            rows = model.shape.vocabulary_size if name.startswith("token_") else len(parameter)
            drawn = torch.randn(rows, parameter.shape[1], generator=generator) * deviation
            parameter[:rows].copy_(drawn)
            parameter[rows:].zero_()


def compile_model(model: GPT) -> None:
    """Compiled as a whole where that takes seconds, else one block's graph for all of them.

    The whole is 1 to 2 % faster, and takes 25 s for 12 layers on an H200's host, where a block takes 4.
    """
    if model.shape.layers <= _WHOLE_LAYERS and not model.recompute:
        model.features = torch.compile(model.features)  # type: ignore[method-assign]
        return
    for block in model.blocks:
        block.compile()
