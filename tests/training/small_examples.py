"""Examples so small that a test can have many, and what a plain padded implementation makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from lowtide.shards.layout import ShardLayout
from tests.dataset.examples import Flags, some_flags, write_examples
from tests.shards.streams import Stream, make_stream
from tests.training.small_runs import SHAPE, VOCABULARY

PACKED = {"windows": "document", "attention": "document"}
"""What a run over examples is set to."""


@dataclass(frozen=True)
class Examples:
    """Some of them, and which tokens are learnt."""

    stream: Stream
    flags: Flags

    @property
    def each(self) -> list[tuple[list[int], list[bool]]]:
        starts = [0, *self.stream.ends[:-1].tolist()]
        return [
            (self.stream.ids[a:b].tolist(), self.flags[a:b].tolist())
            for a, b in zip(starts, self.stream.ends.tolist(), strict=True)
        ]


def make_examples(
    lengths: Sequence[int], *, seed: int = 0, vocabulary_size: int = VOCABULARY
) -> Examples:
    """Common ids are small, and about half of the tokens are learnt."""
    stream = make_stream(lengths, vocabulary_size, seed=seed, eot="none")
    ids = (stream.ids.astype(np.int64) ** 2 // vocabulary_size).astype(np.uint32)
    return Examples(Stream(ids, stream.ends), some_flags(len(ids), seed + 1))


def write(
    folder: Path, train: Examples, val: Examples | None = None, *, vocabulary_size: int = VOCABULARY
) -> Path:
    layout = ShardLayout(format="npy", vocabulary_size=vocabulary_size, shard_tokens=300)
    given = {"train": train} | ({"val": val} if val else {})
    splits = {name: (one.stream, one.flags) for name, one in given.items()}
    return write_examples(folder, layout, **splits)


def make_example_tokens(folder: Path, *, seed: int = 0) -> Path:
    """Some 130 examples to train on and 40 held out, none longer than a window."""
    lengths = [5, 3, 12, 16, 2, 9, 7, 11, 14, 4, 6, 8, 10] * 10
    return write(
        folder, make_examples(lengths, seed=seed), make_examples(lengths[:40], seed=seed + 5)
    )


def padded(examples: Examples, shape: ModelShape = SHAPE) -> tuple[Tensor, Tensor]:
    """One example a row, padded; a target where the next token is learnt, and nowhere else."""
    size = (len(examples.each), shape.context)
    tokens, targets = torch.zeros(size, dtype=torch.int64), torch.full(size, IGNORED)
    for row, (ids, learnt) in enumerate(examples.each):
        for at, token in enumerate(ids):
            tokens[row, at] = token
            if at and learnt[at]:
                targets[row, at - 1] = token
    return tokens, targets
