"""What a run is to be, before anything starts: its settings, and what is known of the machine.

The settings are those of the run that stands in the folder, of a plan file, or of a plan that is made now, for
new or for existing weights. What was asked for comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.model.needs import peak_of_run
from lowtide.model.shape import SHAPES
from lowtide.plan.finetune import FineTuning, finetune_settings
from lowtide.plan.fit import RECIPES, does_not_fit, largest_micro_batch, runnable_recipes
from lowtide.plan.machine import LIBRARY_BYTES, Machine, choose_machine, cpu_machine
from lowtide.plan.make_plan import (
    MOST_BETWEEN_CHECKPOINTS,
    MOST_BETWEEN_EVALUATIONS,
    ModelPlan,
    PlanData,
    now_and_then,
)
from lowtide.plan.make_plan import make_plan as plan_for
from lowtide.plan.measured import MeasuredSpeed, read_speeds, remember_speed
from lowtide.plan.plan_file import read_plan
from lowtide.plan.speed import MEASURED_HERE, Speed, hours_of_settings, predict_speed
from lowtide.settings import SETTINGS_NAME, Device, PlanRequest, TrainRequest
from lowtide.stages.inbox.endless import NO_LAST_STEP, endless_data, shorten_warmup, without_end
from lowtide.stages.inbox.prepare import Inbox, prepare_inbox
from lowtide.stages.inbox.settings import InboxSettings, read_inbox_settings
from lowtide.stages.plan import look_at_data, make_plan
from lowtide.stages.run_source import is_of_inbox
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors
from lowtide.training.run_folder import RUN_NAME, read_run_record
from lowtide.training.settings import TrainSettings, steps_for
from lowtide.units import GIB, format_bytes

_MOST_EPOCHS = 1e9
_CUDA_RAM_BYTES = GIB
"""What torch takes of RAM beside a GPU. Assumed."""
_TIMED_HOURS = 0.05
"""Before a longer run on a CPU some steps are timed; a shorter one is over sooner than anyone plans."""
_INTERVALS = (
    ("evaluate_every", MOST_BETWEEN_EVALUATIONS),
    ("checkpoint_every", MOST_BETWEEN_CHECKPOINTS),
    ("sample_every", MOST_BETWEEN_CHECKPOINTS),
)
"""Settings that a plan chooses by the length of a run, and the most steps between two."""
_TAKEN_OVER = ("steps", "batch_tokens", "micro_batch", "recipe", "device", "seed", "tokenizer")
"""Settings that a request has under the name that they have in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRun:
    """A run with all choices made, of which nothing has begun."""

    folder: Path
    settings: TrainSettings
    inbox: Inbox | None = None
    """The inbox whose files it is trained on; None for a run over `settings.data`."""
    ram_needs: Mapping[str, int] = field(default_factory=dict)
    """What each rank takes of RAM, by name."""
    predicted_gpu_bytes: int | None = None
    """None for a run on the CPU."""
    peak_flops: float | None = None
    speed: Speed | None = None
    machine_name: str = ""

    @property
    def hours(self) -> float | None:
        """Duration of the whole run at the speed that is expected; None where it has no end."""
        if self.speed is None or self.inbox is not None:
            return None
        return hours_of_settings(self.settings, self.speed)


def resolve_run(
    data: str | Path | None,
    out: str | Path,
    asked: TrainRequest,
    *,
    restart: bool,
    environment: Mapping[str, str],
    speeds: Path | None = None,
    listen: Listener = ignore,
) -> ResolvedRun:
    """A run that fits the machine; UsageError or DoesNotFitError, before anything starts, for what does not.

    On a CPU a few steps are timed where the run will take minutes and its speed is not known.
    """
    _refuse_contradictions(data, asked)
    folder = as_path(out)
    inbox = None if asked.inbox is None else as_path(asked.inbox)
    reading = None if inbox is None else read_inbox_settings(inbox)
    with storage_errors(folder, doing="read"):
        stands = (folder / RUN_NAME).exists() and not restart
    measured: tuple[MeasuredSpeed, ...] = ()
    if stands:
        base = _standing_settings(folder, asked)
    elif asked.plan is not None:
        base = _with_init(read_plan(Path(asked.plan)), asked)
    elif inbox is not None and reading is not None:
        base = _plan_for_inbox(inbox, reading, asked, environment, speeds)
    elif asked.init is not None:
        found = look_at_data(str(data), asked.tokenizer)
        base = _tune_now(found, asked, asked.context, environment)
    else:
        base, measured = _plan_now(str(data), asked, environment, speeds, listen)
    if inbox is not None and reading is not None:
        epochs = asked.epochs or base.epochs or 1.0
        base = without_end(base, reading, inbox)
        settings = replace(_with_request(base, replace(asked, epochs=None)), epochs=epochs)
        run = _fit_to_machine(folder, settings, asked, environment, speeds)
        return _with_inbox(run, prepare_inbox(inbox, reading, context=settings.shape.context))
    settings = _with_request(replace(base, data=str(Path(str(data)).absolute())), asked)
    run = _fit_to_machine(folder, settings, asked, environment, speeds, measured)
    if stands or not _is_slow(settings.device, run):
        return run
    measured = (*measured, _time_here(settings, run.machine_name, speeds, listen))
    return _fit_to_machine(folder, settings, asked, environment, speeds, measured)


