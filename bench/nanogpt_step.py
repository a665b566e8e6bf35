"""nanoGPT's model and step, as its train.py has them: what ours is compared with.

float32 weights, autocast to bfloat16, the whole model compiled, logits and loss returned, gradients clipped to
1, fused AdamW with decay on matrices, a vocabulary of 50,304, dropout 0; no biases unless asked for, which is
its train.py's `bias` too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lowtide.model.shape import ModelShape


class _Block(nn.Module):
    def __init__(self, shape: ModelShape, bias: bool) -> None:
        super().__init__()
        C = shape.width
        self.heads = shape.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(C, bias=bias), nn.LayerNorm(C, bias=bias)
        self.c_attn, self.c_proj = nn.Linear(C, 3 * C, bias=bias), nn.Linear(C, C, bias=bias)
        self.c_fc, self.mlp_proj = nn.Linear(C, 4 * C, bias=bias), nn.Linear(4 * C, C, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        parts = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        added: Tensor = x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))
        return added


class NanoGPT(nn.Module):
    """Returns logits and loss, as nanoGPT's does."""

    def __init__(self, shape: ModelShape, *, bias: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.padded_vocabulary, shape.width)
        self.wpe = nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(_Block(shape, bias) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width, bias=bias)
        self.lm_head = nn.Linear(shape.width, shape.padded_vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                narrow = name.endswith("proj.weight")
                nn.init.normal_(
                    parameter, std=0.02 / math.sqrt(2 * shape.layers) if narrow else 0.02
                )
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = functional.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )
        return logits, loss


_OURS = {
    "h.": "blocks.",
    "c_attn": "attention.queries_keys_values",
    "c_proj": "attention.out",
    "c_fc": "perceptron.widen",
    "mlp_proj": "perceptron.narrow",
    "wte": "token_embedding",
    "wpe": "position_embedding",
}


@torch.no_grad()
def start_alike(nano: NanoGPT, ours: nn.Module) -> None:
    """The matrices of ours, for a comparison that is none of two random starts; the rest begins alike."""
    weights = dict(ours.named_parameters())
    for name, parameter in nano.named_parameters():
        if parameter.dim() < 2:
            continue
        for theirs, other in _OURS.items():
            name = name.replace(theirs, other)
        parameter.copy_(weights[name])


def make_optimizer(model: nn.Module, rate: float = 6e-4) -> torch.optim.AdamW:
    """Decay on matrices, betas 0.9 and 0.95, fused on a GPU."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=matrices[0].is_cuda)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step of nanoGPT's loop without accumulation."""
    with torch.autocast(x.device.type, torch.bfloat16):
        _, loss = model(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
