"""Folders of training runs for tests that read them: real records and checkpoints, without the training."""

from __future__ import annotations

from pathlib import Path

import torch

from lowtide import Tokenizer
from lowtide.model.gpt import GPT
from lowtide.model.shape import ModelShape
from lowtide.training.checkpoint import RunState, write_checkpoint
from lowtide.training.run_folder import TOKENIZER, RunRecord, write_run_record
from lowtide.training.settings import TrainSettings
from tests.learnt import learnt

TINY = ModelShape(layers=2, heads=2, width=16, context=24, vocabulary_size=562)


def begin_run(folder: Path, *, shape: ModelShape = TINY, with_tokenizer: bool = True) -> Path:
    """A run before its first checkpoint."""
    settings = TrainSettings(
        model="custom",
        shape=shape,
        data="somewhere",
        batch_tokens=shape.context,
        micro_batch=1,
        steps=10,
        learning_rate=1e-3,
        final_learning_rate=1e-4,
        warmup_steps=1,
        device="cpu",
        precision="float32",
        compiled=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_run_record(RunRecord(folder=folder, settings=settings, stream={}, tool_version="0"))
    if with_tokenizer:
        Tokenizer.from_byte_pairs(learnt("gpt2")).save(folder / TOKENIZER)
    return folder


def add_checkpoint(run: Path, model: GPT, step: int) -> Path:
    """The model as the checkpoint of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return write_checkpoint(run, model, optimizer, RunState(step=step, loader={}))
