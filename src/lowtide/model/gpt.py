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
from lowtide.model.needs import compiles_whole
from lowtide.model.shape import ModelShape

EVERY_KERNEL = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_INITIAL_DEVIATION = 0.02
_TWICE_ROOT = 2 * math.sqrt(2 / math.pi)


class Attention(nn.Module):
    """Every position looks at itself and at those before it, in its own document where a mask says so."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.kernels = EVERY_KERNEL
        """Which implementations of attention may be used."""
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        q, k, v = self.split(x)
        with sdpa_kernel(self.kernels):
            mixed = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None
            )
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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.attention(self.attention_norm(x), mask)
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

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,
        count: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The loss summed over all targets that are not -100, divided by their count.

        Parts of a step pass the count of the whole step, so that their losses add up to its mean. With
        `documents` (B, T), the number of each position's document, each is as if it were alone.
        """
        features = self.features(tokens, documents).flatten(0, 1)
        weight, aims = self.token_embedding.weight, targets.flatten()
        divisor = count_targets(aims) if count is None else count
        return head_loss(features, weight, aims, self.shape.vocabulary_size, divisor)

    def features(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """(B, T) to (B, T, C): what the head turns into predictions."""
        positions = None if documents is None else document_positions(documents)
        x = self.embed(tokens, positions=positions)
        mask = None if documents is None else document_mask(documents, _working_type(x))
        for block in self.blocks:
            x = self._run(block, x, mask)
        normed: Tensor = self.final_norm(x)
        # Autocast leaves a norm in float32, which would double the head's work.
        return normed.to(_working_type(x))

    def embed(self, tokens: Tensor, first: int = 0, positions: Tensor | None = None) -> Tensor:
        """Tokens and where they stand. In float32 under autocast too, and so is all that blocks add to it:
        rounded to bfloat16 after every block, the loss of gpt2 ended 1.4 % higher after 250 steps.
        """
        if positions is None:
            positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.token_embedding(tokens) + self.position_embedding(positions)
        return embedded

    def _run(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            kept: Tensor = checkpoint(block, x, mask, use_reentrant=False)
            return kept
        ran: Tensor = block(x, mask)
        return ran


def document_positions(documents: Tensor) -> Tensor:
    """(B, T) to (B, T): how far each position is from the first of its document in the row.

    >>> document_positions(torch.tensor([[0, 0, 1, 1, 1, -1]])).tolist()
    [[0, 1, 0, 1, 2, 0]]
    """
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return places - torch.where(begins, places, 0).cummax(dim=1).values


def document_mask(documents: Tensor, kind: torch.dtype) -> Tensor:
    """(B, T) to (B, 1, T, T): 0 where a position may look, -inf where not. Padding looks at padding: a row
    of -inf alone would be no number.

    Numbers and not flags: of flags, every layer would make and keep such a copy.
    """
    T = documents.shape[1]
    earlier = torch.ones(T, T, dtype=torch.bool, device=documents.device).tril()
    may_look = (documents[:, :, None] == documents[:, None, :]) & earlier
    nothing = torch.zeros((), dtype=kind, device=documents.device)
    return torch.where(may_look, nothing, -math.inf).to(kind)[:, None]


def _working_type(x: Tensor) -> torch.dtype:
    """What autocast computes in; without it, what `x` has."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


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
    """Compiled as a whole where that takes seconds, else one block's graph for all of them."""
    if compiles_whole(model.shape, recompute=model.recompute):
        model.features = torch.compile(model.features)  # type: ignore[method-assign]
        return
    for block in model.blocks:
        block.compile()