def _refuse_contradictions(data: str | Path | None, asked: TrainRequest) -> None:
    """UsageError for what cannot be asked for together, or at all."""
    inbox, steps, epochs = asked.inbox, asked.steps, asked.epochs
    for is_asked, problem, remedy in (
        (
            data is None and inbox is None,
            "there is nothing to train on",
            "name DATA, such as the `--out` of `lowtide tokenize`, or pass `--inbox FOLDER`",
        ),
        (
            data is not None and inbox is not None,
            f"both {data} and the inbox {inbox} are to be trained on",
            "name DATA or pass `--inbox`, not both",
        ),
        (
            inbox is not None and asked.smoke,
            "--smoke needs DATA: an inbox has no data yet",
            "leave `--smoke` out, or name DATA",
        ),
        (
            inbox is not None and steps is not None,
            "an inbox has no last step",
            "leave `--steps` out; `--until-empty` ends when no file is left, and so does a file called .stop "
            "in RUN at any time",
        ),
        (
            inbox is not None and asked.tokenizer is not None,
            "`--tokenizer` is for files of tokens",
            f"set `tokenizer` in {inbox}/{SETTINGS_NAME}",
        ),
        (
            inbox is None and asked.until_empty,
            "DATA has an end of its own",
            "leave `--until-empty` out",
        ),
        (
            steps is not None and epochs is not None,
            f"{steps} steps and {epochs} epochs both say where the run ends",
            "pass `--steps` or `--epochs`, not both",
        ),
        (
            epochs is not None and not 0 < epochs < _MOST_EPOCHS,
            f"{epochs} epochs cannot be run",
            "pass a number above 0, such as `--epochs 3`",
        ),
    ):
        if is_asked:
            raise UsageError(problem, remedy=remedy)


def _standing_settings(folder: Path, asked: TrainRequest) -> TrainSettings:
    """The settings of the run that stands, or of a plan for it. Its initial weights may be gone."""
    record = read_run_record(folder)
    if is_of_inbox(record.stream) != (asked.inbox is not None):
        if asked.inbox is None:
            kind, resume = "a run over an inbox", "pass `--inbox` with its folder instead of DATA"
        else:
            kind = "a run over a dataset, not over an inbox"
            resume = "name its DATA without `--inbox`"
        raise UsageError(
            f"{folder} is {kind}",
            remedy=f"{resume}; or pass another `--out`, and `--init {folder}` to begin with its weights",
        )
    init = record.settings.init
    if asked.init is not None and str(Path(asked.init).absolute()) != init:
        began = f"the weights of {init}" if init else "random weights"
        raise UsageError(
            f"this run started from {began}, not from {asked.init}",
            remedy="leave `--init` out to resume, pass another `--out`, or `--restart` to begin again",
        )
    return (
        record.settings if asked.plan is None else replace(read_plan(Path(asked.plan)), init=init)
    )


def _with_init(plan: TrainSettings, asked: TrainRequest) -> TrainSettings:
    """A plan, with the initial weights that were asked for."""
    if asked.init is None:
        return plan
    from lowtide.stages.initial_weights import find_initial_weights

    shape = find_initial_weights(asked.init).shape_for(
        context=plan.shape.context, vocabulary_size=plan.shape.vocabulary_size
    )
    if shape != plan.shape:
        raise UsageError(
            f"{asked.init} has the shape {shape}, and the plan {plan.shape}",
            remedy="leave `--plan` out: the initial weights decide the shape",
        )
    return replace(plan, init=str(Path(asked.init).absolute()))


def _tune_now(
    data: PlanData, asked: TrainRequest, context: int | None, environment: Mapping[str, str]
) -> TrainSettings:
    """Settings to train existing weights further. Loads torch, which reads them."""
    from lowtide.stages.initial_weights import find_initial_weights

    weights, has_end = find_initial_weights(str(asked.init)), asked.inbox is None
    known = data.vocabulary_size if data.vocabulary_known else None
    shape = weights.shape_for(context=context, vocabulary_size=known)
    wanted = FineTuning(
        init=str(Path(str(asked.init)).absolute()),
        model=weights.model,
        shape=shape,
        window_count=_count_windows(data.path, shape.context, data) if has_end else NO_LAST_STEP,
        epochs=asked.epochs if has_end else None,
        steps=asked.steps if has_end else NO_LAST_STEP,
        batch_tokens=asked.batch_tokens,
    )
    return finetune_settings(wanted, data, _machine(asked.device, asked.memory, environment))


