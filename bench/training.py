"""Training on a GPU against nanoGPT's step: speed and memory in one run, and the curves on the same data.

    python bench/training.py                               speed and peak memory, the ways take turns
    python bench/training.py --curve train.bin             losses, same data, batch and schedule
    python bench/training.py --batches 64 --rounds 3

Needs a GPU and torch. Ours is what `lowtide train` runs: the same model, optimizer and step.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import numpy as np
import torch

from bench.nanogpt_step import NanoGPT, make_optimizer, start_alike, take_step
from lowtide.model.shape import find_shape
from lowtide.training.build import build_model
from lowtide.training.optimizer import make_optimizer as make_ours
from lowtide.training.optimizer import set_learning_rate
from lowtide.training.schedule import learning_rate_at
from lowtide.training.settings import TrainSettings
from lowtide.training.step import start_step
from lowtide.units import GIB

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[int, Batch], Callable[[], float]]
"""Starts a step, and returns how to read its loss."""
_WARM_STEPS, _TIMED_STEPS = 4, 20
_READ_EVERY = {"nanoGPT": 10, "fast": 1, "lean": 1}
"""nanoGPT looks at its loss every ten steps; ours at each, when the next one is under way."""


def settings_for(model: str, batch: int, recipe: str, steps: int = 1000) -> TrainSettings:
    shape = find_shape(model)
    return TrainSettings(
        model=model,
        shape=shape,
        data="",
        batch_tokens=batch * shape.context,
        micro_batch=batch,
        steps=steps,
        learning_rate=6e-4,
        final_learning_rate=6e-5,
        warmup_steps=steps // 20,
        recipe=recipe,  # type: ignore[arg-type]
    )


def nano_step(settings: TrainSettings, *, bias: bool = False) -> Step:
    """As nanoGPT's loop does it, with its learning rate set before each step."""
    model = NanoGPT(settings.shape, bias=bias).cuda()
    start_alike(model, build_model(replace(settings, compiled=False), torch.device("cuda")))
    optimizer = make_optimizer(model)
    compiled = torch.compile(model)

    def step(number: int, batch: Batch) -> Callable[[], float]:
        set_learning_rate(optimizer, learning_rate_at(number, settings))
        return take_step(compiled, optimizer, *batch).item

    return step


def our_step(settings: TrainSettings) -> Step:
    model = build_model(settings, torch.device("cuda"))
    optimizer = make_ours(model, settings)
    kernel = model.blocks[0].attention.kernels[0].name
    print(f"{settings.recipe}: attention by {kernel}", file=sys.stderr, flush=True)

    def step(number: int, batch: Batch) -> Callable[[], float]:
        under_way = start_step(model, optimizer, settings, number, batch)
        return lambda: under_way.wait().loss

    return step


def random_batch(settings: TrainSettings) -> Batch:
    size = (settings.micro_batch, settings.shape.context)
    x = torch.randint(0, settings.shape.vocabulary_size, size, device="cuda")
    return x, torch.roll(x, -1, 1)


