"""What a run is to be: the plan's settings, those that stand in its folder, or a plan made now; then wishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import DoesNotFitError, UsageError
from lowtide.model.needs import peak_of_run
from lowtide.pipeline.plan import make_plan
from lowtide.plan.fit import largest_micro_batch
from lowtide.plan.machine import Machine, choose_machine, cpu_machine
from lowtide.plan.plan_file import read_plan
from lowtide.training.run_folder import RUN_NAME, read_run_record
from lowtide.training.settings import RunSettings
from lowtide.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for beside the data; None where nothing was said."""

    plan: Path | None = None
    model: str | None = None
    context: int | None = None
    steps: int | None = None
    batch_tokens: int | None = None
    micro_batch: int | None = None
    recipe: str | None = None
    device: str | None = None
    seed: int | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRun:
    """Settings, and what is known of the machine beforehand."""

    settings: RunSettings
    predicted_gpu_bytes: int | None
    """None for a run on the CPU."""
    peak_flops: float | None


def choose_run(
    data: str | Path, out: str | Path, asked: Asked, *, restart: bool, slurm: Mapping[str, str]
) -> ChosenRun:
    """Settings that fit the machine; DoesNotFitError, before anything starts, for what does not."""
    stands = (Path(out) / RUN_NAME).exists() and not restart
    if asked.plan is not None:
        base = read_plan(asked.plan)
    elif stands:
        base = read_run_record(Path(out)).settings
    else:
        base = _plan_now(data, asked, slurm)
    settings = _with_wishes(replace(base, data=str(Path(data).absolute())), asked)
    machine = choose_machine(slurm=slurm) if settings.device == "cuda" else None
    if machine is None or machine.device == "cpu":  # torch itself says so if there is no GPU
        return ChosenRun(settings=settings, predicted_gpu_bytes=None, peak_flops=None)
    predicted = _check_fit(settings, machine)
    return ChosenRun(
        settings=settings, predicted_gpu_bytes=predicted, peak_flops=machine.peak_flops
    )


def _plan_now(data: str | Path, asked: Asked, slurm: Mapping[str, str]) -> RunSettings:
    return make_plan(
        data,
        model=asked.model,
        context=asked.context,
        batch_tokens=asked.batch_tokens,
        tokenizer=asked.tokenizer,
        machine=cpu_machine(slurm) if asked.device == "cpu" else None,
        slurm=slurm,
    ).settings


def _with_wishes(base: RunSettings, asked: Asked) -> RunSettings:
    names = ("steps", "batch_tokens", "micro_batch", "recipe", "device", "seed", "tokenizer")
    wishes = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
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
    if asked.steps is not None and asked.steps <= base.warmup_steps:
        wishes["warmup_steps"] = asked.steps // 10
    if wishes.get("device", base.device) == "cpu":
        wishes |= {"compiled": False, "precision": "float32"}
    return replace(base, **wishes)


def _check_fit(settings: RunSettings, machine: Machine) -> int:
    kind = settings.step_kind
    predicted = peak_of_run(settings.shape, settings.micro_batch, kind).total
    if predicted <= machine.budget_bytes:
        return predicted
    fitting = largest_micro_batch(
        settings.shape, kind, machine.budget_bytes, most=settings.micro_batch
    )
    remedy = f"pass `--micro-batch {fitting}`" if fitting else "pass `--recipe lean`"
    raise DoesNotFitError(
        f"{settings.model} with {settings.micro_batch} windows at a time needs {format_bytes(predicted)} "
        f"(predicted), and {machine.name} has {format_bytes(machine.budget_bytes)} for it",
        remedy=f"{remedy}, or see `lowtide plan` for what fits",
    )
