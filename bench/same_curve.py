"""Our steps against nanoGPT's with and without biases, from the same weights, in float32 on a CPU.

    python bench/same_curve.py train.bin [--steps 400] [--rate 5e-4]

A small model on the tokens of a train.bin of uint16 ids, folded to 4,096. With biases both should lie on each
other to the last digits; without, nanoGPT's is another model.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from bench.nanogpt_step import NanoGPT, make_optimizer, start_alike
from lowtide.model.shape import find_shape
from lowtide.training.build import build_model
from lowtide.training.optimizer import make_optimizer as make_ours
from lowtide.training.optimizer import set_learning_rate
from lowtide.training.schedule import learning_rate_at
from lowtide.training.settings import TrainSettings
from lowtide.training.step import start_step

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[int, Batch], float]
_ROWS, _CONTEXT, _VOCABULARY = 8, 128, 4096
_CPU = torch.device("cpu")


def settings_for(steps: int, rate: float) -> TrainSettings:
    shape = replace(
        find_shape("gpt2"),
        layers=4,
        width=128,
        heads=4,
        context=_CONTEXT,
        vocabulary_size=_VOCABULARY,
    )
    return TrainSettings(
        model="small",
        shape=shape,
        data="",
        batch_tokens=_ROWS * _CONTEXT,
        micro_batch=_ROWS,
        steps=steps,
        learning_rate=rate,
        final_learning_rate=rate / 10,
        warmup_steps=steps // 20,
        compiled=False,
        precision="float32",
        device="cpu",
    )


def nano_step(settings: TrainSettings, *, bias: bool) -> Step:
    model = NanoGPT(settings.shape, bias=bias)
    start_alike(model, build_model(settings, _CPU))
    optimizer = make_optimizer(model)

    def step(number: int, batch: Batch) -> float:
        set_learning_rate(optimizer, learning_rate_at(number, settings))
        _, loss = model(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def our_step(settings: TrainSettings) -> Step:
    model = build_model(settings, _CPU)
    optimizer = make_ours(model, settings)
    return lambda number, batch: start_step(model, optimizer, settings, number, batch).wait().loss


def batch_of(data: np.ndarray, order: np.ndarray, number: int) -> Batch:
    chosen = order[np.arange(number * _ROWS, (number + 1) * _ROWS) % len(order)] * _CONTEXT
    rows = torch.from_numpy(data[chosen[:, None] + np.arange(_CONTEXT + 1)])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokens", type=Path, metavar="train.bin")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=5e-4)
    chosen = parser.parse_args()
    settings = settings_for(chosen.steps, chosen.rate)
    data = np.fromfile(chosen.tokens, dtype=np.uint16).astype(np.int64) % _VOCABULARY
    order = np.random.default_rng(0).permutation((len(data) - 1) // _CONTEXT)
    ways = {
        "nanoGPT": nano_step(settings, bias=False),
        "the same with biases": nano_step(settings, bias=True),
        "ours": our_step(settings),
    }
    curves: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(chosen.steps):
        batch = batch_of(data, order, number)
        for way, step in ways.items():
            curves[way].append(step(number, batch))
    print("| steps | " + " | ".join(ways) + " |\n|---|--:|--:|--:|")
    tenth = chosen.steps // 10
    for at in range(0, chosen.steps, tenth):
        means = (statistics.fmean(curves[way][at : at + tenth]) for way in ways)
        print(f"| {at}–{at + tenth} | " + " | ".join(f"{mean:.4f}" for mean in means) + " |")


if __name__ == "__main__":
    main()
