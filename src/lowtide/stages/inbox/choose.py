"""What a run over an inbox is to be: a start's settings, a plan's, or those that stand in its folder.

Nobody knows how much data will come, so nothing depends on it: the learning rate is flat after its warm-up, and
there is no last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.plan.finetune import FineTuning, finetune_settings
from lowtide.plan.machine import Machine
from lowtide.plan.make_plan import PlanData, make_plan
from lowtide.plan.measured import read_speeds
from lowtide.plan.plan_file import read_plan
from lowtide.settings import SETTINGS_NAME, PlanRequest, TrainRequest
from lowtide.stages.choose_run import (
    ChosenRun,
    as_it_stands,
    check_epochs,
    fit_to_machine,
    machine_for,
    refuse_other_kind,
    with_start,
    with_wishes,
)
from lowtide.stages.inbox.prepare import PreparedInbox, prepare_inbox
from lowtide.stages.inbox.settings import (
    InboxSettings,
    beside,
    naming_the_line,
    read_inbox_settings,
)
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors
from lowtide.tokenizer.vocabulary import load_vocabulary
from lowtide.training.run_folder import RUN_NAME
from lowtide.training.settings import TrainSettings

NO_LAST_STEP = 10**9
"""Stands for the steps of a run without end."""
_PLENTY_OF_TOKENS = 10**15
_WARMUP_STEPS = 100
"""Of a start that knows something already."""
_MOST_WARMUP_STEPS = 500
"""Of a new model: a plan's share of a long run would be most of a short one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenInbox:
    """A run that fits the machine, and what it learns from."""

    run: ChosenRun
    inbox: PreparedInbox


def choose_inbox_run(
    out: str | Path,
    asked: TrainRequest,
    *,
    restart: bool,
    slurm: Mapping[str, str],
    speeds: Path | None = None,
) -> ChosenInbox:
    """Settings that fit the machine; UsageError or DoesNotFitError before anything starts."""
    folder = as_path(str(asked.inbox))
    _refuse_what_has_no_place(asked, folder)
    reading = read_inbox_settings(folder)
    with storage_errors(as_path(out), doing="read"):
        stands = (Path(out) / RUN_NAME).exists() and not restart
    if stands:
        refuse_other_kind(Path(out), inbox=True)
        base = as_it_stands(Path(out), asked)
    elif asked.plan is not None:
        base = with_start(read_plan(Path(asked.plan)), asked)
    else:
        base = _begin(reading, folder, asked, slurm, speeds)
    epochs = asked.epochs or base.epochs or 1.0
    settings = with_wishes(_for_inbox(base, reading, folder), replace(asked, epochs=None))
    run = fit_to_machine(
        replace(settings, epochs=epochs), slurm=slurm, speeds=speeds, memory=asked.memory
    )
    inbox = prepare_inbox(folder, reading, context=settings.shape.context)
    _refuse_unknown_words(inbox, settings)
    return ChosenInbox(run=run, inbox=inbox)


def _refuse_what_has_no_place(asked: TrainRequest, folder: Path) -> None:
    if asked.steps is not None:
        raise UsageError(
            "an inbox has no last step",
            remedy="leave `--steps` out; `--until-empty` ends when no file is left, and so does a file "
            "called .stop in RUN at any time",
        )
    if asked.tokenizer is not None:
        raise UsageError(
            "`--tokenizer` is for files of tokens",
            remedy=f"set `tokenizer` in {folder / SETTINGS_NAME}",
        )
    check_epochs(asked)


def _refuse_unknown_words(inbox: PreparedInbox, settings: TrainSettings) -> None:
    known = settings.shape.vocabulary_size
    if inbox.vocabulary_size > known:
        raise UsageError(
            f"the tokenizer {inbox.tokenize.tokenizer} has {inbox.vocabulary_size} tokens, and the model knows "
            f"{known}",
            remedy=f"set the model's own `tokenizer` in {inbox.folder / SETTINGS_NAME}",
        )


def _begin(
    reading: InboxSettings,
    folder: Path,
    asked: TrainRequest,
    slurm: Mapping[str, str],
    speeds: Path | None,
) -> TrainSettings:
    """Settings of a new run. Without a start, the model that a plan would take for plenty of data."""
    machine = machine_for(asked, slurm)
    with naming_the_line(folder):
        vocabulary_size = load_vocabulary(beside(reading.tokenize.tokenizer, folder)).size
    data = PlanData(
        path=str(folder.absolute()),
        train_tokens=_PLENTY_OF_TOKENS,
        vocabulary_size=vocabulary_size,
        vocabulary_known=True,
        tokenizer=None,
        val_fraction=None,
        learnt_tokens=None if reading.tokenize.examples is None else _PLENTY_OF_TOKENS,
    )
    if asked.init is not None:
        return _tune(
            asked.init, asked, data, machine, context=asked.context or reading.tokenize.context
        )
    wanted = PlanRequest(
        model=asked.model,
        context=asked.context or reading.tokenize.context,
        batch_tokens=asked.batch_tokens,
    )
    machine = replace(machine, measured=read_speeds(speeds, machine.name))
    settings = make_plan(data, machine, wanted).settings
    return replace(settings, warmup_steps=min(settings.warmup_steps, _MOST_WARMUP_STEPS))


def _tune(
    init: str, asked: TrainRequest, data: PlanData, machine: Machine, *, context: int | None
) -> TrainSettings:
    from lowtide.stages.start_weights import find_start, fitted_shape

    start = find_start(init)
    tuning = FineTuning(
        init=str(Path(init).absolute()),
        model=start.model,
        shape=fitted_shape(start, context=context, vocabulary_size=data.vocabulary_size),
        window_count=NO_LAST_STEP,
        steps=NO_LAST_STEP,
        batch_tokens=asked.batch_tokens,
    )
    return replace(finetune_settings(tuning, data, machine), warmup_steps=_WARMUP_STEPS)


def _for_inbox(base: TrainSettings, reading: InboxSettings, folder: Path) -> TrainSettings:
    """The same for data without end."""
    settings = replace(
        base,
        data=str(folder.absolute()),
        steps=NO_LAST_STEP,
        schedule="constant",
        epochs=None,
        val_fraction=None,
        tokenizer=None,
    )
    if reading.tokenize.examples is None:
        return settings
    return replace(settings, windows="document", attention="document")
