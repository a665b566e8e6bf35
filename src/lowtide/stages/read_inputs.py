"""What the stages share that read text: a plan with inputs, their fingerprints, and nobody writing to them.

Standard input is read once: a run over it can neither be resumed nor be told from another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lowtide.errors import ChangedInputError, DataError, StoppedError, UsageError
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.find_inputs import InputFile, Skipped, describe_skipped
from lowtide.source.read_text import describe_skip
from lowtide.source.stream import ReadSettings
from lowtide.stages.folder import FolderKind
from lowtide.stages.job import JobInput, store_record
from lowtide.stages.stage import StagePlan, Work, inside_budget
from lowtide.storage.fingerprint import fingerprint_file


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPlan(StagePlan):
    """The plan of a stage that reads text."""

    inputs: list[InputFile]
    skipped: tuple[Skipped, ...]
    """Files of the folders and globs that are not read."""
    read: ReadSettings

    @property
    def total_bytes(self) -> int:
        """Size of all inputs as stored; 0 for standard input."""
        return sum(item.size_bytes for item in self.inputs)

    @property
    def reads_stdin(self) -> bool:
        """Whether some of the input comes once and never again."""
        return any(item.is_stdin for item in self.inputs)

    def notes(self) -> Iterator[str]:
        """What a person may not expect of the inputs."""
        if self.reads_stdin:
            yield "standard input is read once: a run that is cut off cannot be resumed"
        if self.skipped:
            yield describe_skipped(self.skipped)
        if skips_whole := describe_skip(self.read, self.inputs):
            yield skips_whole


class InputJob(Protocol):
    """The job of a stage that reads text."""

    @property
    def inputs(self) -> tuple[JobInput, ...]: ...


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
        modified_ns=_stat(item.path).st_mtime_ns,
        fingerprint=fingerprint_file(item.path),
    )


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as cause:
        raise DataError(
            f"{path} was there and cannot be read any more: {cause.strerror}",
            remedy="put it back as it was, and run the same command again",
        ) from cause


@contextmanager
def reading_inputs(
    work: Work[object], plan: InputPlan, job: InputJob, kind: FolderKind
) -> Iterator[None]:
    """Read the inputs inside the budget; ChangedInputError, also after a stop, if one was written to meanwhile.

    A hard link, other permissions and a time that was set back look alike: the fingerprint decides.
    `read_blocks` looks at every byte, at the end of a file and when a run is resumed inside it.
    """
    try:
        try:
            with plain_allocation(), inside_budget(work, plan):
                yield
        except StoppedError:
            _refuse_written(job.inputs, plan.inputs)
            raise
        _refuse_written(job.inputs, plan.inputs)
    except ChangedInputError:
        # What is done is of two versions: a fingerprint that no file has keeps it from being resumed, even if
        # size, time and samples happen to be the old ones.
        inputs = tuple(
            item
            if file.is_stdin or _stat(file.path).st_ctime_ns == file.changed_ns
            else replace(item, fingerprint="changed while it was read")
            for item, file in zip(job.inputs, plan.inputs, strict=True)
        )
        disowned = replace(job, inputs=inputs)  # type: ignore[type-var]
        store_record(work.folder / WORK_FOLDER / kind.work_name, disowned)
        raise


def _refuse_written(inputs: Sequence[JobInput], found: Sequence[InputFile]) -> None:
    for item, file in zip(inputs, found, strict=True):
        if file.is_stdin:
            continue
        now = _stat(file.path)
        if (now.st_size, now.st_mtime_ns) != (item.size_bytes, item.modified_ns) or (
            now.st_ctime_ns != file.changed_ns and fingerprint_file(file.path) != item.fingerprint
        ):
            raise ChangedInputError(
                f"{item.name} was written to while it was read",
                remedy="let whatever writes it finish, then pass `--restart`",
            )


def refuse_unknown_stdin(job: InputJob, folder: Path) -> None:
    """UsageError for a finished folder over standard input: nothing says whether this is the same text."""
    if any(item.fingerprint == "" for item in job.inputs):
        raise UsageError(
            f"{folder} holds a finished run over standard input; whether this is the same text is not known",
            remedy="pass `--restart` to begin again, or choose another `--out`",
        )


def refuse_stdin_again(plan: InputPlan, folder: Path) -> None:
    """UsageError for an unfinished folder over standard input: what it still needs is gone."""
    if plan.reads_stdin:
        raise UsageError(
            f"{folder} holds an unfinished run over standard input, which cannot be read again",
            remedy="pass `--restart` to begin again",
        )
