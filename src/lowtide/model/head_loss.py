"""Head and cross-entropy together, in chunks of rows: logits never exist whole.

    chunk of features (R, C) → logits (R, V) → loss, and the gradients of both at once

8 windows of 1,024 tokens have 1.54 GiB of float32 logits, and eager PyTorch holds several copies. Here R rows
at a time are turned into logits, the loss is added up, the logits become their own gradient in place, and that
is multiplied out; nothing is kept for the way back but the gradients. Evaluation does the first half of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lowtide.model.chunks import chunk_rows
from lowtide.model.targets import IGNORED
from lowtide.model.turn_logits import row_losses, turn_logits


def head_loss(
    features: Tensor, weight: Tensor, targets: Tensor, vocabulary_size: int, count: Tensor
) -> Tensor:
    """The summed cross-entropy of `features @ weight.T`, divided by `count`.

    `features` (N, C); `weight` (rows, C), of which those from `vocabulary_size` on are never predicted;
    `targets` (N,), of which IGNORED ones add nothing. `count` is what the whole step has of targets, so that
    parts of a step add up to its mean, however it is cut.
    """
    with torch.autocast(features.device.type, enabled=False):  # it would round what is added up
        if torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad):
            loss: Tensor = _HeadLoss.apply(features, weight, targets, vocabulary_size, count)  # type: ignore[no-untyped-call]
            return loss
        return _loss_alone(features, weight, targets, vocabulary_size) / count


def head_loss_reference(
    features: Tensor, weight: Tensor, targets: Tensor, vocabulary_size: int, count: Tensor
) -> Tensor:
    """The same as everyone writes it: all logits at once."""
    logits = (features @ weight[:vocabulary_size].T).float()
    summed = functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return summed / count


def count_targets(targets: Tensor) -> Tensor:
    """How many there are, as the number to divide by: at least one."""
    return (targets != IGNORED).sum().clamp(min=1).float()


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        targets: Tensor,
        vocabulary_size: int,
        count: Tensor,
    ) -> Tensor:
        work = weight.to(features.dtype)
        share = 1 / count
        total = torch.zeros((), device=features.device)
        for_features, for_weight = torch.empty_like(features), torch.zeros_like(weight)
        for rows in _chunks(features, weight):
            logits = features[rows] @ work.T
            total += turn_logits(logits, targets[rows], share, vocabulary_size).sum()
            torch.mm(logits, work, out=for_features[rows])
            _add_product(for_weight, logits.T, features[rows])
            del logits  # else the next chunk is made while this one is still there
        ctx.save_for_backward(for_features, for_weight)
        return total * share

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        for_features, for_weight = ctx.saved_tensors
        return for_features.mul_(gradient), for_weight.mul_(gradient), None, None, None


def _loss_alone(features: Tensor, weight: Tensor, targets: Tensor, vocabulary_size: int) -> Tensor:
    work = weight.to(features.dtype)
    total, nothing = (torch.zeros((), device=features.device) for _ in range(2))
    for rows in _chunks(features, weight):
        logits = features[rows] @ work.T
        if features.is_cuda:  # in place: cheaper than a float32 copy of the logits
            losses = turn_logits(logits, targets[rows], nothing, vocabulary_size)
        else:
            losses = row_losses(logits, targets[rows], vocabulary_size)
        total += losses.sum()
        del logits, losses
    return total


def _chunks(features: Tensor, weight: Tensor) -> list[slice]:
    """Which rows become logits together."""
    rows = chunk_rows(len(features), len(weight))
    return [slice(at, at + rows) for at in range(0, len(features), rows)]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right`, added up in the precision of `total`."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right