def _plan_for_inbox(
    inbox: Path,
    reading: InboxSettings,
    asked: TrainRequest,
    environment: Mapping[str, str],
    speeds: Path | None,
) -> TrainSettings:
    """Settings of a new run: without initial weights, the model that a plan takes for plenty of data."""
    data, context = endless_data(reading, inbox), asked.context or reading.tokenize.context
    if asked.init is not None:
        return shorten_warmup(_tune_now(data, asked, context, environment))
    machine = _machine(asked.device, asked.memory, environment)
    machine = replace(machine, measured=read_speeds(speeds, machine.name))
    wanted = PlanRequest(model=asked.model, context=context, batch_tokens=asked.batch_tokens)
    return shorten_warmup(plan_for(data, machine, wanted).settings)


def _plan_now(
    data: str,
    asked: TrainRequest,
    environment: Mapping[str, str],
    speeds: Path | None,
    listen: Listener,
) -> tuple[TrainSettings, tuple[MeasuredSpeed, ...]]:
    """The settings, and the speeds measured for them.

    On a CPU the model and the length follow from the speed: models are timed until the chosen one was.
    """
    tokens = None
    measured: tuple[MeasuredSpeed, ...] = ()
    if asked.epochs is not None:
        tokens = max(1, round(asked.epochs * look_at_data(data, asked.tokenizer).train_tokens))
    wanted = PlanRequest(
        model=asked.model,
        context=asked.context,
        batch_tokens=asked.batch_tokens,
        tokens=tokens,
        tokenizer=asked.tokenizer,
    )
    for _ in SHAPES:
        machine = _machine(asked.device, asked.memory, environment)
        plan = make_plan(data, wanted, machine=replace(machine, measured=measured), speeds=speeds)
        if asked.model or asked.steps or tokens or not _is_slow(plan.machine.device, plan.chosen):
            break
        measured = (*measured, _time_here(plan.settings, plan.machine.name, speeds, listen))
    return plan.settings, measured


def _is_slow(device: Device, chosen: ModelPlan | ResolvedRun) -> bool:
    """Whether a run on the CPU will take minutes, by a speed that was not measured."""
    known = chosen.speed is not None and chosen.speed.basis == MEASURED_HERE
    return device == "cpu" and not known and (chosen.hours or 0.0) > _TIMED_HOURS


def _time_here(
    settings: TrainSettings, machine: str, speeds: Path | None, listen: Listener
) -> MeasuredSpeed:
    """The speed of a few steps, remembered in `speeds` for later plans."""
    listen(Note(text=f"timing a few steps of {settings.model} on the CPU"))
    from lowtide.training.time_steps import time_steps  # with torch

    return remember(speeds, machine, settings, time_steps(settings))


def remember(
    speeds: Path | None, machine: str, settings: TrainSettings, tokens_per_second: float
) -> MeasuredSpeed:
    """The speed of a model on a machine, stored for later plans."""
    measured = MeasuredSpeed(
        machine=machine,
        recipe=settings.recipe,
        tokens_per_second=tokens_per_second,
        shape=settings.shape,
    )
    remember_speed(speeds, measured)
    return measured


def _with_request(base: TrainSettings, asked: TrainRequest) -> TrainSettings:
    """The settings with what was asked for; UsageError where they are of another model."""
    whose, instead = "the run", "pass another `--out`"
    if asked.plan is not None:
        whose, instead = f"the plan {asked.plan}", "write a plan for it with `lowtide plan`"
    elif asked.init is not None:
        whose, instead = str(asked.init), "begin without `--init`"
    if asked.model not in (None, base.model):
        raise UsageError(
            f"the model of {whose} is {base.model}, not {asked.model}",
            remedy=f"leave `--model` out, or {instead}",
        )
    if asked.context not in (None, base.shape.context):
        raise UsageError(
            f"{whose} has windows of {base.shape.context} tokens, not of {asked.context}",
            remedy=f"leave `--context` out, or {instead}",
        )
    wanted = {
        name: getattr(asked, name) for name in _TAKEN_OVER if getattr(asked, name) is not None
    }
    if asked.batch_tokens:  # as a plan does: whole windows
        wanted["batch_tokens"] = base.shape.whole_windows(asked.batch_tokens)
    if asked.steps is not None and base.epochs is not None:
        wanted["epochs"] = None
    if asked.epochs is not None and asked.epochs != base.epochs:
        settings = replace(base, **wanted)
        wanted["epochs"] = asked.epochs
        wanted["steps"] = steps_for(
            asked.epochs,
            window_count=_count_windows(settings.data, settings.shape.context, settings),
            windows_per_step=settings.windows_per_step,
        )
    if wanted.get("steps", 0) > base.steps:
        wanted |= _rarer(base, wanted["steps"])
    if wanted.get("steps", math.inf) <= base.warmup_steps:
        wanted["warmup_steps"] = wanted["steps"] // 10
    if wanted.get("device", base.device) == "cpu":
        wanted |= {"compiled": False, "precision": "float32"}
    return replace(base, **wanted)


