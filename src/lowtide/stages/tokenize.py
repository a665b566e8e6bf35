"""`tokenize`: text of any size becomes token shards, inside a budget.

    inputs → blocks → tokens → two splits of shards → manifest

A checkpoint is taken whenever a shard is full, after half a shard of tokens, and every few seconds.
What lies between two checkpoints is done again after a crash, and comes out the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.events import Listener, ignore
from lowtide.journal import Kind
from lowtide.memory.budget import Budget
from lowtide.settings import TokenizeSettings, loosen
from lowtide.shards.manifest import DatasetManifest, read_manifest
from lowtide.source.find_inputs import InputKind
from lowtide.source.take_inputs import Inputs, take_inputs
from lowtide.stages.folder import SHARDS
from lowtide.stages.job import (
    job_inputs,
    list_input_changes,
    list_setting_changes,
    refuse_differences,
)
from lowtide.stages.prepare import Prepared, prepare
from lowtide.stages.read_inputs import describe_inputs, refuse_stream_again
from lowtide.stages.settings import settings_of_manifest
from lowtide.stages.shard_folder import empty_folder, refuse_missing_files
from lowtide.stages.shard_run import ShardJob, ShardProgress, ShardRun
from lowtide.stages.stage import run_stage
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.paths import as_path
from lowtide.units import format_bytes, format_seconds

_CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeResult:
    """The manifest, which is on disk too, and what this run took."""

    folder: Path
    manifest: DatasetManifest
    seconds: float
    peak_private_bytes: int
    """The highest measurement; 0 when the folder was done already."""
    already_done: bool = False

    def __repr__(self) -> str:
        peak = format_bytes(self.peak_private_bytes)
        took = f"{format_seconds(self.seconds)}, peak {peak}"
        return (
            f"<TokenizeResult {self.folder}: {self.manifest.in_words}, "
            f"{'already done' if self.already_done else took}>"
        )


def tokenize(
    inputs: Inputs,
    out: str | Path,
    settings: TokenizeSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
) -> TokenizeResult:
    """Make the folder `out`, or resume; see `lowtide.tokenize`."""
    started = time.monotonic()
    folder = as_path(out)
    settings = settings or TokenizeSettings()
    plan = prepare(
        take_inputs(inputs, column=None if settings.examples else settings.text_column),
        settings,
        out=folder,
        memory=memory,
        workers=workers,
    )
    done = run_stage(
        TokenizeStage(),
        plan,
        folder,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        started=started,
        checkpoint_seconds=_CHECKPOINT_SECONDS,
    )
    return TokenizeResult(
        folder=folder,
        manifest=done.manifest,
        seconds=done.seconds,
        peak_private_bytes=done.peak_private_bytes,
        already_done=done.work is None,
    )


class TokenizeStage:
    """A folder of token shards."""

    name: Kind = "tokenize"
    kind = SHARDS
    job_type = ShardJob
    progress_type = ShardProgress

    def settings(self, plan: Prepared) -> dict[str, object]:
        """The resolved settings."""
        return dict(plan.settings.as_record())

    def job(self, plan: Prepared) -> ShardJob:
        """Settings, tokenizer and inputs."""
        return ShardJob(
            settings=plan.settings,
            tokenizer_fingerprint=plan.vocabulary.fingerprint,
            inputs=describe_inputs(plan.inputs),
        )

    def list_differences(
        self, before: ShardJob, now: ShardJob, progress: ShardProgress
    ) -> list[str]:
        """Settings, tokenizer and inputs that differ, but for policies on bad text that became milder."""
        return _list_differences(_loosen(before, now, progress), now)

    def clear(self, folder: Path, plan: Prepared, *, restart: bool) -> None:  # noqa: ARG002
        """Remove shards, checkpoint and manifest, whether the run was finished or not."""
        empty_folder(folder, self, plan.layout)

    def open(
        self, folder: Path, plan: Prepared, job: ShardJob, at: ShardProgress | None
    ) -> ShardRun:
        """Two writers and a cursor."""
        if at is not None:
            refuse_stream_again(plan, folder)  # only the manifest says that all of it was read
        return ShardRun(folder, plan, job, at)

    def find_finished(self, folder: Path, job: ShardJob) -> DatasetManifest:
        """The manifest of a finished folder, if it was made by this very job and its files are there."""
        manifest = read_manifest(folder)
        refuse_differences(_list_differences(_job_of_manifest(manifest, job), job), folder)
        refuse_missing_files(folder)
        return manifest


def _job_of_manifest(manifest: DatasetManifest, now: ShardJob) -> ShardJob:
    """The job that a finished folder was made by."""
    val = manifest.splits.get("val")
    before = ShardJob(
        settings=settings_of_manifest(manifest),
        tokenizer_fingerprint=manifest.tokenizer.fingerprint,
        inputs=job_inputs(manifest.inputs, now.inputs),
    )
    return _holding_nothing_out(before, now, val_tokens=val.tokens if val else 0)


def _loosen(before: ShardJob, now: ShardJob, progress: ShardProgress) -> ShardJob:
    """`before` with policies that became milder, where that is not too late."""
    but = []
    if before.settings.examples and before.settings.bad_text != "fail":
        but.append("special_in_text")  # such rows may have been left out
    if progress.cursor.within and now.settings.bad_text == "skip":
        but.append("bad_text")  # a text that was already begun cannot be left out any more
    settings = loosen(before.settings, now.settings, but=tuple(but))
    before = replace(before, settings=settings)
    return _holding_nothing_out(before, now, val_tokens=progress.val.tokens)


def _holding_nothing_out(before: ShardJob, now: ShardJob, *, val_tokens: int) -> ShardJob:
    """`before` with a share of 0 where the hash assigned a single text to training and `now` has no validation.

    Earlier versions stored 0.0005 by default where 0 is stored now. The bytes are the same.
    """
    one = len(before.inputs) == 1 and before.inputs[0].kind.split(".")[0] == InputKind.TEXT
    rows = before.settings.examples is not None or before.settings.separator != "file"
    by_hash = before.settings.split_rule == "hash" and not now.settings.held_out_share
    if val_tokens or rows or not (one and by_hash):
        return before
    return replace(before, settings=replace(before.settings, val=0.0))


def _list_differences(before: ShardJob, now: ShardJob) -> list[str]:
    """A line for each difference; a changed template is named, not shown."""
    records = [replace(job.settings, template_text=None).as_record() for job in (before, now)]
    lines = list_setting_changes(*records)
    if before.settings.template == now.settings.template and (
        before.settings.template_text != now.settings.template_text
    ):
        lines.append(f"the template {now.settings.template} has changed")
    if not lines and before.tokenizer_fingerprint != now.tokenizer_fingerprint:
        lines.append(f"the tokenizer {now.settings.tokenizer} has changed")
    return lines + list_input_changes(before.inputs, now.inputs)
