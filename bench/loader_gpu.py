"""Batches on a GPU: nanoGPT's get_batch against lowtide's loader, alone and beside a step of small kernels.

    python bench/loader_gpu.py --tokens 300M

Needs a GPU and torch. The file of random tokens lies in the system's temporary folder and is removed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch

from lowtide import TokenDataset
from lowtide.units import parse_count

Batch = tuple[torch.Tensor, ...]
_PIECE_TOKENS = 10_000_000
_KERNELS_A_STEP = 150


def write_tokens(path: Path, count: int) -> None:
    """Random ids of GPT-2's vocabulary."""
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, count, _PIECE_TOKENS):
            piece = min(_PIECE_TOKENS, count - start)
            generator.integers(4, 50257, piece, dtype=np.uint16).tofile(file)


def get_batch(path: Path, batch_size: int, context: int) -> Batch:
    """As nanoGPT's train.py does it, a map made anew for every batch."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    offsets = torch.randint(len(data) - context, (batch_size,))
    rows = [
        torch.stack(
            [torch.from_numpy(data[i + by : i + by + context].astype(np.int64)) for i in offsets]
        )
        for by in (0, 1)
    ]
    return tuple(row.pin_memory().to("cuda", non_blocking=True) for row in rows)


def per_second(get: Callable[[], Batch], count: int) -> float:
    """Batches a second, all of them arrived."""
    for _ in range(20):
        get()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        get()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - started)


def with_step(get: Callable[[], Batch]) -> Callable[[], Batch]:
    """A batch, and a step whose kernels are small: the interpreter has its hands full launching them."""
    weight = torch.randn(1024, 1024, device="cuda")

    def step() -> Batch:
        found = get()
        hidden = weight
        for _ in range(_KERNELS_A_STEP):
            hidden = torch.tanh(hidden @ weight)
        return found

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=parse_count, default=300_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lowtide-loader-") as folder:
        path = Path(folder) / "train.bin"
        write_tokens(path, chosen.tokens)
        loader = TokenDataset(path, context=chosen.context).loader(chosen.batch, device="cuda")
        batches = iter(loader)
        ways: dict[str, Callable[[], Batch]] = {
            "nanoGPT's get_batch": lambda: get_batch(path, chosen.batch, chosen.context),
            "lowtide loader": lambda: next(batches),
            "no data": lambda: (),
        }
        print(f"{torch.cuda.get_device_name()}, batches of {chosen.batch} x {chosen.context}")
        print("| way | batches a second | a step of small kernels, ms |")
        print("|---|--:|--:|")
        for name, get in ways.items():
            speeds = [per_second(get, 500) for _ in range(chosen.rounds)]
            steps = [1000 / per_second(with_step(get), 100) for _ in range(chosen.rounds)]
            shown = "–" if name == "no data" else f"{statistics.median(speeds):,.0f}"
            print(f"| {name} | {shown} | {statistics.median(steps):.2f} |", flush=True)
        loader.close()


if __name__ == "__main__":
    main()
