"""What `plan`, `train` and what follows it found, for people and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import click
import msgspec

from lowtide.show.results import Rows, print_json, print_rows, say
from lowtide.source.examples.templates import TEMPLATE_FILE
from lowtide.training.run_folder import TOKENIZER
from lowtide.training.run_results import InboxRun, SmokeReport, TrainResult
from lowtide.units import format_bytes, format_count, format_seconds, printable

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.plan.make_plan import ModelPlan, Plan
    from lowtide.training.settings import TrainSettings

_SHOWN_FAILURES = 20
_BETWEEN_SAMPLES = "\n---\n"


class CountedFile(Protocol):
    """A file of an inbox, with the counts of what was lost of its rows."""

    @property
    def bad_rows(self) -> int:
        """Rows left out or repaired."""

    @property
    def too_long(self) -> int:
        """Examples of more tokens than allowed."""

    @property
    def dropped(self) -> int:
        """Pieces with nothing to learn."""


def show_plan(plan: Plan, *, written: str | None, as_json: bool) -> None:
    """Print a plan, and where it was written."""
    if as_json:
        print_json(
            {
                "data": msgspec.to_builtins(plan.data),
                "machine": {
                    **msgspec.to_builtins(plan.machine),
                    "slack_bytes": plan.machine.slack_bytes,
                    "budget_bytes": plan.machine.budget_bytes,
                },
                "models": [_planned_model(one) for one in plan.models],
                "chosen": plan.chosen.name,
                "reason": plan.reason,
                "settings": msgspec.to_builtins(plan.settings),
            }
        )
        return
    click.echo(str(plan))
    if written:
        command = f"lowtide train {plan.data.path} --plan {written} --out RUN"
        say(f"{'written':<18} {written}; start with `{command}`")


def _planned_model(one: ModelPlan) -> dict[str, object]:
    return {
        "name": one.name,
        "parameters": one.shape.parameter_count,
        "tokens_per_parameter": round(one.tokens_per_parameter, 3),
        "largest_micro_batch": {fit.recipe: fit.largest_micro_batch for fit in one.recipes},
        "recipe": one.fit.recipe if one.fit else None,
        "micro_batch": one.fit.micro_batch if one.fit else None,
        "parts": one.fit.parts if one.fit else None,
        "peak_bytes": one.fit.needs.total if one.fit else None,
        "memory_bytes": dict(one.fit.needs.parts()) if one.fit else None,
        "batch_tokens": int(one.batch_tokens.value),
        "steps": one.steps,
        "epoch_steps": one.epoch_steps,
        "chinchilla_steps": one.chinchilla_steps,
        "hours": None if one.hours is None else round(one.hours, 3),
        "hours_basis": one.speed.basis if one.speed else None,
    }


def show_training(
    result: SmokeReport | TrainResult, settings: TrainSettings, *, as_json: bool
) -> None:
    """Print the result of `train`, of `train --inbox` or of a smoke test."""
    if isinstance(result, InboxRun):
        show_inbox_run(result, settings, as_json=as_json)
    elif isinstance(result, TrainResult):
        show_trained(result, settings, as_json=as_json)
    else:
        show_smoke(result, as_json=as_json)


def show_smoke(report: SmokeReport, *, as_json: bool) -> None:
    """Print what the ten steps of a smoke test measured."""
    if as_json:
        print_json({"smoke": report})
        return
    print_rows(report.rows())


def show_trained(run: TrainResult, settings: TrainSettings, *, as_json: bool) -> None:
    """Print the result of `train`."""
    if as_json:
        print_json({**_run_figures(run), "already_done": run.already_done})
        return
    tokens = format_count(run.state.position * settings.shape.context)
    rows = [*_run_rows(run, settings), ("steps", f"{run.state.step}, {tokens} tokens")]
    rows += _loss_rows(run)
    duration = f"{format_seconds(run.seconds)} since this start (measured)"
    rows.append(("time", "none: the run was done already" if run.already_done else duration))
    if run.tokens_per_second is not None:
        rows.append(("speed", f"{format_count(round(run.tokens_per_second))} tokens/s (measured)"))
    print_rows([*rows, *_closing_rows(run)])


def show_inbox_run(run: InboxRun, settings: TrainSettings, *, as_json: bool) -> None:
    """Print the result of `train --inbox`."""
    if as_json:
        print_json(
            {
                "run": run.folder,
                "step": run.state.step,
                "steps": run.steps,
                "done": run.done,
                "failed": list(run.failed),
                "waiting": run.waiting,
                **_run_figures(run),
            }
        )
        return
    counted = f"{run.done} done, {len(run.failed)} failed, {run.waiting} not whole yet"
    rows = [
        *_run_rows(run, settings),
        ("files", counted),
        *_failure_rows([(one.name, one.reason) for one in run.failed]),
        ("steps", f"{run.state.step}, of them {run.steps} since this start"),
        *_loss_rows(run),
        ("time", f"{format_seconds(run.seconds)} since this start (measured)"),
    ]
    print_rows([*rows, *_closing_rows(run)])


def _run_figures(run: TrainResult) -> dict[str, object]:
    state = run.state
    return {
        "run": run.folder,
        "step": state.step,
        "best_loss": state.best_loss,
        "best_step": state.best_step,
        "skipped_steps": state.skipped_steps,
        "micro_batch": run.micro_batch,
        "train_loss": run.train_loss,
        "tokens_per_second": run.tokens_per_second,
        "gpu_bytes": run.gpu_bytes,
        "seconds": round(run.seconds, 3),
    }


def _run_rows(run: TrainResult, settings: TrainSettings) -> Rows:
    size = format_count(settings.shape.parameter_count)
    return [("run", str(run.folder)), ("model", f"{settings.model}, {size} parameters")]


def _loss_rows(run: TrainResult) -> Rows:
    state, rows = run.state, []
    if run.train_loss is not None:
        rows.append(("loss", f"{run.train_loss:.3f} in the last steps (measured)"))
    if state.best_loss is not None:
        rows.append(("val loss", f"{state.best_loss:.4f} at step {state.best_step} (measured)"))
    return rows


def _closing_rows(run: TrainResult) -> Rows:
    """The peak on a GPU, and how to sample, if the run has a tokenizer: `--chat` if it kept a template."""
    rows = []
    if run.gpu_bytes is not None:
        rows.append(("GPU memory", f"{format_bytes(run.gpu_bytes)} at the peak (measured)"))
    if not (run.folder / TOKENIZER).is_dir():
        return rows  # without a tokenizer nothing can be sampled
    prompt = "--prompt 'Once'"
    if (run.folder / TOKENIZER / TEMPLATE_FILE).exists():
        prompt = "--chat --prompt 'Hello'"
    return [*rows, ("next", f"lowtide sample {run.folder} {prompt}")]


def show_inbox_files(
    folder: str,
    files: Sequence[CountedFile],
    counts: Mapping[str, int],
    failures: Sequence[tuple[str, str]],
    *,
    as_json: bool,
) -> None:
    """Print what a run has taken so far: all files with `--json`, else how many, and those that failed."""
    if as_json:
        print_json({"run": folder, "counts": dict(counts), "files": list(files)})
        return
    taken = ", ".join(f"{count} {stage}" for stage, count in counts.items()) or "none taken yet"
    print_rows([("run", folder), ("files", taken), *_lost_rows(files), *_failure_rows(failures)])


def _lost_rows(files: Sequence[CountedFile]) -> Rows:
    """What was lost of all files together; no row if nothing was."""
    counts = {
        "bad rows": sum(one.bad_rows for one in files),
        "examples that were too long": sum(one.too_long for one in files),
        "pieces with nothing to learn": sum(one.dropped for one in files),
    }
    lost = [f"{what}: {count:,}" for what, count in counts.items() if count]
    return [("counted", ", ".join(lost))] if lost else []


def _failure_rows(failures: Sequence[tuple[str, str]]) -> Rows:
    """The last failed files, each with the first line of its reason."""
    rows = [
        ("failed", f"{name}: {reason.splitlines()[0] if reason else ''}")
        for name, reason in failures[-_SHOWN_FAILURES:]
    ]
    if len(failures) > _SHOWN_FAILURES:
        rows.insert(0, ("failed", f"{len(failures)}, of which these are the last"))
    return rows


def show_samples(
    prompt: str, streams: Iterable[Iterable[str]], *, as_json: bool, shows_prompt: bool = True
) -> None:
    """Print every sample as it is generated; an answer in a chat goes without its prompt."""
    if as_json:
        print_json({"prompt": prompt, "samples": ["".join(stream) for stream in streams]})
        return
    for number, stream in enumerate(streams):
        click.echo(_BETWEEN_SAMPLES if number else "", nl=False)
        if shows_prompt:
            click.echo(_safe_on_terminal(prompt), nl=False, color=True)
        for piece in stream:
            click.echo(_safe_on_terminal(piece), nl=False, color=True)  # flushes; strips nothing
    click.echo()


def _safe_on_terminal(text: str) -> str:
    """The text; on a terminal, without what would move its cursor or change its colours."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text


def show_exported_model(folder: Path, *, already_done: bool, as_json: bool) -> None:
    """Print where a model for Hugging Face lies, and how to open it."""
    if as_json:
        print_json({"out": folder, "already_done": already_done})
        return
    opened = f"transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})"
    rows = [("model", str(folder)), ("open it", opened)]
    if already_done:
        rows.append(("time", "none: the folder holds this very export already"))
    print_rows(rows)
