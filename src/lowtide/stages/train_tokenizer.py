"""`train-tokenizer`: text of any size becomes a byte-pair vocabulary, exact, inside a budget.

inputs → blocks → words and their counts → merges → vocabularies → files → manifest
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from lowtide.errors import VerificationError
from lowtide.events import Listener, ignore
from lowtide.journal import Kind
from lowtide.memory.budget import Budget
from lowtide.settings import TokenizerSettings, loosen
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.find_inputs import Skipped
from lowtide.source.take_inputs import Inputs, take_inputs
from lowtide.stages.folder import TOKENIZER
from lowtide.stages.job import (
    job_inputs,
    list_input_changes,
    list_setting_changes,
    load_record,
    refuse_differences,
)
from lowtide.stages.learn_run import Learning
from lowtide.stages.measure_tokenizer import Comparison, NotCompared
from lowtide.stages.plan_tokenizer import TokenizerPlan, plan_tokenizer
from lowtide.stages.read_inputs import describe_inputs, refuse_stream_again
from lowtide.stages.stage import run_stage
from lowtide.stages.tokenizer_files import (
    TokenizerManifest,
    empty_work_folder,
    read_tokenizer_manifest,
    refuse_linked_folders,
    remove_tokenizer,
    verify_files,
)
from lowtide.stages.tokenizer_run import CountProgress, TokenizerJob, TokenizerRun
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.paths import as_path
from lowtide.units import format_bytes, format_seconds

CHECKPOINT_SECONDS = 30.0
"""Not more often: writing the tables out takes a third of a second, and makes more to merge at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerResult:
    """The manifest, which is on disk too, and what this run took and learned."""

    folder: Path
    manifest: TokenizerManifest
    learning: Learning | None
    """None when there was nothing to do."""
    comparison: Comparison | NotCompared | None
    """None when there was nothing to do."""
    seconds: float
    peak_private_bytes: int
    skipped: tuple[Skipped, ...] = ()
    """Files of the folders and globs that were not read."""

    @property
    def already_done(self) -> bool:
        """Whether the folder held this very tokenizer before."""
        return self.learning is None

    def __repr__(self) -> str:
        peak = format_bytes(self.peak_private_bytes)
        took = f"{format_seconds(self.seconds)}, peak {peak}"
        return (
            f"<TokenizerResult {self.folder}: {self.manifest.in_words}, "
            f"{'already done' if self.already_done else took}>"
        )


def train_tokenizer(
    inputs: Inputs,
    out: str | Path,
    settings: TokenizerSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> TokenizerResult:
    """Make the folder `out`, or resume; see `lowtide.train_tokenizer`."""
    started = time.monotonic()
    folder = as_path(out)
    settings = settings or TokenizerSettings()
    plan = plan_tokenizer(
        take_inputs(inputs, column=settings.column),
        settings,
        out=folder,
        memory=memory,
        workers=workers,
    )
    done = run_stage(
        TokenizerStage(),
        plan,
        folder,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        started=started,
        checkpoint_seconds=checkpoint_seconds,
    )
    return TokenizerResult(
        folder=folder,
        manifest=done.manifest,
        learning=done.work.learning if done.work else None,
        comparison=done.work.comparison if done.work else None,
        seconds=done.seconds,
        peak_private_bytes=done.peak_private_bytes,
        skipped=plan.skipped,
    )


class TokenizerStage:
    """A folder of trained tokenizers."""

    name: Kind = "train-tokenizer"
    kind = TOKENIZER
    job_type = TokenizerJob
    progress_type = CountProgress

    def settings(self, plan: TokenizerPlan) -> dict[str, object]:
        """The resolved settings."""
        return plan.settings.as_record()

    def job(self, plan: TokenizerPlan) -> TokenizerJob:
        """Settings and inputs."""
        return TokenizerJob(settings=plan.settings, inputs=describe_inputs(plan.inputs))

    def list_differences(
        self, before: TokenizerJob, now: TokenizerJob, progress: CountProgress
    ) -> list[str]:
        """Settings and inputs that differ, but for a policy on bad text that became milder."""
        too_late = now.settings.bad_text == "skip" and progress.cursor.within > 0
        settings = loosen(before.settings, now.settings, but=("bad_text",) if too_late else ())
        return _list_differences(replace(before, settings=settings), now)

    def clear(self, folder: Path, plan: TokenizerPlan, *, restart: bool) -> None:
        """Remove what counting left; with `restart`, also the tokenizers."""
        refuse_linked_folders(folder, plan.settings)
        if restart:
            remove_tokenizer(folder, _settings_in(folder, plan.settings))
        empty_work_folder(folder)

    def open(
        self, folder: Path, plan: TokenizerPlan, job: TokenizerJob, at: CountProgress | None
    ) -> TokenizerRun:
        """Tables of words and a cursor."""
        if at is not None and at.words is None:
            refuse_stream_again(plan, folder)
        refuse_linked_folders(folder, plan.settings)
        return TokenizerRun(folder, plan, job, at)

    def find_finished(self, folder: Path, job: TokenizerJob) -> TokenizerManifest:
        """The manifest of a finished folder, if it was made by this very job and its files are there."""
        manifest = read_tokenizer_manifest(folder)
        corpus = job_inputs(sorted(manifest.corpus, key=attrgetter("name")), job.inputs)
        before = TokenizerJob(settings=manifest.settings, inputs=corpus)
        by_name = tuple(sorted(job.inputs, key=attrgetter("name")))
        refuse_differences(_list_differences(before, replace(job, inputs=by_name)), folder)
        verify_files(folder, manifest)
        return manifest


def _list_differences(before: TokenizerJob, now: TokenizerJob) -> list[str]:
    lines = list_setting_changes(before.settings.as_record(), now.settings.as_record())
    return lines + list_input_changes(before.inputs, now.inputs)


def _settings_in(folder: Path, now: TokenizerSettings) -> list[TokenizerSettings]:
    """The settings of the runs that wrote into this folder; if they cannot be read, those of this run."""
    job = folder / WORK_FOLDER / TOKENIZER.work_name
    try:
        found = [load_record(job, TokenizerJob).settings] if job.exists() else []
        if (folder / TOKENIZER.manifest_name).exists():
            found.append(read_tokenizer_manifest(folder).settings)
    except VerificationError:
        return [now]
    return found
