"""What `plan` says fits a small card, run on a large one that pretends to be small.

    PYTHONPATH=src python3 bench/small_card.py --vram 12GiB [--models gpt2,gpt2-medium] [--recipes fast,lean]

PyTorch's allocator is held to what such a card leaves it: all but CUDA's own share. In a process of its own,
each model and recipe trains for two steps that accumulate, is evaluated, saved, and sampled from, with the
largest micro-batch of the plan; then with the first that is predicted to need more than the card has.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import itertools
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

from lowtide.model.needs import StepKind, peak_of_run
from lowtide.model.shape import SHAPES
from lowtide.plan.fit import largest_micro_batch
from lowtide.plan.machine import CONTEXT_BYTES, choose_machine
from lowtide.training.settings import TrainSettings
from lowtide.units import GIB, parse_bytes

MODELS = ("gpt2", "gpt2-medium", "gpt2-large")
RECIPES = ("fast", "lean", "leanest")
_MOST = 512


def settings_for(name: str, recipe: str, micro_batch: int, data: Path) -> TrainSettings:
    shape = SHAPES[name]
    return TrainSettings(
        model=name,
        shape=shape,
        data=str(data),
        batch_tokens=2 * micro_batch * shape.context,
        micro_batch=micro_batch,
        steps=2,
        learning_rate=1e-4,
        final_learning_rate=1e-5,
        warmup_steps=1,
        recipe=recipe,  # type: ignore[arg-type]
        evaluate_every=2,
        evaluate_windows=2 * micro_batch,
        checkpoint_every=2,
        sample_every=0,
    )


def attempt(name: str, recipe: str, micro_batch: int, vram: int, data: Path) -> None:
    """Trains, evaluates, saves and samples; prints the peaks, or fails."""
    import torch

    from lowtide.model.generate import generate
    from lowtide.stages.open_model import open_run
    from lowtide.stages.train import train

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((vram - CONTEXT_BYTES) / total)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        result = train(run, settings_for(name, recipe, micro_batch, data))
        if result.micro_batch != micro_batch:
            sys.exit(f"only with {result.micro_batch}")
        taken, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.empty_cache()
        list(generate(open_run(run, device="cuda").model, [1, 2, 3], count=8, seed=0))
    print(f"{taken} {held}")


def run_attempt(name: str, recipe: str, micro_batch: int, chosen: argparse.Namespace) -> str | None:
    """What it printed, or None where it failed."""
    told = ["--attempt", f"{name},{recipe},{micro_batch}", "--vram", chosen.vram]
    command = [sys.executable, __file__, *told, "--data", str(chosen.data)]
    as_train_does = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=as_train_does)
    if done.returncode and "memory" not in done.stderr and "only with" not in done.stderr:
        sys.exit(done.stderr)
    return None if done.returncode else done.stdout.splitlines()[-1]


def show(name: str, recipe: str, chosen: argparse.Namespace) -> str:
    """A row: the largest that fits, and the first that is predicted to need the slack and more."""
    machine, shape = choose_machine(vram=chosen.vram), SHAPES[name]
    kind = StepKind(recipe=recipe)  # type: ignore[arg-type]
    largest, beyond = (
        largest_micro_batch(shape, kind, room, most=_MOST)
        for room in (machine.budget_bytes, machine.budget_bytes + machine.slack_bytes)
    )
    sizes = [largest, beyond + 1] if largest else [beyond + 1]
    with ThreadPoolExecutor() as pool:
        *fits, ran = pool.map(lambda size: run_attempt(name, recipe, size, chosen), sizes)
    row = f"| {name} | {recipe} | {largest} | "
    if largest:
        row += f"{peak_of_run(shape, largest, kind).total / GIB:.2f} | "
    else:
        row += "| | | "
    for found in fits:
        row += "FAILS | | " if found is None else f"{' | '.join(map(_gib, found.split()))} | "
    outcome = "fails" if ran is None else f"runs, {_gib(ran.split()[0])} GiB"
    return row + f"{beyond + 1} | {outcome} |"


def _gib(count: str) -> str:
    return f"{int(count) / GIB:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vram", default="12GiB")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--at-once", type=int, default=6, help="rows that are made side by side")
    parser.add_argument("--attempt", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attempt:
        name, recipe, size = chosen.attempt.split(",")
        attempt(name, recipe, int(size), parse_bytes(chosen.vram), chosen.data)
        return
    with tempfile.TemporaryDirectory() as folder:
        chosen.data = Path(folder)
        for split in ("train", "val"):
            ids = np.random.default_rng(0).integers(0, 50257, 3_000_000).astype(np.uint16)
            ids.tofile(chosen.data / f"{split}.bin")
        print(
            f"{chosen.vram}, {choose_machine(vram=chosen.vram).budget_bytes / GIB:.2f} GiB for tensors\n"
        )
        print(
            "| model | recipe | plan's | predicted GiB | allocated | reserved | beyond the slack | |"
        )
        print("|---|---|--:|--:|--:|--:|--:|---|")
        pairs = itertools.product(chosen.models.split(","), chosen.recipes.split(","))
        with ThreadPoolExecutor(chosen.at_once) as pool:
            rows = [pool.submit(show, *pair, chosen) for pair in pairs]
            for row in as_completed(rows):
                print(row.result(), flush=True)


if __name__ == "__main__":
    main()
