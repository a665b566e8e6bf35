"""What a run is to be: the plan's settings, those that stand in its folder, or a plan made now; then wishes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.dataset.settings import WindowKind
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.model.needs import peak_of_run
from lowtide.model.shape import SHAPES
from lowtide.plan.finetune import FineTuning, finetune_settings
from lowtide.plan.fit import RECIPES, does_not_fit, largest_micro_batch, runnable_recipes
from lowtide.plan.machine import LIBRARY_BYTES, Machine, choose_machine, cpu_machine
from lowtide.plan.make_plan import ModelPlan
from lowtide.plan.measured import MeasuredSpeed, read_speeds, remember_speed
from lowtide.plan.plan_file import read_plan
from lowtide.plan.speed import MEASURED_HERE, Speed, hours_of_settings, predict_speed
from lowtide.settings import Device, TrainRequest
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRun:
    """Settings, and what is known of the machine beforehand."""

    settings: TrainSettings
    predicted_gpu_bytes: int | None
    """None for a run on the CPU."""
    peak_flops: float | None
    ram_needs: Mapping[str, int]
    """What each rank takes of RAM, by name."""
    speed: Speed | None = None
    machine_name: str = ""

    @property
    def hours(self) -> float | None:
        """Of the whole run, by the speed that is expected."""
        if self.speed is None:
            return None
        return hours_of_settings(self.settings, self.speed)


def choose_run(
    data: str | Path,
    out: str | Path,
    asked: TrainRequest,
    *,
    restart: bool,
    slurm: Mapping[str, str],
    speeds: Path | None = None,
    listen: Listener = ignore,
) -> ChosenRun:
    """Settings that fit the machine; DoesNotFitError, before anything starts, for what does not.

    On a CPU a few steps are timed where the run will take minutes and its speed is not known.
    """
    _check_end(asked)
    measured: tuple[MeasuredSpeed, ...] = ()
    with storage_errors(as_path(out), doing="read"):
        stands = (Path(out) / RUN_NAME).exists() and not restart
    if stands:
        refuse_other_kind(Path(out), inbox=False)
        base = as_it_stands(Path(out), asked)
    elif asked.plan is not None:
        base = with_start(read_plan(Path(asked.plan)), asked)
    elif asked.init is not None:
        base = _tune_now(data, asked.init, asked, slurm)
    else:
        base, measured = _plan_now(data, asked, slurm, speeds, listen)
    settings = with_wishes(replace(base, data=str(Path(data).absolute())), asked)
    chosen = fit_to_machine(
        settings, slurm=slurm, speeds=speeds, memory=asked.memory, measured=measured
    )
    if stands or not _is_slow(settings.device, chosen):
        return chosen
    measured = (*measured, _time_here(settings, chosen.machine_name, speeds, listen))
    return fit_to_machine(
        settings, slurm=slurm, speeds=speeds, memory=asked.memory, measured=measured
    )


def refuse_other_kind(out: Path, *, inbox: bool) -> None:
    """UsageError where the run that stands is over an inbox and the one that is asked for is not, or not so."""
    if is_of_inbox(read_run_record(out).stream) == inbox:
        return
    if inbox:
        kind, go_on = "a run over a dataset, not over an inbox", "name its DATA without `--inbox`"
    else:
        kind, go_on = "a run over an inbox", "pass `--inbox` with its folder instead of DATA"
    raise UsageError(
        f"{out} is {kind}",
        remedy=f"{go_on}; or pass another `--out`, and `--init {out}` to begin with its weights",
    )


def as_it_stands(out: Path, asked: TrainRequest) -> TrainSettings:
    """The settings of the run, or of a plan for it. Its start is not looked at: it may be gone."""
    stored = read_run_record(out).settings
    _check_start(stored, asked)
    return stored if asked.plan is None else replace(read_plan(Path(asked.plan)), init=stored.init)


def fit_to_machine(
    settings: TrainSettings,
    *,
    slurm: Mapping[str, str],
    speeds: Path | None,
    memory: str | None = None,
    measured: tuple[MeasuredSpeed, ...] = (),
) -> ChosenRun:
    """The settings with what is known of the machine; DoesNotFitError for what does not fit.

    `measured` was measured just now, and counts even if it could not be written to `speeds`.
    """
    machine = (
        choose_machine(slurm=slurm) if settings.device == "cuda" else cpu_machine(slurm, memory)
    )
    if settings.device == "cuda" and machine.device == "cpu":  # torch itself says so
        return ChosenRun(settings=settings, predicted_gpu_bytes=None, peak_flops=None, ram_needs={})
    predicted = check_fit(settings, machine)
    machine = replace(machine, measured=read_speeds(speeds, machine.name) + measured)
    speed = predict_speed(settings.shape, machine, settings.recipe)
    if machine.device == "cpu":
        return ChosenRun(
            settings=settings,
            predicted_gpu_bytes=None,
            peak_flops=None,
            ram_needs={"torch": LIBRARY_BYTES, "a step": predicted},
            speed=speed,
            machine_name=machine.name,
        )
    weights = 4 * settings.shape.stored_parameter_count  # they begin on the CPU
    return ChosenRun(
        settings=settings,
        predicted_gpu_bytes=predicted,
        peak_flops=machine.peak_flops,
        ram_needs={"torch with CUDA": _CUDA_RAM_BYTES, "the weights at the start": weights},
        speed=speed,
        machine_name=machine.name,
    )


def _check_end(asked: TrainRequest) -> None:
    if asked.steps is not None and asked.epochs is not None:
        raise UsageError(
            f"{asked.steps} steps and {asked.epochs:g} epochs both say where the run ends",
            remedy="pass `--steps` or `--epochs`, not both",
        )
    check_epochs(asked)


def check_epochs(asked: TrainRequest) -> None:
    """UsageError for a number of epochs that no run has."""
    if asked.epochs is not None and not 0 < asked.epochs < _MOST_EPOCHS:
        raise UsageError(
            f"{asked.epochs} epochs cannot be run",
            remedy="pass a number above 0, such as `--epochs 3`",
        )


def _check_start(base: TrainSettings, asked: TrainRequest) -> None:
    """The checkpoints of a run win; who names another start must not think that it is used."""
    if asked.init is not None and str(Path(asked.init).absolute()) != base.init:
        began = f"the weights of {base.init}" if base.init else "random weights"
        raise UsageError(
            f"this run started from {began}, not from {asked.init}",
            remedy="leave `--init` out to go on, pass another `--out`, or `--restart` to begin again",
        )


def with_start(plan: TrainSettings, asked: TrainRequest) -> TrainSettings:
    """A plan whose weights come from the start that was asked for."""
    if asked.init is None:
        return plan
    from lowtide.stages.start_weights import shape_for_start

    shape = shape_for_start(
        asked.init, context=plan.shape.context, vocabulary_size=plan.shape.vocabulary_size
    )
    if shape != plan.shape:
        raise UsageError(
            f"{asked.init} has the shape {shape}, and the plan {plan.shape}",
            remedy="leave `--plan` out: the start decides the shape",
        )
    return replace(plan, init=str(Path(asked.init).absolute()))


def _tune_now(
    data: str | Path, init: str, asked: TrainRequest, slurm: Mapping[str, str]
) -> TrainSettings:
    """Loads torch: it is what the start is read with."""
    from lowtide.stages.start_weights import find_start, fitted_shape

    start, found = find_start(init), look_at_data(data, asked.tokenizer)
    known = found.vocabulary_size if found.vocabulary_known else None
    shape = fitted_shape(start, context=asked.context, vocabulary_size=known)
    tuning = FineTuning(
        init=str(Path(init).absolute()),
        model=start.model,
        shape=shape,
        window_count=_count_windows(
            data,
            context=shape.context,
            windows=found.windows,
            val_fraction=found.val_fraction,
            tokenizer=asked.tokenizer,
        ),
        epochs=asked.epochs,
        steps=asked.steps,
        batch_tokens=asked.batch_tokens,
    )
    return finetune_settings(tuning, found, machine_for(asked, slurm))


def machine_for(asked: TrainRequest, slurm: Mapping[str, str]) -> Machine:
    """The CPU where that was asked for, else what is here."""
    if asked.device == "cpu":
        return cpu_machine(slurm, asked.memory)
    return choose_machine(slurm=slurm, memory=asked.memory)


def _count_windows(
    data: str | Path,
    *,
    context: int,
    windows: WindowKind,
    val_fraction: float | None,
    tokenizer: str | None,
) -> int:
    found = TokenDataset(
        data, context=context, windows=windows, val_fraction=val_fraction, tokenizer=tokenizer
    )
    return found.window_count


def _plan_now(
    data: str | Path,
    asked: TrainRequest,
    slurm: Mapping[str, str],
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
    for _ in SHAPES:
        plan = make_plan(
            data,
            model=asked.model,
            context=asked.context,
            batch_tokens=asked.batch_tokens,
            tokens=tokens,
            tokenizer=asked.tokenizer,
            machine=replace(machine_for(asked, slurm), measured=measured),
            speeds=speeds,
        )
        if asked.model or asked.steps or tokens or not _is_slow(plan.machine.device, plan.chosen):
            break
        measured = (*measured, _time_here(plan.settings, plan.machine.name, speeds, listen))
    return plan.settings, measured


def _is_slow(device: Device, chosen: ModelPlan | ChosenRun) -> bool:
    """Whether a run on the CPU will take minutes, by a speed that was not measured."""
    known = chosen.speed is not None and chosen.speed.basis == MEASURED_HERE
    return device == "cpu" and not known and (chosen.hours or 0.0) > _TIMED_HOURS


def _time_here(
    settings: TrainSettings, machine: str, speeds: Path | None, listen: Listener
) -> MeasuredSpeed:
    """The speed of a few steps, remembered in `speeds` for later plans."""
    listen(Note(text=f"timing a few steps of {settings.model} on the CPU"))
    from lowtide.training.time_steps import time_steps  # with torch

    measured = MeasuredSpeed(
        machine=machine,
        recipe=settings.recipe,
        tokens_per_second=time_steps(settings),
        shape=settings.shape,
    )
    remember_speed(speeds, measured)
    return measured


def with_wishes(base: TrainSettings, asked: TrainRequest) -> TrainSettings:
    """The settings with what was asked for; UsageError where they are of another model."""
    names = ("steps", "batch_tokens", "micro_batch", "recipe", "device", "seed", "tokenizer")
    wishes = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    if asked.batch_tokens:  # as a plan does: whole windows
        wishes["batch_tokens"] = base.shape.whole_windows(asked.batch_tokens)
    if asked.model not in (None, base.model):
        raise UsageError(
            f"the settings are those of {base.model}, not of {asked.model}",
            remedy="leave `--model` out, plan again, or pass another `--out`",
        )
    if asked.context not in (None, base.shape.context):
        raise UsageError(
            f"the settings have windows of {base.shape.context} tokens, not of {asked.context}",
            remedy="leave `--context` out, plan again, or pass another `--out`",
        )
    if asked.steps is not None and base.epochs is not None:
        wishes["epochs"] = None
    if asked.epochs not in (None, base.epochs):
        wishes |= _for_epochs(replace(base, **wishes), asked.epochs or 0.0)
    if wishes.get("steps", math.inf) <= base.warmup_steps:
        wishes["warmup_steps"] = wishes["steps"] // 10
    if wishes.get("device", base.device) == "cpu":
        wishes |= {"compiled": False, "precision": "float32"}
    return replace(base, **wishes)


def _for_epochs(settings: TrainSettings, epochs: float) -> dict[str, float]:
    windows = _count_windows(
        settings.data,
        context=settings.shape.context,
        windows=settings.windows,
        val_fraction=settings.val_fraction,
        tokenizer=settings.tokenizer,
    )
    per_step = settings.windows_per_step
    steps = steps_for(epochs, window_count=windows, windows_per_step=per_step)
    return {"epochs": epochs, "steps": steps}


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
    """A smaller part with the recipe there is, or with the next leaner one; smaller parts add up gradients."""
    for recipe in runnable_recipes(machine)[RECIPES.index(settings.recipe) :]:
        kind = replace(settings.step_kind, recipe=recipe, accumulating=True)
        fitting = largest_micro_batch(
            settings.shape, kind, machine.budget_bytes, most=settings.micro_batch
        )
        if fitting:
            leaner = f" --recipe {recipe}" if recipe != settings.recipe else ""
            return f"pass `--micro-batch {fitting}{leaner}`, or a smaller model:"
    return "take a smaller model or a shorter context:"
