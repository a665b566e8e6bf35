"""`train`: token shards become a GPT, inside the memory there is, crash by crash.

resolve_run → start_training → open_run → follow_run → Loop → checkpoints, log, samples in the folder of the run
              (smoke test)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import xxhash

from lowtide.dataset.pack_documents import DocumentWindows
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import DoesNotFitError, LowtideError, UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.memory.budget import Budget, check_needs, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.settings import TrainRequest
from lowtide.stages.folder import resuming_after
from lowtide.stages.follow_run import follow_run
from lowtide.stages.inbox.train_on_inbox import train_on_inbox
from lowtide.stages.open_run import open_run
from lowtide.stages.resolve_run import ResolvedRun, remember
from lowtide.stages.run_source import dataset_source
from lowtide.stages.smoke import smoke
from lowtide.stages.watch_run import ShouldStop
from lowtide.storage.paths import as_path
from lowtide.training.build import cpu_in_words
from lowtide.training.checkpoint import find_checkpoints, step_of
from lowtide.training.data_parallel import Ranks, ranks_of
from lowtide.training.gpu_memory import peak_of_gpu
from lowtide.training.loop import Loop
from lowtide.training.run_results import SmokeReport, TrainResult
from lowtide.training.settings import FEWEST_WINDOWS, TrainSettings, steps_for
from lowtide.training.tensorboard import Board, open_wandb
from lowtide.units import format_bytes, format_count, format_seconds

_LONG_STEPS, _LONG_HOURS = 1000, 0.5
_WEEK_HOURS = 7 * 24
_TELLING_STEPS = 50
"""Fewer, of which the first compile, say little about speed."""


def start_training(
    run: ResolvedRun,
    asked: TrainRequest,
    *,
    restart: bool,
    environment: Mapping[str, str],
    listen: Listener,
    should_stop: ShouldStop,
    speeds: Path | None = None,
) -> TrainResult | SmokeReport | None:
    """Train, or only try; None for the ranks that follow another.

    A new run of half an hour or more is tried first even when nobody asks. One that will take more than a week
    is refused, unless that is accepted.
    """
    ranks = ranks_of(environment)
    if run.inbox is not None and ranks.world_size > 1:
        raise UsageError(
            "an inbox is trained on by one process alone",
            remedy="start it without torchrun; or `lowtide tokenize` the files, and train on that by several",
        )
    budget = choose_budget(asked.memory, machine_limit(slurm=environment), generous=True)
    # Ranks on one machine share what it has: each looks at its own processes alone.
    budget = replace(budget, total_bytes=budget.total_bytes // ranks.local_world_size)
    check_needs(budget, run.ram_needs)
    checkpoints = find_checkpoints(run.folder)
    is_new = restart or not checkpoints
    if is_new and not asked.yes and not asked.smoke:
        _refuse_weeks(run.hours, run.speed.basis if run.speed else "")
    if not ranks.leads:
        listen = ignore
        if asked.smoke:
            return None
    if is_new or step_of(checkpoints[-1]) < run.settings.steps:
        for line in opening_lines(run):
            listen(Note(text=line))
    is_tried = is_new and _is_long(run) and not asked.no_smoke and ranks.world_size == 1
    if asked.smoke or is_tried:
        listen(Note(text="trying ten steps, an evaluation, a checkpoint and a sample"))
        report = smoke(run, memory=asked.memory, listen=listen, should_stop=should_stop)
        if run.machine_name:
            remember(speeds, run.machine_name, run.settings, report.tokens_per_second)
        for name, found in report.rows():
            listen(Note(text=f"{name}: {found}"))
        if asked.smoke:
            return report
        refuse_problems(report)
        if not asked.yes:
            _refuse_weeks(report.hours, "measured on some steps")
        run = replace(run, settings=replace(run.settings, micro_batch=report.micro_batch))
    boards = _open_boards(asked.wandb, run) if ranks.leads else ()
    if run.inbox is not None:
        return train_on_inbox(
            run,
            until_empty=asked.until_empty,
            memory=budget,
            restart=restart,
            listen=listen,
            should_stop=should_stop,
            environment=environment,
            boards=boards,
        )
    result = train(
        run.folder,
        run.settings,
        memory=budget,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        ranks=ranks,
        peak_flops=run.peak_flops,
        boards=boards,
    )
    _refuse_standstill(result, run.settings)
    is_telling = ranks.world_size == 1 and result.steps >= _TELLING_STEPS
    if is_telling and run.machine_name and result.tokens_per_second is not None:
        remember(speeds, run.machine_name, run.settings, result.tokens_per_second)
    return result if ranks.leads else None


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
    datasets = _open_data(settings, listen)
    _check_length(settings, datasets[0], ranks)
    with open_run(
        as_path(out),
        settings,
        dataset_source(datasets[0]),
        memory=memory,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        ranks=ranks,
        peak_flops=peak_flops,
    ) as run:
        begun = run.state
        if 0 < begun.step < settings.steps:
            run.listen(resuming_after(f"step {begun.step}"))
        if begun.step >= settings.steps and not begun.owes_evaluation:
            return TrainResult(
                folder=run.folder,
                state=begun,
                seconds=0.0,
                micro_batch=settings.micro_batch,
                already_done=True,
            )
        with follow_run(run, boards=boards) as followed:
            loop = Loop(followed, datasets)
            state = loop.run()
    return TrainResult(
        folder=run.folder,
        state=state,
        seconds=time.monotonic() - started,
        micro_batch=loop.settings.micro_batch,
        steps=state.step - begun.step,
        gpu_bytes=peak_of_gpu(run.device),
        train_loss=loop.pace.mean_loss,
        tokens_per_second=loop.pace.tokens_per_second,
    )


def opening_lines(run: ResolvedRun) -> Iterator[str]:
    """What is about to happen, for people."""
    settings, inbox = run.settings, run.inbox
    # torch is not asked for the GPU's name: this process would hold memory there while the child is tried.
    place = cpu_in_words() if settings.device == "cpu" else run.machine_name or "the GPU"
    yield (
        f"{settings.model}, {format_count(settings.shape.parameter_count)} parameters, windows of "
        f"{settings.shape.context} tokens, recipe {settings.recipe}, on {place}"
    )
    at_a_time = min(settings.micro_batch, settings.windows_per_step)
    steps = f"steps of {format_count(settings.batch_tokens)} tokens, {at_a_time} windows at a time"
    if inbox is not None:
        examples = inbox.tokenize.examples
        kind = "documents" if examples is None else f"{examples} examples"
        yield f"{kind} from {inbox.folder}: {_count(settings.epochs or 1, 'epoch')} of each file, {steps}"
        yield f"a file is tokenized in {format_bytes(inbox.least_bytes)} or more, beside the model"
    elif run.hours is not None and run.speed is not None:
        took = format_seconds(3600 * run.hours)
        yield f"{settings.steps:,} {steps}; about {took} in all ({run.speed.basis})"
    else:
        yield f"{settings.steps:,} {steps}"
    if settings.init is not None or inbox is not None:
        yield _rates_line(settings)
    yield "Ctrl-C saves and stops; the same command resumes the run"


def _rates_line(settings: TrainSettings) -> str:
    """What differs from training a new model once over its data."""
    start = "random weights" if settings.init is None else f"the weights of {settings.init}"
    ends = "constant"
    if settings.schedule == "cosine":
        ends = f"falling to {settings.final_learning_rate:g}"
    steps = _count(settings.warmup_steps, "step")
    warm_up = f" after {steps}" if settings.warmup_steps else ""
    epochs = f"; {_count(settings.epochs, 'epoch')}" if settings.epochs is not None else ""
    return (
        f"from {start}: learning rate {settings.learning_rate:g}{warm_up}, {ends}; weight decay "
        f"{settings.weight_decay:g}{epochs}"
    )


def _count(number: float, what: str) -> str:
    """`1 step`, `2,000 steps`, `2.5 epochs`."""
    written = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{written} {what}{'' if number == 1 else 's'}"


def _is_long(run: ResolvedRun) -> bool:
    if run.inbox is not None:  # it has no data to be tried on
        return False
    if run.hours is None:
        return run.settings.steps >= _LONG_STEPS
    return run.hours >= _LONG_HOURS


def _refuse_weeks(hours: float | None, basis: str) -> None:
    if hours is not None and hours > _WEEK_HOURS:
        raise DoesNotFitError(
            f"the run would take {format_seconds(3600 * hours)} ({basis}), more than a week",
            remedy="pass a smaller `--model` or fewer `--steps`, or `--yes` to begin all the same; "
            "without `--model` one is chosen that ends in time",
        )


def _refuse_standstill(run: TrainResult, settings: TrainSettings) -> None:
    """A run that skipped most of its steps has learnt nothing, and must not look as if it had."""
    skipped = run.state.skipped_steps
    if 2 * skipped > settings.steps:
        raise LowtideError(
            f"{skipped} of {settings.steps} steps were not finite and skipped: the model has learnt little",
            remedy="begin again with a lower learning rate or a longer warm-up: `--restart`",
        )


def _open_boards(wandb: str | None, run: ResolvedRun) -> tuple[Board, ...]:
    """A project of Weights & Biases, where one was named; the same run of it after every resume."""
    if wandb is None:
        return ()
    run_id = xxhash.xxh3_64_hexdigest(str(run.folder.absolute()).encode())
    return (open_wandb(wandb, run.settings.as_record(), run_id=run_id),)


def refuse_problems(report: SmokeReport | TrainResult) -> None:
    """LowtideError for a smoke test with a loss that does not begin or fall as it should."""
    if isinstance(report, SmokeReport) and report.serious:
        raise LowtideError(
            f"the smoke test found a problem: {'; '.join(report.serious)}",
            remedy="look at the data with `lowtide inspect`, lower the learning rate in the plan, or pass "
            "`--no-smoke` to begin all the same",
        )


def _open_data(
    settings: TrainSettings, listen: Listener
) -> tuple[TokenDataset, TokenDataset | None]:
    """The training windows in their order, and those for validation, if any, in the order of the text."""
    split_of = partial(
        TokenDataset,
        settings.data,
        context=settings.shape.context,
        val_fraction=settings.val_fraction,
        tokenizer=settings.tokenizer,
    )
    train_set = split_of(settings.split, seed=settings.seed, windows=settings.windows)
    named, known = train_set.tokenizer, settings.shape.vocabulary_size
    if named is not None and named.vocabulary_size > known:
        raise UsageError(
            f"{settings.data} was made by {named.name} with {named.vocabulary_size} tokens, and the model "
            f"knows {known}",
            remedy=f"plan again for this dataset, or set `vocabulary_size = {named.vocabulary_size}`",
        )
    _describe_examples(train_set, listen)
    try:
        val_set = split_of(settings.val_split, order="sequential")
    except UsageError as reason:  # no such split, or it is shorter than a window
        listen(Note(text=f"nothing is evaluated: {reason.problem}", level="warning"))
        return train_set, None
    if settings.val_fraction:
        share = f"{settings.val_fraction:.1%} of {settings.split}"
        text = f"the data has no {settings.val_split}: {share} is held out for validation"
        listen(Note(text=text))
    count = val_set.window_count
    if count < FEWEST_WINDOWS:
        text = (
            f"only {_count(count, 'window')} {'is' if count == 1 else 'are'} held out: a loss on so few says "
            "little. `lowtide tokenize` holds out more with a larger `--val`"
        )
        listen(Note(text=text, level="warning"))
    return train_set, val_set


def _describe_examples(data: TokenDataset, listen: Listener) -> None:
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


def _check_length(settings: TrainSettings, data: TokenDataset, ranks: Ranks) -> None:
    """UsageError for a step that ranks cannot share, and where steps and epochs do not say the same end."""
    windows = settings.windows_per_step
    if windows % ranks.world_size:
        whole = max(1, round(windows / ranks.world_size)) * ranks.world_size
        raise UsageError(
            f"a step of {windows} windows cannot be shared by {ranks.world_size} ranks",
            remedy=f"pass `--batch-tokens {whole * settings.shape.context}`",
        )
    if settings.epochs is None:
        return
    steps = steps_for(settings.epochs, window_count=data.window_count, windows_per_step=windows)
    if steps != settings.steps:
        raise UsageError(
            f"{settings.epochs:g} epochs of {data.window_count} windows are {steps} steps, and not "
            f"{settings.steps}",
            remedy=f"leave `--steps` out, or set `steps = {steps}` in the plan",
        )
