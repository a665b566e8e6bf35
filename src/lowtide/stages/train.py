"""The story of `train`: token shards become a GPT, inside the memory there is, crash by crash.

dataset → loader → steps → checkpoints, log, samples in the folder of the run
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from lowtide.dataset.pack_documents import DocumentWindows
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.memory.budget import Budget, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.stages.open_run import follow, open_run
from lowtide.stages.run_source import dataset_source
from lowtide.stages.watch_run import ShouldStop
from lowtide.storage.paths import as_path
from lowtide.training.data_parallel import Ranks
from lowtide.training.gpu_memory import peak_of_gpu
from lowtide.training.loop import Loop
from lowtide.training.run_results import TrainResult
from lowtide.training.settings import TrainSettings, steps_for
from lowtide.training.tensorboard import Board

FEWEST_WINDOWS = 16
"""Fewer held out are one or two documents, and their loss is the luck of which."""


def train(
    out: str | Path,
    settings: TrainSettings,
    *,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop | None = None,
    ranks: Ranks | None = None,
    peak_flops: float | None = None,
    boards: Sequence[Board] = (),
) -> TrainResult:
    """Train in the folder `out`, or resume where an earlier call was cut off.

    Raises StoppedError after a clean stop; the same call resumes, to the same weights. Without `should_stop`,
    signals ask for one. `boards` are drawn on beside TensorBoard's files.
    """
    started = time.monotonic()
    ranks = ranks or Ranks()
    folder = as_path(out)
    budget = memory
    if not isinstance(budget, Budget):
        budget = choose_budget(budget, machine_limit(), generous=True)
    datasets = _open_data(settings, listen)
    _check_share(settings, ranks)
    _check_epochs(settings, datasets[0])
    with open_run(
        folder,
        settings,
        dataset_source(datasets[0]),
        budget=budget,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        ranks=ranks,
    ) as run:
        state, learner = run.state, run.learner
        if 0 < state.step < settings.steps:
            text = f"going on after step {state.step}: the checkpoint stands and is verified"
            run.listen(Note(text=text))
        if state.step >= settings.steps and not state.owes_evaluation:
            return TrainResult(
                folder=folder,
                state=state,
                seconds=0.0,
                micro_batch=settings.micro_batch,
                already_done=True,
            )
        begun_at = state.step
        with follow(run, boards=boards, peak_flops=peak_flops) as context:
            loop = Loop(settings, learner.model, learner.optimizer, datasets, state, context)
            state = loop.run()
    return TrainResult(
        folder=folder,
        state=state,
        seconds=time.monotonic() - started,
        micro_batch=loop.settings.micro_batch,
        steps=state.step - begun_at,
        gpu_bytes=peak_of_gpu(learner.device),
        train_loss=loop.pace.mean_loss,
        tokens_per_second=loop.pace.tokens_per_second,
    )


def _open_data(
    settings: TrainSettings, listen: Listener
) -> tuple[TokenDataset, TokenDataset | None]:
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
    _tell_of_examples(train_set, listen)
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
    if settings.val_fraction:
        share = f"{settings.val_fraction:.1%} of {settings.split}"
        listen(
            Note(text=f"the data has no {settings.val_split}: {share} is held out for validation")
        )
    if val_set.window_count < FEWEST_WINDOWS:
        few = "1 window is" if val_set.window_count == 1 else f"{val_set.window_count} windows are"
        text = (
            f"only {few} held out: a loss on so few says little. `lowtide tokenize` "
            "holds out more with a larger `--val`"
        )
        listen(Note(text=text, level="warning"))
    return train_set, val_set


def _tell_of_examples(data: TokenDataset, listen: Listener) -> None:
    """How much of the windows is learnt, and how much is padding; a warning where examples are cut."""
    record, learnt = data.examples, data.learnt_tokens
    if record is None or learnt is None:
        return
    text = (
        f"{data.window_count:,} windows of examples: {data.padding_share:.1%} of their places are "
        f"padding, {learnt / max(1, data.tokens):.1%} of the tokens are targets"
    )
    listen(Note(text=text))
    if isinstance(data.windows, DocumentWindows) and data.windows.long_documents:
        count = data.windows.long_documents
        text = (
            f"{count:,} {'example is' if count == 1 else 'examples are'} longer than a window, {data.context} "
            f"tokens, and cut. `lowtide tokenize --context {data.context}` deals with them as `--too-long` says"
        )
        listen(Note(text=text, level="warning"))


def _check_epochs(settings: TrainSettings, data: TokenDataset) -> None:
    """Steps and epochs both say where a run ends, and must say the same."""
    if settings.epochs is None:
        return
    steps = steps_for(
        settings.epochs,
        window_count=data.window_count,
        windows_per_step=settings.windows_per_step,
    )
    if steps != settings.steps:
        raise UsageError(
            f"{settings.epochs:g} epochs of {data.window_count} windows are {steps} steps, and not "
            f"{settings.steps}",
            remedy=f"leave `--steps` out, or set `steps = {steps}` in the plan",
        )


def _check_share(settings: TrainSettings, ranks: Ranks) -> None:
    windows = settings.windows_per_step
    if windows % ranks.world_size:
        whole = max(1, round(windows / ranks.world_size)) * ranks.world_size
        raise UsageError(
            f"a step of {windows} windows cannot be shared by {ranks.world_size} ranks",
            remedy=f"pass `--batch-tokens {whole * settings.shape.context}`",
        )
