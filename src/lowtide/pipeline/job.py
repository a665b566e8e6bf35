"""The identity of a run: settings, tokenizer and inputs. A run goes on only if none of them changed.

`job.json` is written once when a run begins, `progress.json` at every checkpoint; both lie in the work
folder inside the output folder until the manifest stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.pipeline.settings import TokenizeSettings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.shards.manifest import DatasetManifest
from lowtide.shards.write import WriterMark
from lowtide.source.find_inputs import InputFile
from lowtide.source.stream import BadRow, Cursor
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.sealed_json import read_sealed, write_sealed

JOB_NAME = "job.json"
PROGRESS_NAME = "progress.json"
ASIDE_NAME = "removed_progress.json"
"""The checkpoint of a run that is being removed: nobody goes on from it."""
_SHOWN_DIFFERENCES = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One input as it was when the run began."""

    name: str
    kind: str
    size_bytes: int
    modified_ns: int
    fingerprint: str


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


def describe_inputs(inputs: Sequence[InputFile]) -> tuple[JobInput, ...]:
    """Fingerprints of all inputs: at most 1 MiB is read of each. Standard input has none."""
    return tuple(_describe_input(item) for item in inputs)


def _describe_input(item: InputFile) -> JobInput:
    if item.is_stdin:
        return JobInput(name="-", kind=item.kind, size_bytes=0, modified_ns=0, fingerprint="")
    return JobInput(
        name=str(item.path),
        kind=f"{item.kind}.{item.compression}" if item.compression else str(item.kind),
        size_bytes=item.size_bytes,
        modified_ns=item.path.stat().st_mtime_ns,
        fingerprint=fingerprint_file(item.path),
    )


def job_of_manifest(manifest: DatasetManifest, now: Job) -> Job:
    """The job that a finished folder was made by; times of writing are not kept, so `now`'s stand in."""
    times = {item.name: item.modified_ns for item in now.inputs}
    return Job(
        settings=msgspec.convert(manifest.settings, TokenizeSettings),
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


def store_job(folder: Path, job: Job) -> None:
    """Say what this folder is being made from, before the first token is."""
    write_sealed(folder / WORK_FOLDER / JOB_NAME, msgspec.to_builtins(job))


def store_progress(folder: Path, progress: Progress) -> None:
    """Make a checkpoint the one that a crash falls back to."""
    write_sealed(folder / WORK_FOLDER / PROGRESS_NAME, msgspec.to_builtins(progress))


def load_job(folder: Path) -> Job | None:
    """The job begun in this folder, if any."""
    path = folder / WORK_FOLDER / JOB_NAME
    return _convert(path, Job) if path.exists() else None


def load_progress(folder: Path, name: str = PROGRESS_NAME) -> Progress | None:
    """The newest checkpoint in this folder, if any."""
    path = folder / WORK_FOLDER / name
    return _convert(path, Progress) if path.exists() else None


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
    if progress.cursor.within and milder.get("bad_text") == "skip":
        del milder["bad_text"]
    return replace(before, settings=replace(before.settings, **milder))


def refuse_changes(before: Job, now: Job, folder: Path) -> None:
    """A UsageError that lists what differs between the run begun in `folder` and this one."""
    differences = list_differences(before, now)
    if not differences:
        return
    shown = "".join(f"\n  - {line}" for line in differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    rest = f"\n  - and {more} more" if more > 0 else ""
    raise UsageError(
        f"{folder} was begun with other settings or inputs:{shown}{rest}",
        remedy="run with the settings and inputs of before to go on, pass `--restart` to begin again, "
        "or choose another `--out`",
    )


def refuse_written_inputs(inputs: Sequence[JobInput]) -> None:
    """A DataError if an input was written to while it was read: the tokens may be of two versions of it."""
    for item in inputs:
        if item.name == "-":
            continue
        now = Path(item.name).stat()
        if (now.st_size, now.st_mtime_ns) != (item.size_bytes, item.modified_ns):
            raise DataError(
                f"{item.name} was written to while it was read",
                remedy="let whatever writes it finish, then pass `--restart`",
            )


def list_differences(before: Job, now: Job) -> list[str]:
    """Each difference as a line: `--val was 0.01, is 0.02`, `a.txt has changed (size 3, was 4)`."""
    lines = [
        f"--{name.replace('_', '-')} was {old!r}, is {new!r}"
        for (name, old), new in zip(
            before.settings.as_record().items(), now.settings.as_record().values(), strict=True
        )
        if old != new
    ]
    if not lines and before.tokenizer_fingerprint != now.tokenizer_fingerprint:
        lines.append(f"the tokenizer {now.settings.tokenizer} has changed")
    names_before = [item.name for item in before.inputs]
    names_now = [item.name for item in now.inputs]
    known = {item.name: item for item in before.inputs}
    still = set(names_now)
    lines += [f"{name} is no longer among the inputs" for name in names_before if name not in still]
    lines += [f"{name} is a new input" for name in names_now if name not in known]
    if not lines and names_before != names_now:
        lines.append("the inputs come in another order")
    lines += [
        _changed(known[item.name], item)
        for item in now.inputs
        if item.name in known and known[item.name] != item
    ]
    return lines


def _changed(before: JobInput, now: JobInput) -> str:
    if before.size_bytes != now.size_bytes:
        return f"{now.name} has changed (size {now.size_bytes}, was {before.size_bytes})"
    if before.fingerprint != now.fingerprint:
        return f"{now.name} has changed (other content)"
    return f"{now.name} was written to since"


def _convert(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(read_sealed(path), kind)
    except msgspec.ValidationError as cause:
        raise VerificationError(
            f"{path} was written by another version of lowtide ({cause})",
            remedy="pass `--restart` to begin again",
        ) from cause