def _rarer(base: TrainSettings, steps: int) -> dict[str, int]:
    """The intervals that a plan chose, for a longer run; one that somebody else chose stays."""
    found = {}
    for name, most in _INTERVALS:
        if getattr(base, name) == now_and_then(base.steps, most=most):
            found[name] = now_and_then(steps, most=most)
    return found


def _count_windows(path: str, context: int, cut: PlanData | TrainSettings) -> int:
    """Windows of this length in the data, which is cut as it is for a plan or a run."""
    return TokenDataset(
        path,
        context=context,
        windows=cut.windows,
        val_fraction=cut.val_fraction,
        tokenizer=cut.tokenizer,
    ).window_count


def _machine(device: str | None, memory: str | None, environment: Mapping[str, str]) -> Machine:
    """The CPU where that was asked for, else what is here."""
    if device == "cpu":
        return cpu_machine(environment, memory)
    return choose_machine(slurm=environment, memory=memory)


def _fit_to_machine(
    folder: Path,
    settings: TrainSettings,
    asked: TrainRequest,
    environment: Mapping[str, str],
    speeds: Path | None,
    measured: tuple[MeasuredSpeed, ...] = (),
) -> ResolvedRun:
    """The run with what is known of the machine; DoesNotFitError if it does not fit.

    `measured` was measured just now, and counts even if it could not be written to `speeds`.
    """
    run = ResolvedRun(folder=folder, settings=settings)
    machine = _machine(settings.device, asked.memory, environment)
    if settings.device == "cuda" and machine.device == "cpu":  # torch itself says so
        return run
    predicted = check_fit(settings, machine)
    machine = replace(machine, measured=read_speeds(speeds, machine.name) + measured)
    speed = predict_speed(settings.shape, machine, settings.recipe)
    run = replace(run, speed=speed, machine_name=machine.name)
    if machine.device == "cpu":
        return replace(run, ram_needs={"torch": LIBRARY_BYTES, "a step": predicted})
    weights = 4 * settings.shape.stored_parameter_count  # they begin on the CPU
    return replace(
        run,
        ram_needs={"torch with CUDA": _CUDA_RAM_BYTES, "the weights at the start": weights},
        predicted_gpu_bytes=predicted,
        peak_flops=machine.peak_flops,
    )


def _with_inbox(run: ResolvedRun, inbox: Inbox) -> ResolvedRun:
    """The run over this inbox; UsageError for a tokenizer that the model does not know."""
    known = run.settings.shape.vocabulary_size
    if inbox.vocabulary_size > known:
        raise UsageError(
            f"the tokenizer {inbox.tokenize.tokenizer} has {inbox.vocabulary_size} tokens, and the model knows "
            f"{known}",
            remedy=f"set the model's own `tokenizer` in {inbox.folder / SETTINGS_NAME}",
        )
    needs = {**run.ram_needs, "tokenizing a file": inbox.least_bytes}
    return replace(run, inbox=inbox, ram_needs=needs)


def check_fit(settings: TrainSettings, machine: Machine) -> int:
    """The peak of the run, in bytes; DoesNotFitError for more than the machine has."""
    predicted = peak_of_run(settings.shape, settings.micro_batch, settings.step_kind).total
    if predicted <= machine.budget_bytes:
        return predicted
    raise does_not_fit(
        f"{settings.model} with {settings.micro_batch} windows at a time needs {format_bytes(predicted)} "
        "(predicted)",
        predicted,
        machine,
        recipe=settings.recipe,
        remedy=f"{_what_fits(settings, machine)} `lowtide plan` shows what fits",
    )


def _what_fits(settings: TrainSettings, machine: Machine) -> str:
    """A smaller micro-batch, with this recipe or the next leaner one; smaller ones add up gradients."""
    for recipe in runnable_recipes(machine)[RECIPES.index(settings.recipe) :]:
        kind = replace(settings.step_kind, recipe=recipe, accumulating=True)
        fitting = largest_micro_batch(
            settings.shape, kind, machine.budget_bytes, most=settings.micro_batch
        )
        if fitting:
            leaner = f" --recipe {recipe}" if recipe != settings.recipe else ""
            return f"pass `--micro-batch {fitting}{leaner}`, or a smaller model:"
    return "take a smaller model or a shorter context:"
