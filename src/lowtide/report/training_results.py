"""What `train` came to, for people and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.report.results import print_json, print_rows
from lowtide.source.examples.templates import TEMPLATE_FILE
from lowtide.training.run_folder import TOKENIZER
from lowtide.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from lowtide.training.run_results import SmokeReport, TrainedRun
    from lowtide.training.settings import RunSettings


def show_trained(run: TrainedRun, settings: RunSettings, *, as_json: bool) -> None:
    """The end of a run."""
    state = run.state
    if as_json:
        print_json(
            {
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
                "already_done": run.already_done,
            }
        )
        return
    tokens = format_count(state.position * settings.shape.context)
    rows = [
        ("run", str(run.folder)),
        ("model", f"{settings.model}, {format_count(settings.shape.parameter_count)} parameters"),
        ("steps", f"{state.step}, {tokens} tokens"),
    ]
    if run.train_loss is not None:
        rows.append(("loss", f"{run.train_loss:.3f} in the last steps (measured)"))
    if state.best_loss is not None:
        rows.append(("val loss", f"{state.best_loss:.4f} at step {state.best_step} (measured)"))
    time = "none: the run was done already" if run.already_done else format_seconds(run.seconds)
    rows.append(("time", f"{time}{'' if run.already_done else ' since this start (measured)'}"))
    if run.tokens_per_second is not None:
        rows.append(("speed", f"{format_count(round(run.tokens_per_second))} tokens/s (measured)"))
    if run.gpu_bytes is not None:
        rows.append(("GPU memory", f"{format_bytes(run.gpu_bytes)} at the peak (measured)"))
    if (run.folder / TOKENIZER).is_dir():
        rows.append(("next", sample_command(run.folder)))
    print_rows(rows)


def sample_command(run: Path) -> str:
    """How to hear from the model: a run over examples that kept their template is asked through it."""
    if (run / TOKENIZER / TEMPLATE_FILE).exists():
        return f"lowtide sample {run} --chat --prompt 'Hello'"
    return f"lowtide sample {run} --prompt 'Once'"


def show_exported_model(folder: Path, *, already_done: bool, as_json: bool) -> None:
    """Where a model for Hugging Face lies."""
    if as_json:
        print_json({"out": folder, "already_done": already_done})
        return
    opened = f"transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})"
    rows = [("model", str(folder)), ("open it", opened)]
    if already_done:
        rows.append(("time", "none: the folder holds this very export already"))
    print_rows(rows)


def show_smoke(report: SmokeReport, *, as_json: bool) -> None:
    """What ten steps showed."""
    if as_json:
        print_json({"smoke": report})
        return
    rows = [
        ("loss", f"{report.first_loss:.3f} at first, {report.last_loss:.3f} in the end (measured)"),
        ("step", f"{1000 * report.step_seconds:,.0f} ms (measured on some steps)"),
        ("speed", f"{format_count(round(report.tokens_per_second))} tokens a second (measured)"),
        ("whole run", f"{format_seconds(3600 * report.hours)} at that speed (predicted)"),
        ("checkpoint", f"{format_seconds(report.checkpoint_seconds)} (measured)"),
        ("at a time", f"{report.micro_batch} windows"),
    ]
    if report.mfu is not None:
        rows.insert(3, ("MFU", f"{report.mfu:.0%} of the card's own peak"))
    if report.gpu_bytes is not None:
        predicted = report.predicted_gpu_bytes
        told = f", {format_bytes(predicted)} predicted" if predicted else ""
        rows.append(("GPU memory", f"{format_bytes(report.gpu_bytes)} (measured){told}"))
    rows.append(("verdict", "; ".join(report.problems) or "all is as it should be"))
    print_rows(rows)