def start(make: Callable[[], Step], batch: Batch) -> tuple[Step, float, float]:
    """A way that is warm, the seconds that took, and its own peak in GiB: others are there as well."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held, started = torch.cuda.memory_allocated(), time.monotonic()
    step = make()
    for number in range(_WARM_STEPS):
        step(number, batch)
    torch.cuda.synchronize()
    return step, time.monotonic() - started, (torch.cuda.max_memory_allocated() - held) / GIB


def milliseconds(step: Step, batch: Batch, read_every: int) -> float:
    last = step(0, batch)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for number in range(_TIMED_STEPS):
        this = step(number, batch)
        if number % read_every == 0:
            last()
        last = this
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / _TIMED_STEPS


def print_speeds(chosen: argparse.Namespace) -> None:
    name = torch.cuda.get_device_name()
    print(
        f"{chosen.model}, T = 1024, bfloat16, {name}, torch {torch.__version__}; {chosen.rounds} rounds\n"
    )
    print("| batch | way | tokens/s (range) | × nanoGPT | peak GiB | × nanoGPT | start s |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for batch_size in chosen.batches:
        settings = settings_for(chosen.model, batch_size, "fast")
        lean = settings_for(chosen.model, batch_size, "lean")
        batch = random_batch(settings)
        ways = {
            "nanoGPT": functools.partial(nano_step, settings),
            "fast": functools.partial(our_step, settings),
            "lean": functools.partial(our_step, lean),
        }
        steps, warm, times = {}, {}, {way: [] for way in ways}
        for way, make in ways.items():
            steps[way], seconds, peak = start(make, batch)
            warm[way] = (seconds, peak)
        for _ in range(chosen.rounds):
            for way, step in steps.items():
                times[way].append(milliseconds(step, batch, _READ_EVERY[way]))
        _print_rows(batch_size, batch, times, warm)
        del steps, batch
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def _print_rows(
    batch_size: int,
    batch: Batch,
    times: dict[str, list[float]],
    warm: dict[str, tuple[float, float]],
) -> None:
    tokens = batch[0].numel()
    base = statistics.median(times["nanoGPT"])
    for way, taken in times.items():
        middle = statistics.median(taken)
        seconds, peak = warm[way]
        print(
            f"| {batch_size} | {way} | {tokens / middle:,.0f} k ({tokens / max(taken):,.0f}–"
            f"{tokens / min(taken):,.0f}) | {base / middle:.3f} | {peak:.2f} | "
            f"{peak / warm['nanoGPT'][1]:.2f} | {seconds:.0f} |",
            flush=True,
        )


def print_curves(chosen: argparse.Namespace) -> None:
    """All models from the same weights, on the same windows; every tenth of the run, the mean loss of it.

    nanoGPT's has no biases, as its train.py sets it; GPT-2 and ours have, so it runs with them as well.
    """
    settings = settings_for(chosen.model, chosen.batches[0], "fast", steps=chosen.steps)
    data = np.fromfile(chosen.curve, dtype=np.uint16).astype(np.int64)
    windows = (len(data) - 1) // settings.shape.context
    order = np.random.default_rng(0).permutation(windows)
    curves: dict[str, list[float]] = {}
    with_biases = functools.partial(nano_step, bias=True)
    ways = {"nanoGPT": nano_step, "with biases": with_biases, "ours": our_step}
    for way, make in ways.items():
        step, losses, started = make(settings), [], time.monotonic()
        for number in range(settings.steps):
            losses.append(step(number, _real_batch(data, order, settings, number))())
        curves[way] = losses
        print(f"{way}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        del step
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    print(
        f"{chosen.model}, {settings.steps} steps of {settings.batch_tokens} tokens, {windows} windows\n"
    )
    print("| steps | nanoGPT | the same with biases | ours |\n|---|--:|--:|--:|")
    tenth = settings.steps // 10
    for at in range(0, settings.steps, tenth):
        means = (statistics.fmean(losses[at : at + tenth]) for losses in curves.values())
        print(f"| {at}–{at + tenth} | " + " | ".join(f"{mean:.4f}" for mean in means) + " |")


def _real_batch(data: np.ndarray, order: np.ndarray, settings: TrainSettings, number: int) -> Batch:
    context, size = settings.shape.context, settings.micro_batch
    chosen = order[np.arange(number * size, (number + 1) * size) % len(order)] * context
    rows = data[chosen[:, None] + np.arange(context + 1)]
    both = torch.from_numpy(rows).cuda()
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="gpt2")
    parser.add_argument(
        "--batches", type=lambda text: [int(part) for part in text.split(",")], default=[64]
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--curve", type=Path, help="a train.bin of uint16 ids")
    parser.add_argument("--steps", type=int, default=200, help="of the curves")
    chosen = parser.parse_args()
    print(f"{date.today()}, {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    if chosen.curve:
        print_curves(chosen)
    else:
        print_speeds(chosen)


if __name__ == "__main__":
    main()
