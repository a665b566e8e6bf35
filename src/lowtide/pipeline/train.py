"""The story of `train`: token shards become a GPT, inside the memory there is, crash by crash.

dataset → loader → steps → checkpoints, log, samples in the folder of the run
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.journal import LOG_NAME, rewind
from lowtide.memory.allocator import keep_large_pieces
from lowtide.memory.budget import Budget, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.pipeline.follow_run import follow_run
from lowtide.pipeline.stop_run import RunGuard
from lowtide.pipeline.stop_signals import listen_for_stops
from lowtide.pipeline.take_run import check_run, take_run
from lowtide.pipeline.watch_run import ShouldStop
from lowtide.training.build import build_model, device_of
from lowtide.training.checkpoint import load_newest
from lowtide.training.data_parallel import Ranks, joined, wait_for_all
from lowtide.training.gpu_memory import peak_of_gpu, read_gpu_use
from lowtide.training.loop import Loop, Surroundings
from lowtide.training.optimizer import make_optimizer
from lowtide.training.run_folder import TOKENIZER
from lowtide.training.run_results import TrainedRun
from lowtide.training.sample_text import Sampler
from lowtide.training.settings import RunSettings
from lowtide.training.tensorboard import Board

_FEWEST_WINDOWS = 16
"""Fewer held out are one or two documents, and their loss is the luck of which."""


def train(
    out: str | Path,
    settings: RunSettings,
    *,
    memory: Budget | str | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop | None = None,
    ranks: Ranks | None = None,
    peak_flops: float | None = None,
    boards: Sequence[Board] = (),
) -> TrainedRun:
    """Train in the folder `out`, or go on where an earlier call was cut off.

    Raises StoppedError after a clean stop; the same call goes on, to the same weights. Without `should_stop`,
    signals ask for one. `boards` are drawn on beside TensorBoard's files.
    """
    started = time.monotonic()
    ranks = ranks or Ranks()
    folder = Path(out)
    budget = memory
    if not isinstance(budget, Budget):
        budget = choose_budget(budget, machine_limit(), generous=True)
    datasets = _open_data(settings, listen)
    _check_share(settings, ranks)
    device = device_of(settings, ranks)
    check_run(folder, settings, datasets[0], restart=restart)
    if device.type == "cpu":
        keep_large_pieces()
    with ExitStack() as stack:
        if should_stop is None:
            should_stop = stack.enter_context(listen_for_stops())
        stack.enter_context(joined(ranks, settings.device))
        model = build_model(settings, device)
        optimizer = make_optimizer(model, settings)
        if ranks.leads:
            listen = stack.enter_context(
                take_run(folder, settings, datasets[0], restart=restart, listen=listen)
            )
        wait_for_all()
        state = load_newest(folder, model, optimizer)
        if 0 < state.step < settings.steps:
            text = f"going on after step {state.step}: the checkpoint stands and is verified"
            listen(Note(text=text))
        if state.step >= settings.steps:
            return TrainedRun(
                folder=folder,
                state=state,
                seconds=0.0,
                micro_batch=settings.micro_batch,
                already_done=True,
            )
        if ranks.leads:
            rewind(folder / LOG_NAME, state.step)
            listen = stack.enter_context(
                follow_run(
                    folder,
                    settings,
                    listen,
                    after_step=state.step,
                    budget_bytes=budget.total_bytes,
                    boards=boards,
                )
            )
        if not ranks.leads:
            listen = ignore
        read_gpu = partial(read_gpu_use, device) if device.type == "cuda" else None
        around = Surroundings(
            run=folder,
            ranks=ranks,
            listen=listen,
            why_stop=RunGuard(folder, budget, should_stop, listen, read_gpu=read_gpu).look,
            write_sample=Sampler(folder / TOKENIZER, settings.seed),
            peak_flops=peak_flops,
        )
        begun_at = state.step
        loop = Loop(settings, model, optimizer, datasets, state, around)
        state = loop.run()
    return TrainedRun(
        folder=folder,
        state=state,
        seconds=time.monotonic() - started,
        micro_batch=loop.settings.micro_batch,
        steps=state.step - begun_at,
        gpu_bytes=peak_of_gpu(device),
        train_loss=loop.pace.mean_loss,
        tokens_per_second=loop.pace.tokens_per_second,
    )


def _open_data(settings: RunSettings, listen: Listener) -> tuple[TokenDataset, TokenDataset | None]:
    """The training windows in their order, and held-out ones in the order of the text, if there are any."""
    shape = settings.shape
    train_set = TokenDataset(
        settings.data,
        settings.split,
        shape.context,
        settings.seed,
        windows=settings.windows,
        val_fraction=settings.val_fraction,
        tokenizer=settings.tokenizer,
    )
    named = train_set.tokenizer
    if named is not None and named.vocabulary_size > shape.vocabulary_size:
        raise UsageError(
            f"{settings.data} was made by {named.name} with {named.vocabulary_size} tokens, and the model "
            f"knows {shape.vocabulary_size}",
            remedy=f"plan again for this dataset, or set `vocabulary_size = {named.vocabulary_size}`",
        )
    try:
        val_set = TokenDataset(
            settings.data,
            settings.val_split,
            shape.context,
            order="sequential",
            val_fraction=settings.val_fraction,
            tokenizer=settings.tokenizer,
        )
    except UsageError as reason:  # no such split, or it is shorter than a window
        listen(Note(text=f"nothing is evaluated: {reason.problem}", level="warning"))
        return train_set, None
    if val_set.window_count < _FEWEST_WINDOWS:
        text = (
            f"only {val_set.window_count} windows are held out: their loss says little. `lowtide tokenize` "
            "holds out more with a larger `--val`"
        )
        listen(Note(text=text, level="warning"))
    return train_set, val_set


def _check_share(settings: RunSettings, ranks: Ranks) -> None:
    windows = settings.windows_per_step
    if windows % ranks.world_size:
        whole = max(1, round(windows / ranks.world_size)) * ranks.world_size
        raise UsageError(
            f"a step of {windows} windows cannot be shared by {ranks.world_size} ranks",
            remedy=f"pass `--batch-tokens {whole * settings.shape.context}`",
        )
