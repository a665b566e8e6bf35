"""Predicted peaks of memory beside measured ones, on the GPU that is here.

    PYTHONPATH=src python3 bench/peak_memory.py [--models gpt2,gpt2-large] [--recipes fast,lean] [--quick]
    PYTHONPATH=src python3 bench/peak_memory.py --attention document --models gpt2

Steps are those that `lowtide train` takes. Every micro-batch runs as one part, and as two that accumulate; two
of them give a slope, which stands beside the formula's. With `--attention document` windows hold documents of
300 tokens and attention stays inside them. Tokens a second are those of the second step.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from lowtide.model.gpt import GPT, compile_model
from lowtide.model.needs import StepKind, kept_by_block, peak_of_evaluation, peak_of_step
from lowtide.model.shape import SHAPES
from lowtide.training.build import choose_attention
from lowtide.training.optimizer import make_optimizer
from lowtide.training.settings import TrainSettings
from lowtide.training.step import computing, take_step
from lowtide.units import GIB

MODELS = ("gpt2", "gpt2-medium", "gpt2-large")
MICRO_BATCHES = (4, 16, 64)
RECIPES = ("fast", "lean", "leanest")
DOCUMENT_TOKENS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement."""

    model: str
    micro_batch: int
    kind: StepKind
    what: str
    measured: int
    predicted: int
    tokens_per_second: float = 0.0

    @property
    def error(self) -> float:
        """Share by which the prediction is too high."""
        return self.predicted / self.measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--attention", choices=["window", "document"], default="window")
    parser.add_argument("--quick", action="store_true", help="gpt2 alone, two micro-batches")
    chosen = parser.parse_args()
    quick = chosen.quick
    models = MODELS[:1] if quick else tuple(chosen.models.split(","))
    sizes = MICRO_BATCHES[:2] if quick else MICRO_BATCHES
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows: list[Row] = []
    began = time.perf_counter()
    for name in models:
        for mode in chosen.modes.split(","):
            for recipe in chosen.recipes.split(","):
                kind = StepKind(
                    recipe=recipe, compiled=mode == "compiled", attention=chosen.attention
                )
                for row in measure(name, kind, sizes):
                    rows.append(row)
                    show(row)
    print(f"largest error {max(rows, key=lambda row: abs(row.error)).error:+.1%}")
    show_fitted(rows)
    print(f"{time.perf_counter() - began:.0f} s")


def measure(name: str, kind: StepKind, sizes: tuple[int, ...]) -> Iterator[Row]:
    """Every micro-batch of one model and kind; what does not fit is left out."""
    shape, settings = SHAPES[name], settings_for(name, kind)
    clear()
    device = torch.device("cuda")
    with device:
        model = GPT(shape, recompute=kind.recomputes)
    choose_attention(model, settings, device)
    if kind.compiled:
        compile_model(model)
    optimizer = make_optimizer(model, settings)
    room = torch.cuda.get_device_properties(0).total_memory * 0.95
    for size in sizes:
        if peak_of_step(shape, size, kind).total > room:
            continue
        clear()
        for parts in (1, 2):
            now = replace(kind, accumulating=parts > 1)
            peak, rate = measure_steps(model, optimizer, settings_for(name, kind, size, parts))
            yield Row(
                model=name,
                micro_batch=size,
                kind=now,
                what=f"{parts} part{'s' if parts > 1 else ''}",
                measured=peak,
                predicted=peak_of_step(shape, size, now).total,
                tokens_per_second=rate,
            )
        yield Row(
            model=name,
            micro_batch=size,
            kind=kind,
            what="evaluation",
            measured=measure_evaluation(model, settings_for(name, kind, size)),
            predicted=peak_of_evaluation(shape, size, kind).total,
        )


def clear() -> None:
    """What was before is gone: models, and the graphs that hold their buffers."""
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    gc.collect()
    torch.cuda.empty_cache()


def settings_for(name: str, kind: StepKind, size: int = 16, parts: int = 1) -> TrainSettings:
    shape = SHAPES[name]
    return TrainSettings(
        model=name,
        shape=shape,
        data="",
        batch_tokens=parts * size * shape.context,
        micro_batch=size,
        steps=100,
        learning_rate=1e-4,
        final_learning_rate=1e-5,
        warmup_steps=1,
        recipe=kind.recipe,
        compiled=kind.compiled,
        attention=kind.attention,
    )


def make_batch(settings: TrainSettings, rows: int) -> tuple[torch.Tensor, ...]:
    """Tokens, targets and, where attention asks for them, documents."""
    shape = settings.shape
    tokens = torch.randint(0, shape.vocabulary_size, (rows, shape.context), device="cuda")
    if settings.attention == "window":
        return tokens, tokens
    documents = torch.arange(shape.context, device="cuda") // DOCUMENT_TOKENS
    return tokens, tokens, documents.expand(rows, -1).contiguous()


def measure_steps(
    model: GPT, optimizer: torch.optim.Optimizer, settings: TrainSettings
) -> tuple[int, float]:
    """Peak and tokens a second of the second step: the first compiles, and makes the optimizer's state."""
    batch = make_batch(settings, settings.windows_per_step)
    for step in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        take_step(model, optimizer, settings, step, batch)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return torch.cuda.max_memory_allocated(), settings.batch_tokens / seconds


@torch.no_grad()
def measure_evaluation(model: GPT, settings: TrainSettings) -> int:
    """The peak of one pass without gradients, the optimizer's state being there."""
    batch = make_batch(settings, settings.micro_batch)
    torch.cuda.reset_peak_memory_stats()
    with computing(settings):
        model(*batch[:2], documents=batch[2] if len(batch) > 2 else None)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def show(row: Row) -> None:
    mode = "compiled" if row.kind.compiled else "eager"
    print(
        f"{row.model:<12} {row.micro_batch:>3}  {mode:<8}  {row.kind.recipe:<7}  {row.what:<10}  "
        f"measured {row.measured / GIB:7.2f} GiB  predicted {row.predicted / GIB:7.2f} GiB  {row.error:+6.1%}  "
        f"{row.tokens_per_second:9,.0f} tokens/s",
        flush=True,
    )


def show_fitted(rows: list[Row]) -> None:
    """From the two largest micro-batches: bytes a token and layer, and what no token causes."""
    print(
        "\nfitted: bytes a token and layer (formula's slope beside it), and what is left at no tokens"
    )
    keys = dict.fromkeys((row.model, row.kind) for row in rows if row.what == "1 part")
    for model, kind in keys:
        found = [row for row in rows if (row.model, row.kind, row.what) == (model, kind, "1 part")]
        if len(found) < 2:
            continue
        shape, (less, more) = SHAPES[model], found[-2:]
        tokens = (more.micro_batch - less.micro_batch) * shape.context * shape.layers
        measured = (more.measured - less.measured) / tokens
        predicted = (more.predicted - less.predicted) / tokens
        rest = more.measured - measured * more.micro_batch * shape.context * shape.layers
        rest_predicted = (
            more.predicted - predicted * more.micro_batch * shape.context * shape.layers
        )
        mode = "compiled" if kind.compiled else "eager"
        print(
            f"{model:<12} {mode:<8} {kind.recipe:<5} {measured:9.0f} ({predicted:9.0f}), a block keeps "
            f"{kept_by_block(shape, kind)} = {kept_by_block(shape, kind) / shape.width:.1f} C; "
            f"off by {(measured - predicted) / shape.width:+.2f} C; "
            f"rest {rest / GIB:.2f} GiB ({rest_predicted / GIB:.2f})"
        )


if __name__ == "__main__":
    main()
