"""Logits into their own gradient, in place: the middle of `head_loss`, once in torch and once in Triton.

    loss = log(sum(exp(logits))) - logits[target]        gradient = softmax(logits) - one at the target

Triton reads a row twice and writes it once, the second time out of the cache; what torch.compile makes of the
same formula takes 2.5 × as long on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lowtide.model.chunks import slice_rows
from lowtide.model.targets import IGNORED

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for the CPU comes without it
    triton = None

_BLOCK = 4096
_WARPS = 8


def turn_logits(logits: Tensor, targets: Tensor, scale: Tensor, vocabulary_size: int) -> Tensor:
    """The loss of each row; the row becomes `scale` times its gradient, or zeros where it has no target."""
    if triton is None or not logits.is_cuda:
        return turn_logits_reference(logits, targets, scale, vocabulary_size)
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _turn_row[(len(logits),)](
        logits,
        logits.stride(0),
        targets,
        scale,
        losses,
        vocabulary_size,
        logits.shape[1],
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return losses


def turn_logits_reference(
    logits: Tensor, targets: Tensor, scale: Tensor, vocabulary_size: int
) -> Tensor:
    """The same as it is written in books, a few rows at a time: a row's numbers depend on that row alone."""
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    for rows in _slices(logits):
        aims = targets[rows]
        losses[rows] = _losses_of(logits[rows], aims, vocabulary_size)
        gradient = torch.softmax(logits[rows, :vocabulary_size].float(), dim=1)
        counted = aims != IGNORED
        gradient[counted, aims[counted]] -= 1
        gradient *= torch.where(counted, scale, 0.0)[:, None]
        logits[rows, :vocabulary_size].copy_(gradient)
    logits[:, vocabulary_size:].zero_()
    return losses


def row_losses(logits: Tensor, targets: Tensor, vocabulary_size: int) -> Tensor:
    """The loss of each row; logits stay as they are. For evaluation."""
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    for rows in _slices(logits):
        losses[rows] = _losses_of(logits[rows], targets[rows], vocabulary_size)
    return losses


def _losses_of(logits: Tensor, targets: Tensor, vocabulary_size: int) -> Tensor:
    wide = logits[:, :vocabulary_size].float()
    return torch.nn.functional.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="none")


def _slices(logits: Tensor) -> list[slice]:
    """Rows that are turned together: their copies take megabytes, and stay in the processor's cache."""
    step = slice_rows(logits.shape[1])
    return [slice(at, at + step) for at in range(0, len(logits), step)]


def _turn_row_kernel(  # type: ignore[no-untyped-def]
    logits, stride, targets, scale, losses, vocabulary_size, columns, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    most = float("-inf")
    total = 0.0
    for start in range(0, vocabulary_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found = tl.load(logits + at, mask=at < vocabulary_size, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(found, axis=0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(found - higher), axis=0)
        most = higher
    level = most + tl.log(total)
    counted = target >= 0
    hit = tl.load(logits + tl.maximum(target, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counted, level - hit, 0.0))
    share = tl.where(counted, tl.load(scale), 0.0)
    tl.debug_barrier()
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found = tl.load(logits + at, mask=at < vocabulary_size, other=float("-inf")).to(tl.float32)
        gradient = (tl.exp(found - level) - tl.where(at == target, 1.0, 0.0)) * share
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=at < columns)


_turn_row: Any = triton.jit(_turn_row_kernel) if triton is not None else None
