"""How a training run begins: tried out first where it will be long, then run, by one rank or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from lowtide.errors import DoesNotFitError, LowtideError
from lowtide.events import Listener, Note, ignore
from lowtide.memory.budget import Budget, check_needs, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.plan.measured import MeasuredSpeed, remember_speed
from lowtide.settings import TrainRequest
from lowtide.stages.choose_run import ChosenRun
from lowtide.stages.smoke import smoke
from lowtide.stages.train import train
from lowtide.stages.watch_run import ShouldStop
from lowtide.training.build import cpu_in_words
from lowtide.training.checkpoint import find_checkpoints, step_of
from lowtide.training.data_parallel import Ranks, ranks_of
from lowtide.training.run_results import SmokeReport, TrainResult
from lowtide.training.settings import TrainSettings
from lowtide.training.tensorboard import Board, open_wandb
from lowtide.units import format_bytes, format_count, format_seconds

_LONG_STEPS, _LONG_HOURS = 1000, 0.5
_WEEK_HOURS = 7 * 24
_TELLING_STEPS = 50
"""Fewer, of which the first compile, say little about speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """What was tried, and what was run; nothing for the ranks that follow another."""

    smoke: SmokeReport | None
    run: TrainResult | None


def start_run(
    chosen: ChosenRun,
    out: str | Path,
    asked: TrainRequest,
    *,
    environment: Mapping[str, str],
    restart: bool,
    listen: Listener,
    should_stop: ShouldStop,
    speeds: Path | None = None,
) -> StartedRun:
    """Try, then train; a new run of half an hour or more is tried even when nobody asks.

    One that will take more than a week is refused, unless that is accepted.
    """
    ranks = ranks_of(environment)
    budget = _share_of(
        choose_budget(asked.memory, machine_limit(slurm=environment), generous=True), ranks
    )
    check_needs(budget, chosen.ram_needs)
    settings, report = chosen.settings, None
    checkpoints = find_checkpoints(Path(out))
    is_new = restart or not checkpoints
    is_over = not is_new and step_of(checkpoints[-1]) >= settings.steps
    if is_new and not asked.yes and not asked.smoke:
        _refuse_weeks(chosen.hours, chosen.speed.basis if chosen.speed else "")
    if not ranks.leads:
        listen = ignore
        if asked.smoke:
            return StartedRun(smoke=None, run=None)
    for line in [] if is_over else opening_lines(chosen):
        listen(Note(text=line))
    new_and_long = is_new and _is_long(chosen)
    if asked.smoke or (new_and_long and not asked.no_smoke and ranks.world_size == 1):
        listen(Note(text="trying ten steps, an evaluation, a checkpoint and a sample"))
        report = smoke(
            settings,
            out,
            memory=asked.memory,
            predicted_gpu_bytes=chosen.predicted_gpu_bytes,
            peak_flops=chosen.peak_flops,
            listen=listen,
            should_stop=should_stop,
        )
        _remember(speeds, chosen, report.tokens_per_second)
        for line in smoke_lines(report, settings.micro_batch):
            listen(Note(text=line))
        if asked.smoke:
            return StartedRun(smoke=report, run=None)
        refuse_problems(report)
        if not asked.yes:
            _refuse_weeks(report.hours, "measured on some steps")
        settings = replace(settings, micro_batch=report.micro_batch)
    result = train(
        out,
        settings,
        memory=budget,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        ranks=ranks,
        peak_flops=chosen.peak_flops,
        boards=open_boards(asked.wandb, Path(out), settings) if ranks.leads else (),
    )
    _refuse_standstill(result, settings)
    if ranks.world_size == 1 and result.steps >= _TELLING_STEPS:
        _remember(speeds, chosen, result.tokens_per_second)
    return StartedRun(smoke=report, run=result if ranks.leads else None)


def _refuse_weeks(hours: float | None, basis: str) -> None:
    if hours is not None and hours > _WEEK_HOURS:
        raise DoesNotFitError(
            f"the run would take {format_seconds(3600 * hours)} ({basis}), more than a week",
            remedy="pass a smaller `--model` or fewer `--steps`, or `--yes` to begin all the same; "
            "without `--model` one is chosen that ends in time",
        )


def _remember(speeds: Path | None, chosen: ChosenRun, tokens_per_second: float | None) -> None:
    """For the next plan on this machine."""
    if not chosen.machine_name or tokens_per_second is None:
        return
    settings = chosen.settings
    measured = MeasuredSpeed(
        machine=chosen.machine_name,
        recipe=settings.recipe,
        tokens_per_second=tokens_per_second,
        shape=settings.shape,
    )
    remember_speed(speeds, measured)


