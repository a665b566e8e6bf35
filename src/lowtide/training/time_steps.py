"""How fast a model is trained here, from a few steps on random tokens, before the length of a run is chosen."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from lowtide.memory.allocator import give_back, keep_large_pieces
from lowtide.training.learner import make_learner
from lowtide.training.settings import RunSettings
from lowtide.training.step import take_step

_SECONDS = 2.0
_FEWEST_STEPS = 2
_MOST_PARTS = 4
"""Of a step: enough for the optimizer to take as small a share as in a whole one."""


def time_steps(settings: RunSettings) -> float:
    """Tokens a second of training on the CPU."""
    keep_large_pieces()  # as in a run: steps are a fifth faster with it
    windows = min(settings.windows_per_step, _MOST_PARTS * settings.micro_batch)
    context = settings.shape.context
    short = replace(
        settings, batch_tokens=windows * context, attention="window", epochs=None, init=None
    )
    learner = make_learner(short, torch.device("cpu"))
    tokens = torch.randint(settings.shape.vocabulary_size, (windows, context + 1))
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    seconds: list[float] = []
    while sum(seconds[1:]) < _SECONDS or len(seconds) <= _FEWEST_STEPS:
        started = time.perf_counter()
        take_step(learner.model, learner.optimizer, short, len(seconds), batch)
        seconds.append(time.perf_counter() - started)
    del learner, batch, tokens
    give_back()
    usual = sorted(seconds[1:])[
        len(seconds[1:]) // 2
    ]  # the first one also makes the optimizer's state
    return windows * context / usual
