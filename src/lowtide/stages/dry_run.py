"""What the dry runs of `tokenize` and `train-tokenizer` have in common: they read samples and write nothing."""

from __future__ import annotations

import math
import operator
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.errors import DoesNotFitError, UsageError
from lowtide.source.find_inputs import Skipped, describe_skipped
from lowtide.source.sample import SampledText
from lowtide.stages.folder import FolderKind, check_folder, nearest_folder
from lowtide.stages.plan_tokenizer import TokenizerPlan
from lowtide.stages.prepare import Prepared
from lowtide.storage.paths import as_path
from lowtide.units import format_bytes, format_seconds

Rows = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a run before any of it is predicted."""

    inputs: int
    skipped: tuple[Skipped, ...]
    """Files of the folders and globs that would not be read."""
    input_bytes: int
    sampled_bytes: int
    disk_free_bytes: int
    budget: str
    spending: dict[str, int]
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Figures before the work. What is known is measured, the rest is predicted."""

    known: Known
    text_bytes: int
    disk_needed_bytes: int
    seconds: float

    def as_record(self) -> dict[str, object]:
        """All figures under their names, for `--json`; what only examples have, only for them."""
        named = asdict(self)
        figures = named.pop("known") | named
        return {name: value for name, value in figures.items() if value is not None}

    def rows_around(self, contents: Rows, *, written: str, workers: str = "", limits: str) -> Rows:
        """The estimate as names and sentences, each figure with where it comes from."""
        known = self.known
        spent = (f"{name} {format_bytes(size)}" for name, size in known.spending.items())
        files = "1 file" if known.inputs == 1 else f"{known.inputs} files"
        return [
            ("input", f"{files}, {format_bytes(known.input_bytes)} (measured)"),
            *([("skipped", describe_skipped(known.skipped))] if known.skipped else []),
            ("sample", f"{format_bytes(known.sampled_bytes)} of text read"),
            *contents,
            (
                "disk",
                f"{format_bytes(self.disk_needed_bytes)} {written} (predicted), "
                f"{format_bytes(known.disk_free_bytes)} free (measured)",
            ),
            ("time", f"{format_seconds(self.seconds)} (predicted from a short probe)"),
            ("memory", f"budget {known.budget}"),
            *([("workers", workers)] if workers else []),
            ("spent on", ", ".join(spent)),
            ("limits", limits),
        ]

    def refuse_full_disk(self, folder: Path | None) -> None:
        """DoesNotFitError where more will be written than there is space for."""
        if self.disk_needed_bytes > self.known.disk_free_bytes:
            raise DoesNotFitError(
                f"about {format_bytes(self.disk_needed_bytes)} will be written and "
                f"{format_bytes(self.known.disk_free_bytes)} are free in {nearest_folder(folder or Path())}",
                remedy="free space or pass an `--out` on a larger disk",
            )


def check_dry_run(inputs: Sequence[str], out: str | Path | None, kind: FolderKind) -> Path | None:
    """The folder, if one is named. UsageError if a run could not use it, and for input that comes only once."""
    if "-" in inputs:
        raise UsageError(
            "standard input can be read only once, so nothing can be said about it beforehand",
            remedy="leave out `--dry-run`, or save the input to a file and name that",
        )
    folder = None if out is None else as_path(out)
    if folder is not None:
        check_folder(folder, kind)
    return folder


def look_around(
    plan: Prepared | TokenizerPlan, samples: Sequence[SampledText], folder: Path | None
) -> Known:
    """What plan, samples and disk say; without a folder, the disk of the current one."""
    return Known(
        inputs=len(plan.inputs),
        skipped=plan.skipped,
        input_bytes=plan.total_bytes,
        sampled_bytes=sum(sample.text_bytes for sample in samples),
        disk_free_bytes=shutil.disk_usage(nearest_folder(folder or Path())).free,
        budget=plan.budget.in_words,
        spending=plan.allowances.needs,
        workers=plan.allowances.workers,
    )


def predict_sum(figures: Sequence[int], samples: Sequence[SampledText]) -> float:
    """The sum over all inputs of what each sample has."""
    weights = (sample.stands_for for sample in samples)
    return math.fsum(map(operator.mul, figures, weights))
