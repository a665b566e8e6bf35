"""What became of the files of an inbox, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from lowtide.report.results import Rows, print_json, print_rows
from lowtide.report.training_results import sample_command
from lowtide.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from lowtide.training.run_results import InboxRun
    from lowtide.training.settings import RunSettings

_SHOWN_FAILURES = 20


class CountedFile(Protocol):
    """What is told of a file's rows beside its name."""

    @property
    def bad_rows(self) -> int:
        """Left out or mended."""

    @property
    def too_long(self) -> int:
        """Examples of more tokens than were allowed."""

    @property
    def dropped(self) -> int:
        """Pieces in which nothing was to be learnt."""


def show_inbox_run(run: InboxRun, settings: RunSettings, *, as_json: bool) -> None:
    """The end of `train --inbox`."""
    state = run.state
    if as_json:
        print_json(
            {
                "run": run.folder,
                "step": state.step,
                "steps": run.steps,
                "done": run.done,
                "failed": list(run.failed),
                "waiting": run.waiting,
                "best_loss": state.best_loss,
                "best_step": state.best_step,
                "skipped_steps": state.skipped_steps,
                "micro_batch": run.micro_batch,
                "train_loss": run.train_loss,
                "tokens_per_second": run.tokens_per_second,
                "gpu_bytes": run.gpu_bytes,
                "seconds": round(run.seconds, 3),
            }
        )
        return
    size = format_count(settings.shape.parameter_count)
    rows = [
        ("run", str(run.folder)),
        ("model", f"{settings.model}, {size} parameters"),
        ("files", f"{run.done} done, {len(run.failed)} failed, {run.waiting} not whole yet"),
        *failure_rows([(one.name, one.reason) for one in run.failed]),
        ("steps", f"{state.step}, of them {run.steps} since this start"),
    ]
    if run.train_loss is not None:
        rows.append(("loss", f"{run.train_loss:.3f} in the last steps (measured)"))
    if state.best_loss is not None:
        rows.append(("val loss", f"{state.best_loss:.4f} at step {state.best_step} (measured)"))
    rows.append(("time", f"{format_seconds(run.seconds)} since this start (measured)"))
    if run.gpu_bytes is not None:
        rows.append(("GPU memory", f"{format_bytes(run.gpu_bytes)} at the peak (measured)"))
    rows.append(("next", sample_command(run.folder)))
    print_rows(rows)


def show_inbox_files(
    folder: str,
    files: Sequence[CountedFile],
    counts: Mapping[str, int],
    failures: Sequence[tuple[str, str]],
    *,
    as_json: bool,
) -> None:
    """What a run has taken so far: every file with `--json`; for people how many, and those that failed."""
    if as_json:
        print_json({"run": folder, "counts": dict(counts), "files": list(files)})
        return
    told = ", ".join(f"{count} {stage}" for stage, count in counts.items()) or "none taken yet"
    print_rows([("run", folder), ("files", told), *lost_rows(files), *failure_rows(failures)])


def lost_rows(files: Sequence[CountedFile]) -> Rows:
    """What was lost of the files on the way, in all; nothing where nothing was."""
    counts = {
        "bad rows": sum(one.bad_rows for one in files),
        "examples that were too long": sum(one.too_long for one in files),
        "pieces with nothing to learn": sum(one.dropped for one in files),
    }
    told = [f"{what}: {count:,}" for what, count in counts.items() if count]
    return [("counted", ", ".join(told))] if told else []


def failure_rows(failures: Sequence[tuple[str, str]]) -> Rows:
    """The last failed files, each with its reason in one line."""
    rows = [
        ("failed", f"{name}: {reason.splitlines()[0] if reason else ''}")
        for name, reason in failures[-_SHOWN_FAILURES:]
    ]
    if len(failures) > _SHOWN_FAILURES:
        rows.insert(0, ("failed", f"{len(failures)}, of which these are the last"))
    return rows