def _refuse_standstill(run: TrainResult, settings: TrainSettings) -> None:
    """A run that skipped most of its steps has learnt nothing, and must not look as if it had."""
    skipped = run.state.skipped_steps
    if 2 * skipped > settings.steps:
        raise LowtideError(
            f"{skipped} of {settings.steps} steps were not finite and skipped: the model has learnt little",
            remedy="begin again with a lower learning rate or a longer warm-up: `--restart`",
        )


def opening_lines(chosen: ChosenRun) -> list[str]:
    """What is about to happen, for people."""
    settings = chosen.settings
    size = format_count(settings.shape.parameter_count)
    # torch is not asked for the GPU's name: this process would hold memory there while the child is tried.
    place = cpu_in_words() if settings.device == "cpu" else chosen.machine_name or "the GPU"
    lines = [
        f"{settings.model}, {size} parameters, windows of {settings.shape.context} tokens, recipe "
        f"{settings.recipe}, on {place}",
        f"{settings.steps:,} steps of {format_count(settings.batch_tokens)} tokens, "
        f"{min(settings.micro_batch, settings.windows_per_step)} windows at a time",
    ]
    if chosen.hours is not None and chosen.speed is not None:
        took = format_seconds(3600 * chosen.hours)
        lines[1] += f"; about {took} in all ({chosen.speed.basis})"
    if settings.init is not None:
        lines.append(_start_line(settings))
    return [*lines, "Ctrl-C saves and stops; the same command resumes the run"]


def _start_line(settings: TrainSettings) -> str:
    ends = "constant"
    if settings.schedule == "cosine":
        ends = f"falling to {settings.final_learning_rate:g}"
    steps = "step" if settings.warmup_steps == 1 else "steps"
    warm_up = f" after {settings.warmup_steps} {steps}" if settings.warmup_steps else ""
    line = (
        f"from the weights of {settings.init}: learning rate {settings.learning_rate:g}{warm_up}, "
        f"{ends}; weight decay {settings.weight_decay:g}"
    )
    if settings.epochs is not None:
        line += f"; {settings.epochs:g} epoch{'' if settings.epochs == 1 else 's'}"
    return line


def _is_long(chosen: ChosenRun) -> bool:
    if chosen.hours is None:
        return chosen.settings.steps >= _LONG_STEPS
    return chosen.hours >= _LONG_HOURS


def _share_of(budget: Budget, ranks: Ranks) -> Budget:
    """Ranks on one machine share what it has: each looks at its own processes alone."""
    return replace(budget, total_bytes=budget.total_bytes // ranks.local_world_size)


def open_boards(wandb: str | None, out: Path, settings: TrainSettings) -> tuple[Board, ...]:
    """A project of Weights & Biases, where one was named; the same run of it after every resume."""
    if wandb is None:
        return ()
    run_id = xxhash.xxh3_64_hexdigest(str(out.absolute()).encode())
    return (open_wandb(wandb, settings.as_record(), run_id=run_id),)


def smoke_lines(report: SmokeReport, planned_micro_batch: int) -> list[str]:
    """What a smoke test found, for people."""
    speed = f"{format_count(round(report.tokens_per_second))} tokens/s"
    if report.mfu is not None:
        speed += f", {report.mfu:.0%} of the card's peak"
    lines = [
        f"{1000 * report.step_seconds:,.0f} ms for a step of {format_count(report.step_tokens)} tokens, "
        f"{speed} (measured on {report.tried_steps}); the whole run takes "
        f"{format_seconds(3600 * report.hours)} at that speed",
        f"loss {report.first_loss:.3f} at first, {report.last_loss:.3f} after {report.tried_steps}",
    ]
    if report.gpu_bytes is not None:
        predicted = report.predicted_gpu_bytes
        told = f" ({format_bytes(predicted)} predicted)" if predicted else ""
        lines.append(f"peak of the GPU's memory {format_bytes(report.gpu_bytes)} (measured){told}")
    if report.micro_batch != planned_micro_batch:
        lines.append(
            f"{planned_micro_batch} windows at a time did not fit: {report.micro_batch} do, and a step "
            "takes more of them; its tokens are the same"
        )
    return lines + list(report.notes) + list(report.problems)


def refuse_problems(report: SmokeReport) -> None:
    """LowtideError for a loss that does not begin or fall as it should."""
    if report.serious:
        raise LowtideError(
            f"the smoke test found a problem: {'; '.join(report.serious)}",
            remedy="look at the data with `lowtide inspect`, lower the learning rate in the plan, or pass "
            "`--no-smoke` to begin all the same",
        )
