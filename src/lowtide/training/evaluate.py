"""The loss on windows that are not trained on, in the memory of a training step or less."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.model.gpt import GPT
from lowtide.model.targets import IGNORED
from lowtide.training.data_parallel import Ranks, add_up
from lowtide.training.settings import TrainSettings
from lowtide.training.step import computing, never, refuse_unknown_tokens


@torch.no_grad()
def evaluate(
    model: GPT,
    dataset: TokenDataset,
    settings: TrainSettings,
    ranks: Ranks,
    *,
    drop: Callable[[], bool] = never,
) -> float | None:
    """The mean loss over the first `evaluate_windows` windows of the split, or all of them.

    The same windows every time, so that two figures can be compared; ranks share them. None when it was dropped
    half-way, for which `drop` is asked between parts.
    """
    device = next(model.parameters()).device
    windows = min(settings.evaluate_windows, dataset.window_count)
    total, count = torch.zeros((), device=device), torch.zeros((), device=device)
    stride = settings.micro_batch * ranks.world_size
    for at in range(settings.micro_batch * ranks.rank, windows, stride):
        if drop():
            return None
        by_document = settings.attention == "document"
        found = dataset.read(at, min(settings.micro_batch, windows - at), documents=by_document)
        tokens, targets, *documents = map(torch.from_numpy, found)
        refuse_unknown_tokens(tokens, targets, settings.shape)  # before a GPU would abort
        tokens, targets, *documents = (one.to(device) for one in (tokens, targets, *documents))
        with computing(settings):
            total += model(tokens, targets, torch.ones((), device=device), *documents)
        count += (targets != IGNORED).sum()
    return (add_up(total) / add_up(count).clamp(min=1)).item()
