"""The ways to get batches that `loader.py` compares: nanoGPT's, numpy's, litdata's, MDS's and lowtide's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.loader_tokens import SHARDS, Task

BASELINE = "nanoGPT get_batch"
_DRAWN = "windows at random: no epochs, no resuming"
_EXACT = "every token once an epoch; resumes at a number"

Batches = Generator[Any, None, None]
"""Endless pairs of `x` and `y`: numpy or torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to get batches. `needs` are imported before anything is measured; a `peer` has an environment."""

    name: str
    open: Callable[[Task], Batches]
    gives: str
    needs: tuple[str, ...] = ()
    dtype: str = "int64"
    peer: str = ""


def get_batch(task: Task) -> Batches:
    """nanoGPT's train.py, line by line, on a CPU."""
    import torch

    block_size, batch_size, device = task.context, task.batch, "cpu"
    while True:
        data = np.memmap(task.train_bin, dtype=np.uint16, mode="r")
        yield _stack(torch, data, block_size, batch_size, device)


def get_batch_kept(task: Task) -> Batches:
    """The same with one memmap for all batches, as nanoGPT once had it."""
    import torch

    data = np.memmap(task.train_bin, dtype=np.uint16, mode="r")
    while True:
        yield _stack(torch, data, task.context, task.batch, "cpu")


def _stack(torch: Any, data: Any, block_size: int, batch_size: int, device: str) -> tuple[Any, Any]:
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix]
    )
    return x.to(device), y.to(device)


def gather(task: Task) -> Batches:
    """The least that numpy can do: one indexed read, nothing widened."""
    data = np.asarray(np.memmap(task.train_bin, dtype=np.uint16, mode="r"))
    generator, steps = np.random.default_rng(0), np.arange(task.context + 1)
    while True:
        offsets = generator.integers(len(data) - task.context, size=task.batch)
        rows = data[offsets[:, None] + steps]
        yield rows[:, :-1], rows[:, 1:]


def gather_wide(task: Task) -> Batches:
    """The same, made int64 in one go; `x` and `y` share their memory."""
    data = np.asarray(np.memmap(task.train_bin, dtype=np.uint16, mode="r"))
    generator, steps = np.random.default_rng(0), np.arange(task.context + 1)
    while True:
        offsets = generator.integers(len(data) - task.context, size=task.batch)
        rows = data[offsets[:, None] + steps].astype(np.int64)
        yield rows[:, :-1], rows[:, 1:]


def litdata_loader(task: Task, *, workers: int) -> Batches:
    """As in litdata's README; targets cut as litgpt cuts them."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(
        str(task.litdata),
        item_loader=TokensLoader(block_size=task.context + 1),
        shuffle=True,
        drop_last=True,
    )
    loader = StreamingDataLoader(dataset, batch_size=task.batch, num_workers=workers)
    while True:
        for rows in loader:
            yield rows[:, :-1].long(), rows[:, 1:].long()


def mds_loader(task: Task, *, workers: int) -> Batches:
    """As in the documentation of mosaicml-streaming: its dataset in torch's loader."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=str(task.mds), shuffle=True, batch_size=task.batch)
    loader = DataLoader(
        dataset,
        batch_size=task.batch,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    while True:
        for found in loader:
            rows = found["tokens"]
            yield rows[:, :-1].long(), rows[:, 1:].long()


def lowtide_batch(task: Task, *, shards: bool = False, windows: str = "contiguous") -> Batches:
    from lowtide import TokenDataset

    path = task.shards if shards else task.train_bin
    dataset = TokenDataset(path, context=task.context, windows=windows)  # type: ignore[arg-type]
    for k in itertools.count():
        yield dataset.batch(k, task.batch)


def lowtide_loader(task: Task) -> Batches:
    from lowtide import TokenDataset

    yield from TokenDataset(task.train_bin, context=task.context).loader(task.batch)


def lowtide_items(task: Task, *, workers: int) -> Batches:
    from torch.utils.data import DataLoader

    from lowtide import TokenDataset

    items = TokenDataset(task.train_bin, context=task.context).items()
    loader = DataLoader(
        items,
        batch_size=task.batch,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


_LITDATA = "each block once an epoch, the rest of a chunk never; resumes"
_MDS = "each sample once an epoch; resumes with its own loader"
_LOWTIDE, _TORCH = ("lowtide.dataset.token_dataset",), ("torch", "torch.utils.data")
_LOADER = (*_LOWTIDE, "lowtide.dataset.loader")
WAYS = (
    Way(name=BASELINE, open=get_batch, gives=_DRAWN, needs=_TORCH),
    Way(name="nanoGPT, memmap kept", open=get_batch_kept, gives=_DRAWN, needs=_TORCH),
    Way(name="numpy gather, uint16", open=gather, gives=_DRAWN, dtype="uint16"),
    Way(name="numpy gather, int64", open=gather_wide, gives=_DRAWN),
    Way(
        name="litdata, no workers",
        open=functools.partial(litdata_loader, workers=0),
        gives=_LITDATA,
        needs=("litdata",),
        peer="litdata",
    ),
    Way(
        name="litdata, 2 workers",
        open=functools.partial(litdata_loader, workers=2),
        gives=_LITDATA,
        needs=("litdata",),
        peer="litdata",
    ),
    Way(
        name="MDS, no workers",
        open=functools.partial(mds_loader, workers=0),
        gives=_MDS,
        needs=("streaming",),
        peer="streaming",
    ),
    Way(
        name="MDS, 2 workers",
        open=functools.partial(mds_loader, workers=2),
        gives=_MDS,
        needs=("streaming",),
        peer="streaming",
    ),
    Way(
        name="lowtide items in DataLoader, no workers",
        open=functools.partial(lowtide_items, workers=0),
        gives=_EXACT,
        needs=(*_LOWTIDE, *_TORCH),
    ),
    Way(
        name="lowtide items in DataLoader, 2 workers",
        open=functools.partial(lowtide_items, workers=2),
        gives=_EXACT,
        needs=(*_LOWTIDE, *_TORCH),
    ),
    Way(name="lowtide batch(), train.bin", open=lowtide_batch, gives=_EXACT, needs=_LOWTIDE),
    Way(name="lowtide loader(), train.bin", open=lowtide_loader, gives=_EXACT, needs=_LOADER),
    Way(
        name=f"lowtide batch(), {SHARDS:,} shards",
        open=functools.partial(lowtide_batch, shards=True),
        gives=_EXACT,
        needs=_LOWTIDE,
    ),
    Way(
        name=f'lowtide batch(), {SHARDS:,} shards, windows="document"',
        open=functools.partial(lowtide_batch, shards=True, windows="document"),
        gives=f"{_EXACT}; no target beyond its document",
        needs=_LOWTIDE,
    ),
)
