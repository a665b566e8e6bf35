"""How fast a model is trained here, from a few steps on random tokens, before the length of a run is chosen."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch.optim import Optimizer

from lowtide.memory.allocator import give_back, keep_large_pieces
from lowtide.model.gpt import GPT
from lowtide.training.build import build_model
from lowtide.training.optimizer import make_optimizer
from lowtide.training.settings import TrainSettings
from lowtide.training.step import take_step

_SECONDS = 2.0
_FEWEST_STEPS = 2
_MOST_PARTS = 4
"""Micro-batches of a step: enough for the optimizer to take as small a share as in a whole one."""


def time_steps(settings: TrainSettings) -> float:
    """Tokens a second of training on the CPU.

    A model of which a single micro-batch takes seconds is timed on two of these: it is slow either way.
    """
    keep_large_pieces()  # as in a run: steps are a fifth faster with it
    micro_batch = min(settings.windows_per_step, settings.micro_batch)
    short = replace(
        settings,
        batch_tokens=micro_batch * settings.shape.context,
        attention="window",
        epochs=None,
        init=None,
    )
    model = build_model(short, torch.device("cpu"))
    optimizer = make_optimizer(model, short)
    seconds = _time_step(model, optimizer, short, 0)  # also makes the optimizer's state
    if seconds < _SECONDS:
        windows = min(settings.windows_per_step, _MOST_PARTS * micro_batch)
        short = replace(short, batch_tokens=windows * settings.shape.context)
        seconds = _usual_seconds(model, optimizer, short)
    else:
        seconds = min(seconds, _time_step(model, optimizer, short, 1))
    del model, optimizer
    give_back()
    return short.batch_tokens / seconds


def _usual_seconds(model: GPT, optimizer: Optimizer, settings: TrainSettings) -> float:
    """The median of some steps; the first one is not counted."""
    seconds: list[float] = []
    while sum(seconds[1:]) < _SECONDS or len(seconds) <= _FEWEST_STEPS:
        seconds.append(_time_step(model, optimizer, settings, len(seconds)))
    return sorted(seconds[1:])[len(seconds[1:]) // 2]


def _time_step(model: GPT, optimizer: Optimizer, settings: TrainSettings, step: int) -> float:
    context = settings.shape.context
    rows = settings.batch_tokens // context
    tokens = torch.randint(settings.shape.vocabulary_size, (rows, context + 1))
    batch = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    started = time.perf_counter()
    take_step(model, optimizer, settings, step, batch)
    return time.perf_counter() - started
