"""The identity of a training run, and the points from which it can go on.

`training.json` is written once when a run begins, `counting.json` at every checkpoint; both lie in the work
folder inside the output folder until the manifest stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lowtide.pipeline.folder import TOKENIZER
from lowtide.pipeline.job import Counts, convert_sealed
from lowtide.pipeline.job_inputs import (
    JobInput,
    list_input_changes,
    list_setting_changes,
    refuse_differences,
)
from lowtide.pipeline.train_settings import TrainSettings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.stream import Cursor, PartlyRead
from lowtide.storage.sealed_json import write_sealed
from lowtide.tokenizer.word_runs import RunRecord, WordTotals

COUNTING_NAME = "counting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """Everything that the output is a function of."""

    version: int = 1
    settings: TrainSettings
    inputs: tuple[JobInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountProgress:
    """A point from which counting can go on and come to the same words."""

    cursor: Cursor
    done_bytes: int
    counts: Counts
    runs: tuple[RunRecord, ...]
    next_run: int
    held_out_open: bool = False
    """The side of the document that the cursor stands in."""
    held_out_bytes: int = 0
    """Of held-out text that was kept for the report."""
    words: RunRecord | None = None
    """All words, once everything is counted."""
    totals: WordTotals | None = None
    partly_read: PartlyRead | None = None
    """The text before the cursor of the file it lies in; None at a file's start, and in older checkpoints."""


def store_train_job(folder: Path, job: TrainJob) -> None:
    """Say what this folder is being made from, before the first word is counted."""
    write_sealed(folder / WORK_FOLDER / TOKENIZER.work_name, msgspec.to_builtins(job))


def load_train_job(folder: Path) -> TrainJob | None:
    """The job begun in this folder, if any."""
    path = folder / WORK_FOLDER / TOKENIZER.work_name
    return convert_sealed(path, TrainJob) if path.exists() else None


def store_count_progress(folder: Path, progress: CountProgress) -> None:
    """Make a checkpoint the one that a crash falls back to."""
    write_sealed(folder / WORK_FOLDER / COUNTING_NAME, msgspec.to_builtins(progress))


def load_count_progress(folder: Path) -> CountProgress | None:
    """The newest checkpoint in this folder, if any."""
    path = folder / WORK_FOLDER / COUNTING_NAME
    return convert_sealed(path, CountProgress) if path.exists() else None


def loosen_training(before: TrainJob, now: TrainJob, progress: CountProgress) -> TrainJob:
    """`before` with a policy for bad text that was "fail" and is milder `now`.

    Such a run has met nothing bad so far: going on comes to the same words as having begun so. Only a text
    that was already begun cannot be left out any more.
    """
    policy = now.settings.bad_text
    too_late = policy == "skip" and progress.cursor.within > 0
    if before.settings.bad_text != "fail" or too_late:
        return before
    return replace(before, settings=replace(before.settings, bad_text=policy))


def refuse_train_changes(before: TrainJob, now: TrainJob, folder: Path) -> None:
    """A UsageError that lists what differs between the run begun in `folder` and this one."""
    lines = list_setting_changes(before.settings.as_record(), now.settings.as_record())
    refuse_differences(lines + list_input_changes(before.inputs, now.inputs), folder)
