"""A training run, opened: its folder taken, its model as the newest checkpoint has it, its log written along.

open_run → folder locked, weights and optimizer where they were
follow   → log, curves and guard beside the steps
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lowtide.events import Listener, ignore
from lowtide.journal import LOG_NAME, rewind
from lowtide.memory.allocator import keep_large_pieces
from lowtide.memory.budget import Budget
from lowtide.stages.chat import decode_answer, prompt_for_samples
from lowtide.stages.follow_run import follow_run
from lowtide.stages.run_source import RunSource
from lowtide.stages.start_weights import begins_from, load_start, warn_of_other_tokens
from lowtide.stages.stop_run import RunGuard
from lowtide.stages.stop_signals import listen_for_stops
from lowtide.stages.take_run import check_run, take_run
from lowtide.stages.watch_run import ShouldStop
from lowtide.training.build import device_of
from lowtide.training.checkpoint import RunState, load_newest
from lowtide.training.data_parallel import Ranks, joined, share_from_leader, wait_for_all
from lowtide.training.gpu_memory import read_gpu_use
from lowtide.training.learner import ModelInTraining, make_model_in_training
from lowtide.training.loop import RunContext
from lowtide.training.run_folder import TOKENIZER
from lowtide.training.sample_text import Sampler
from lowtide.training.settings import TrainSettings
from lowtide.training.tensorboard import Board


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """What a run works with."""

    folder: Path
    settings: TrainSettings
    learner: ModelInTraining
    state: RunState
    """Where the newest checkpoint stands."""
    ranks: Ranks
    budget: Budget
    should_stop: ShouldStop
    listen: Listener


@contextmanager
def open_run(
    folder: Path,
    settings: TrainSettings,
    source: RunSource,
    *,
    budget: Budget,
    restart: bool,
    listen: Listener,
    should_stop: ShouldStop | None,
    ranks: Ranks,
) -> Iterator[OpenRun]:
    """The folder is this process's alone inside. Without `should_stop`, signals ask for a stop."""
    device = device_of(settings, ranks)
    check_run(folder, settings, source, restart=restart)
    start = begins_from(folder, settings, restart=restart)
    if device.type == "cpu":
        keep_large_pieces()
    with ExitStack() as stack:
        if should_stop is None:
            should_stop = stack.enter_context(listen_for_stops())
        stack.enter_context(joined(ranks, settings.device))
        load = partial(load_start, start.folder) if start and ranks.leads else None
        learner = make_model_in_training(settings, device, start=load)
        if ranks.leads:
            digest = start.digest() if start else None
            listen = stack.enter_context(
                take_run(folder, settings, source, restart=restart, listen=listen, start=digest)
            )
        wait_for_all()
        state = load_newest(folder, learner.model, learner.optimizer)
        if start:
            share_from_leader(learner.model.parameters())
            warn_of_other_tokens(start, folder / TOKENIZER, listen if ranks.leads else ignore)
        yield OpenRun(
            folder=folder,
            settings=settings,
            learner=learner,
            state=state,
            ranks=ranks,
            budget=budget,
            should_stop=should_stop,
            listen=listen if ranks.leads else ignore,
        )


@contextmanager
def follow(
    run: OpenRun, *, boards: Sequence[Board] = (), peak_flops: float | None = None
) -> Iterator[RunContext]:
    """What the loop is told of the world; all that it says is written down on the way."""
    listen = run.listen
    with ExitStack() as stack:
        if run.ranks.leads:
            rewind(run.folder / LOG_NAME, run.state.step)
            listen = stack.enter_context(
                follow_run(
                    run.folder,
                    run.settings,
                    listen,
                    after_step=run.state.step,
                    budget_bytes=run.budget.total_bytes,
                    boards=boards,
                )
            )
        device = run.learner.device
        read_gpu = partial(read_gpu_use, device) if device.type == "cuda" else None
        guard = RunGuard(
            run.folder,
            run.budget,
            run.should_stop,
            listen,
            micro_batch=run.settings.micro_batch,
            read_gpu=read_gpu,
        )
        yield RunContext(
            run=run.folder,
            ranks=run.ranks,
            listen=listen,
            why_stop=guard.look,
            write_sample=_make_sampler(run, listen),
            peak_flops=peak_flops,
        )


def _make_sampler(run: OpenRun, listen: Listener) -> Sampler:
    """Who writes samples. A run on examples has its prompt rendered now, not between two steps."""
    tokenizer, settings = run.folder / TOKENIZER, run.settings
    prompt = None
    if run.ranks.leads and settings.sample_every:
        prompt = prompt_for_samples(tokenizer, context=settings.shape.context, listen=listen)
    if prompt is None:
        return Sampler(tokenizer, settings.seed)
    read = partial(decode_answer, prompt)
    return Sampler(tokenizer, settings.seed, prompt=prompt.ids, read=read)
