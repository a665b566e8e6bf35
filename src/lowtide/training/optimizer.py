"""AdamW, with decay on matrices alone; its state by the parameters' names, for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lowtide.errors import UsageError
from lowtide.model.gpt import GPT
from lowtide.training.settings import TrainSettings


def make_optimizer(model: GPT, settings: TrainSettings) -> torch.optim.Optimizer:
    """Fused where there is a GPU; with 8-bit states for the leanest recipe."""
    matrices = [one for one in model.parameters() if one.dim() >= 2]
    others = [one for one in model.parameters() if one.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    if settings.recipe == "leanest":
        return _eight_bits(groups, settings.learning_rate, betas)
    on_gpu = matrices[0].is_cuda
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, fused=on_gpu)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        _set_rate(group, rate)


def _set_rate(group: dict[str, object], rate: float) -> None:
    """torchao keeps its rate in a tensor, for code that is compiled once."""
    held = group["lr"]
    if isinstance(held, Tensor):
        held.fill_(rate)
    else:
        group["lr"] = rate


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it moves all weights in one go on a GPU, and can be told there to leave them alone."""
    return isinstance(optimizer, torch.optim.AdamW) and bool(optimizer.defaults["fused"])


def step_on_gpu(optimizer: torch.optim.Optimizer, *, shrink_by: Tensor, skip: Tensor) -> None:
    """A fused step with gradients divided by `shrink_by`, or none where `skip`, without asking the GPU which.

    The two attributes are how torch's GradScaler tells a fused optimizer the same.
    """
    optimizer.grad_scale, optimizer.found_inf = shrink_by, skip.float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def state_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """`blocks.0.attention.out.weight.exp_avg` and so on, in the order of the parameters."""
    for name, parameter in model.named_parameters():
        for key, value in sorted(optimizer.state[parameter].items()):
            if hasattr(value, "__tensor_flatten__"):  # torchao's 8 bits and their scales
                parts, _ = value.__tensor_flatten__()
                yield from ((f"{name}.{key}.{part}", getattr(value, part)) for part in parts)
            elif isinstance(value, Tensor):
                yield f"{name}.{key}", value


def make_empty_state(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """State of the right form, to be filled from a checkpoint. Weights stay as they are."""
    if not isinstance(optimizer, torch.optim.AdamW):
        _step_without_moving(model, optimizer)
        return
    for parameter in model.parameters():
        at = parameter.device if is_fused(optimizer) else "cpu"
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=at),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }


def _step_without_moving(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """How a foreign optimizer's state comes into being: by a step, here one of length zero."""
    kept = [float(group["lr"]) for group in optimizer.param_groups]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        _set_rate(group, 0.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, kept, strict=True):
        _set_rate(group, rate)


def _eight_bits(
    groups: list[dict[str, object]], rate: float, betas: tuple[float, float]
) -> torch.optim.Optimizer:
    try:
        from torchao.optim import AdamW8bit  # type: ignore[import-not-found,unused-ignore]
    except ImportError as cause:
        raise UsageError(
            "the recipe `leanest` keeps optimizer states in 8 bits, and torchao is not installed",
            remedy="`pip install 'lowtide[gpu]'`, or pass `--recipe lean`",
        ) from cause
    found: torch.optim.Optimizer = AdamW8bit(groups, lr=rate, betas=betas)
    return found
