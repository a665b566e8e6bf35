"""A small GPT-2 that transformers made, examples for it, and the command that trains it further."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from lowtide import TokenDataset
from lowtide.model.hugging_face import config_of
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from tests.training.small_runs import SHAPE, Command


def save_theirs(folder: Path, shape: ModelShape = SHAPE, *, seed: int = 11) -> Path:
    """A GPT2LMHeadModel as `save_pretrained` writes it, with numbers that no model starts with."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**config_of(shape)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    model.save_pretrained(folder)
    return folder


def their_loss(folder: Path, tokens: Tensor, labels: Tensor) -> float:
    """What transformers says; labels stand beside their tokens."""
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return float(model(tokens, labels=labels).loss)


def examples_of(dataset: TokenDataset, first: int, count: int) -> tuple[Tensor, Tensor]:
    """The examples of some windows, one a row and padded, with labels for learnt tokens alone."""
    x, y, documents = dataset.read(first, count, documents=True)
    rows: list[tuple[list[int], list[int]]] = []
    places = np.argwhere(documents >= 0).tolist()
    for row, number in sorted({(row, int(documents[row, at])) for row, at in places}):
        place = documents[row] == number
        tokens, targets = x[row][place].tolist(), y[row][place].tolist()
        rows.append((tokens, [IGNORED, *targets[:-1]]))
    size = (len(rows), dataset.context)
    all_tokens, labels = torch.zeros(size, dtype=torch.int64), torch.full(size, IGNORED)
    for at, (tokens, told) in enumerate(rows):
        all_tokens[at, : len(tokens)], labels[at, : len(told)] = (
            torch.tensor(tokens),
            torch.tensor(told),
        )
    return all_tokens, labels


def tune(data: Path, out: Path, *more: str | Path) -> Command:
    """`lowtide train … --device cpu --quiet`, as a process."""
    arguments = ("train", data, "--out", out, "--device", "cpu", "--no-smoke", *more)
    return Command(out.with_name(f"said-{out.name}"), *arguments)
