"""What the stages share that read text: a plan with inputs, their fingerprints, and nobody writing to them.

A stream (standard input, an iterable) is read once: a run over it cannot be resumed, nor be told from another.
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
from lowtide.source.find_inputs import InputFile, Skipped, Stream, describe_skipped
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
        """Size of all inputs as stored; 0 for a stream."""
        return sum(item.size_bytes for item in self.inputs)

    @property
    def stream(self) -> Stream | None:
        """What of the input comes once and never again."""
        return next(filter(None, (item.stream for item in self.inputs)), None)

    def notes(self) -> Iterator[str]:
        """What a person may not expect of the inputs."""
        if self.stream is not None:
            yield f"{self.stream.name} is read once: a run that is cut off cannot be resumed"
        if self.skipped:
            yield describe_skipped(self.skipped)
        if skips_whole := describe_skip(self.read, self.inputs):
            yield skips_whole


class InputJob(Protocol):
    """The job of a stage that reads text."""

    @property
    def inputs(self) -> tuple[JobInput, ...]: ...


def describe_inputs(inputs: Sequence[InputFile]) -> tuple[JobInput, ...]:
    """Fingerprints of all inputs: at most 1 MiB is read of each. A stream has none."""
    return tuple(_describe_input(item) for item in inputs)


def _describe_input(item: InputFile) -> JobInput:
    name = str(item.path)
    if item.stream is not None:
        return JobInput(name=name, kind=item.kind, size_bytes=0, modified_ns=0, fingerprint="")
    return JobInput(
        name=name,
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
            if file.stream is not None or _stat(file.path).st_ctime_ns == file.changed_ns
            else replace(item, fingerprint="changed while it was read")
            for item, file in zip(job.inputs, plan.inputs, strict=True)
        )
        disowned = replace(job, inputs=inputs)  # type: ignore[type-var]
        store_record(work.folder / WORK_FOLDER / kind.work_name, disowned)
        raise


def _refuse_written(inputs: Sequence[JobInput], found: Sequence[InputFile]) -> None:
    for item, file in zip(inputs, found, strict=True):
        if file.stream is not None:
            continue
        now = _stat(file.path)
        if (now.st_size, now.st_mtime_ns) != (item.size_bytes, item.modified_ns) or (
            now.st_ctime_ns != file.changed_ns and fingerprint_file(file.path) != item.fingerprint
        ):
            raise ChangedInputError(
                f"{item.name} was written to while it was read",
                remedy="let whatever writes it finish, then pass `--restart`",
            )


def refuse_stream_again(plan: InputPlan, folder: Path) -> None:
    """UsageError for an unfinished folder over a stream: what it still needs is gone."""
    if plan.stream is not None:
        raise UsageError(
            f"{folder} holds an unfinished run over {plan.stream.name}, which cannot be read again",
            remedy=f"pass `{plan.stream.restart}` to begin again",
        )
