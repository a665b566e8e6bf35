"""The identity of a run: settings, tokenizer and inputs. A run goes on only if none of them changed.

`job.json` is written once when a run begins, `progress.json` at every checkpoint; both lie in the work
folder inside the output folder until the manifest stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from lowtide.errors import VerificationError
from lowtide.pipeline.job_inputs import (
    JobInput,
    list_input_changes,
    list_setting_changes,
    refuse_differences,
)
from lowtide.pipeline.settings import TokenizeSettings, settings_of_manifest
from lowtide.shards.layout import WORK_FOLDER
from lowtide.shards.manifest import DatasetManifest
from lowtide.shards.write import WriterMark
from lowtide.source.blocks import LISTED_BAD_ROWS
from lowtide.source.find_inputs import InputKind
from lowtide.source.stream import BadRow, Block, Cursor, PartlyRead
from lowtide.storage.decode_json import convert_json
from lowtide.storage.names import explain
from lowtide.storage.sealed_json import read_sealed, write_sealed

JOB_NAME = "job.json"
PROGRESS_NAME = "progress.json"
ASIDE_NAME = "removed_progress.json"
"""The checkpoint of a run that is being removed: nobody goes on from it."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that the output is a function of."""

    version: int = 1
    settings: TokenizeSettings
    tokenizer_fingerprint: str
    inputs: tuple[JobInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What has been counted so far; stored with every checkpoint."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    bad_count: int = 0
    bad: tuple[BadRow, ...] = ()
    empty_documents: int = 0
    unknown_tokens: int = 0
    """Tokens that stand for text which has no token."""
    examples: int = 0
    """Those of which there are tokens."""
    learnt_tokens: int = 0
    too_long: int = 0
    """Examples of more tokens than fit."""
    dropped: int = 0
    """Pieces of examples left out because nothing in them is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A point from which the run can go on and come to the same bytes."""

    cursor: Cursor
    held_out_open: bool
    """The side of the document that the cursor stands in."""
    done_bytes: int
    counts: Counts
    train: WriterMark
    val: WriterMark
    partly_read: PartlyRead | None = None
    """The text before the cursor of the file it lies in; None at a file's start, and in older checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCounts:
    """What became of the examples of a block; all 0 for text."""

    examples: int = 0
    learnt_tokens: int = 0
    too_long: int = 0
    dropped: int = 0


def add_block(
    counts: Counts,
    block: Block,
    *,
    tokens: int,
    unknown_tokens: int = 0,
    examples: ExampleCounts | None = None,
) -> Counts:
    """The counts after one more block; of bad rows the first hundred are listed."""
    room = LISTED_BAD_ROWS - len(counts.bad)
    examples = examples or ExampleCounts()
    return replace(
        counts,
        documents=counts.documents + block.document_count,
        tokens=counts.tokens + tokens,
        text_bytes=counts.text_bytes + block.text_bytes,
        bad_count=counts.bad_count + block.bad_count,
        bad=counts.bad + block.bad[:room] if block.bad else counts.bad,
        empty_documents=counts.empty_documents + block.empty_count,
        unknown_tokens=counts.unknown_tokens + unknown_tokens,
        examples=counts.examples + examples.examples,
        learnt_tokens=counts.learnt_tokens + examples.learnt_tokens,
        too_long=counts.too_long + examples.too_long,
        dropped=counts.dropped + examples.dropped,
    )


def job_of_manifest(manifest: DatasetManifest, now: Job) -> Job:
    """The job that a finished folder was made by; times of writing are not kept, so `now`'s stand in."""
    times = {item.name: item.modified_ns for item in now.inputs}
    val = manifest.splits.get("val")
    before = Job(
        settings=settings_of_manifest(manifest),
        tokenizer_fingerprint=manifest.tokenizer.fingerprint,
        inputs=tuple(
            JobInput(
                name=item.name,
                kind=item.kind,
                size_bytes=item.size_bytes,
                modified_ns=times.get(item.name, 0),
                fingerprint=item.fingerprint,
            )
            for item in manifest.inputs
        ),
    )
    return _holding_nothing_out(before, now, val_tokens=val.tokens if val else 0)


def store_job(folder: Path, job: Job) -> None:
    """Say what this folder is being made from, before the first token is."""
    write_sealed(folder / WORK_FOLDER / JOB_NAME, msgspec.to_builtins(job))


def store_progress(folder: Path, progress: Progress) -> None:
    """Make a checkpoint the one that a crash falls back to."""
    write_sealed(folder / WORK_FOLDER / PROGRESS_NAME, msgspec.to_builtins(progress))


def load_job(folder: Path) -> Job | None:
    """The job begun in this folder, if any."""
    path = folder / WORK_FOLDER / JOB_NAME
    return convert_sealed(path, Job) if path.exists() else None


def load_progress(folder: Path, name: str = PROGRESS_NAME) -> Progress | None:
    """The newest checkpoint in this folder, if any."""
    path = folder / WORK_FOLDER / name
    return convert_sealed(path, Progress) if path.exists() else None


def check_progress(folder: Path, progress: Progress, *, input_count: int) -> None:
    """VerificationError for a checkpoint that no run over so many inputs can have stored."""
    cursor, counts = progress.cursor, progress.counts
    numbers = [cursor.file, cursor.position, cursor.within, progress.done_bytes]
    numbers += [number for number in msgspec.to_builtins(counts).values() if type(number) is int]
    if min(numbers) < 0 or cursor.file > input_count:
        raise VerificationError(
            f"{folder / WORK_FOLDER / PROGRESS_NAME} does not hold what it should: a count below 0, or a "
            f"place beyond the {input_count} inputs",
            remedy="pass `--restart` to begin again",
        )


def loosen(before: Job, now: Job, progress: Progress) -> Job:
    """`before` with the policies that were "fail" and are milder `now`.

    Such a run has met nothing bad so far: going on comes to the same bytes as having begun so. Only a text
    that was already begun cannot be left out any more.
    """
    milder = {
        name: getattr(now.settings, name)
        for name in ("bad_text", "special_in_text")
        if getattr(before.settings, name) == "fail"
    }
    if before.settings.examples and before.settings.bad_text != "fail":
        milder.pop("special_in_text", None)  # such rows may have been left out
    if progress.cursor.within and milder.get("bad_text") == "skip":
        del milder["bad_text"]
    before = replace(before, settings=replace(before.settings, **milder))
    return _holding_nothing_out(before, now, val_tokens=progress.val.tokens)


def _holding_nothing_out(before: Job, now: Job, *, val_tokens: int) -> Job:
    """`before` with a share of 0 where the hash assigned a single text to training and `now` has no validation.

    Earlier versions stored 0.0005 by default where 0 is stored now. The bytes are the same.
    """
    one = len(before.inputs) == 1 and before.inputs[0].kind.split(".")[0] == InputKind.TEXT
    rows = before.settings.examples is not None or before.settings.separator != "file"
    by_hash = before.settings.split_rule == "hash" and not now.settings.held_out_share
    if val_tokens or rows or not (one and by_hash):
        return before
    return replace(before, settings=replace(before.settings, val=0.0))


def refuse_changes(before: Job, now: Job, folder: Path) -> None:
    """A UsageError that lists what differs between the run begun in `folder` and this one."""
    refuse_differences(list_differences(before, now), folder)


def list_differences(before: Job, now: Job) -> list[str]:
    """Settings, tokenizer and inputs that differ, a line each."""
    lines = list_setting_changes(_comparable(before), _comparable(now))
    if before.settings.template == now.settings.template and (
        before.settings.template_text != now.settings.template_text
    ):
        lines.append(f"the template {now.settings.template} has changed")
    if not lines and before.tokenizer_fingerprint != now.tokenizer_fingerprint:
        lines.append(f"the tokenizer {now.settings.tokenizer} has changed")
    return lines + list_input_changes(before.inputs, now.inputs)


def _comparable(job: Job) -> dict[str, str | int | float]:
    """The settings but for the template's text, of which nobody wants to read both versions."""
    return replace(job.settings, template_text=None).as_record()


def convert_sealed(path: Path, kind: type[_T]) -> _T:
    """A sealed file as a value of this kind."""
    try:
        return convert_json(read_sealed(path), kind)
    except msgspec.ValidationError as cause:
        raise VerificationError(
            f"{path} does not hold what it should, or was written by another version of lowtide "
            f"({explain(cause)})",
            remedy="pass `--restart` to begin again",
        ) from cause
