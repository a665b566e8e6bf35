"""How a folder is made step by step: planned, locked, begun or resumed, worked on under watch, and sealed.

    plan → lock → begin, resume or refuse what differs → work, with a watch beside it → manifest

A stage says what its job is, how its folder is cleared and opened, and what it did in a finished one. Its work
says what it does. `run_stage` owns all that is the same for every stage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from lowtide.errors import (
    ChangedInputError,
    DataError,
    LowtideError,
    StorageError,
    UsageError,
)
from lowtide.events import Listener, Note
from lowtide.journal import Kind
from lowtide.memory.allocator import return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.memory.fence import fence
from lowtide.memory.meter import private_bytes
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.find_inputs import InputFile, Skipped, describe_skipped
from lowtide.source.read_text import describe_skip
from lowtide.source.stream import ReadSettings
from lowtide.stages import folder as out_folder
from lowtide.stages.folder import FolderKind
from lowtide.stages.job import (
    Counts,
    JobInput,
    describe_inputs,
    disown_changed,
    load_record,
    refuse_differences,
    refuse_written_inputs,
    store_record,
)
from lowtide.stages.keep_journal import keep_journal
from lowtide.stages.watch_run import ShouldStop, Watch
from lowtide.units import MIB

_FENCE_SLACK_BYTES = 192 * MIB
"""Reserved memory that is never touched counts for a fence and not for a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run that is about to start: all choices made, nothing written. Each stage adds its own."""

    inputs: list[InputFile]
    skipped: tuple[Skipped, ...]
    """Files of the folders and globs that are not read."""
    read: ReadSettings
    budget: Budget
    foreign_bytes: int
    """Private memory that was there before and that the budget does not count."""
    foreign_pids: frozenset[int]
    """Child processes from before the run: their memory is not counted either."""

    @property
    def input_bytes(self) -> int:
        """Size of all inputs as stored; 0 for standard input."""
        return sum(item.size_bytes for item in self.inputs)

    @property
    def reads_stdin(self) -> bool:
        """Whether some of the input comes once and never again."""
        return any(item.is_stdin for item in self.inputs)

    def notes(self) -> Iterator[str]:
        """What was chosen, and what a person may not expect of it, in the order it is shown."""
        if self.reads_stdin:
            yield "standard input is read once: a run that is cut off cannot be resumed"
        if self.skipped:
            yield describe_skipped(self.skipped)
        if skips_whole := describe_skip(self.read, self.inputs):
            yield skips_whole

    def close(self) -> None:
        """End the processes that the plan started."""


class Job(Protocol):
    """Everything that the output of a stage is a function of; stored when a run begins."""

    @property
    def inputs(self) -> tuple[JobInput, ...]: ...


class Progress(Protocol):
    """A checkpoint: from here a run can be resumed, and comes to the same bytes."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is done that would be worth keeping."""

    @property
    def needs_input(self) -> bool:
        """Whether there is input left to read."""


ManifestT = TypeVar("ManifestT", covariant=True)


class Work(Protocol[ManifestT]):
    """An open folder, and what is done in it. Between two units it can be stored."""

    @property
    def folder(self) -> Path: ...
    @property
    def done_bytes(self) -> int:
        """How much of the input is read."""

    @property
    def counts(self) -> Counts: ...
    @property
    def is_empty(self) -> bool:
        """Whether nothing is done that would be worth keeping."""

    @property
    def in_words(self) -> str:
        """How far it has come, such as `98.1M tokens`."""

    def work(self, watch: Watch) -> None:
        """Do everything that is left, and call the watch after each unit."""

    def checkpoint(self) -> None:
        """Store what is done; a unit that was done in part is left out."""

    def give_back(self) -> None:
        """Memory runs short: let go of what is kept for speed."""

    def take_child_bytes(self) -> int:
        """Peak memory of child processes since the last call."""

    def seal(self) -> ManifestT:
        """Publish the outputs and, last of all, the manifest."""

    def close(self) -> None:
        """Let go of threads and files as they stand."""


PlanT = TypeVar("PlanT", bound=Plan, contravariant=True)
JobT = TypeVar("JobT", bound=Job)
ProgressT = TypeVar("ProgressT", bound=Progress)
WorkT = TypeVar("WorkT", bound=Work[object], covariant=True)


class Stage(Protocol[PlanT, JobT, ProgressT, WorkT, ManifestT]):
    """What one kind of folder needs beside that which all have in common."""

    name: Kind
    kind: FolderKind
    job_type: type[JobT]
    progress_type: type[ProgressT]

    def settings(self, plan: PlanT) -> dict[str, object]:
        """The resolved settings as the journal has them."""

    def job(self, plan: PlanT, inputs: tuple[JobInput, ...]) -> JobT:
        """The job of this plan over the inputs as they are now."""

    def list_differences(self, before: JobT, now: JobT, progress: ProgressT) -> list[str]:
        """What keeps the run that was begun from being resumed, a line each."""

    def clear(self, folder: Path, plan: PlanT, *, restart: bool) -> None:
        """Remove what an unfinished run left; with `restart`, also what a finished one made. Nothing else."""

    def open(self, folder: Path, plan: PlanT, job: JobT, at: ProgressT | None) -> WorkT:
        """The work from a checkpoint, whose files are verified first, or from the beginning."""

    def find_finished(self, folder: Path, job: JobT) -> ManifestT:
        """The manifest of a finished folder; an error if another job made it or files are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult(Generic[WorkT, ManifestT]):
    """What `run_stage` came to."""

    work: WorkT | None
    """None when the folder was finished before."""
    manifest: ManifestT
    seconds: float
    peak_private_bytes: int


def run_stage(
    stage: Stage[PlanT, JobT, ProgressT, WorkT, ManifestT],
    plan: PlanT,
    folder: Path,
    *,
    restart: bool,
    listen: Listener,
    should_stop: ShouldStop,
    started: float,
    checkpoint_seconds: float,
) -> StageResult[WorkT, ManifestT]:
    """Bring the folder to its manifest, from the beginning or from where it stands; closes the plan.

    `started` is when the run began, by the monotonic clock. Raises StoppedError after a clean stop.
    """
    with closing(plan), ExitStack() as stack:
        return_large_pieces()
        for text in plan.notes():
            listen(Note(text=text))
        out_folder.make_folder(folder, stage.kind)
        stack.enter_context(out_folder.hold_lock(folder))
        out_folder.remove_killed_writes(folder)
        job = stage.job(plan, describe_inputs(plan.inputs))
        if restart:
            stage.clear(folder, plan, restart=True)
        if (folder / stage.kind.manifest_name).exists():
            return _keep_finished(stage, folder, job)
        work = _open(stage, folder, plan, job, listen)
        with ExitStack() as working:
            working.callback(work.close)
            kept = working.enter_context(
                keep_journal(
                    folder,
                    stage.name,
                    listen,
                    settings=stage.settings(plan),
                    budget_bytes=plan.budget.total_bytes,
                    started=started,
                )
            )
            watch = Watch(
                work,
                plan,
                listen=kept.listen,
                should_stop=should_stop,
                started=started,
                checkpoint_seconds=checkpoint_seconds,
            )
            kept.peak_private_bytes = lambda: watch.peak_private_bytes
            try:
                work.work(watch)
            except LowtideError as error:
                if isinstance(error, ChangedInputError):
                    inputs = disown_changed(job.inputs, plan.inputs)
                    _store_job(stage, folder, replace(job, inputs=inputs))  # type: ignore[type-var]
                if work.is_empty:
                    stack.callback(out_folder.abandon_folder, folder)  # once its files are closed
                raise
            manifest = cast("ManifestT", work.seal())  # the stage and its work agree on the kind
        out_folder.finish_folder(folder)
        return StageResult(
            work=work,
            manifest=manifest,
            seconds=time.monotonic() - started,
            peak_private_bytes=watch.peak_private_bytes,
        )


@contextmanager
def reading_inputs(work: Work[object], plan: Plan, job: Job) -> Iterator[None]:
    """Read the inputs inside a memory fence; a checkpoint is taken before an error leaves.

    Afterwards, and after a stop, ChangedInputError for an input that was written to meanwhile.
    """
    extra_bytes = plan.budget.total_bytes - (private_bytes() - plan.foreign_bytes)
    with (
        refuse_written_inputs(job.inputs, plan.inputs),
        plain_allocation(),
        fence(max(extra_bytes, 0) + _FENCE_SLACK_BYTES),
    ):
        try:
            yield
        except (StorageError, ChangedInputError):
            raise  # a failed disk cannot take a checkpoint, and mixed text must not be in one
        except LowtideError:
            work.checkpoint()
            raise
        except MemoryError as cause:
            work.checkpoint()
            raise DataError(
                f"an allocation beyond the budget was refused ({cause or 'out of memory'})",
                remedy="pass a larger `--memory`; the same command resumes where it stopped",
            ) from cause


def refuse_unknown_stdin(job: Job, folder: Path) -> None:
    """UsageError for a finished folder over standard input: nothing says whether this is the same text."""
    if any(item.fingerprint == "" for item in job.inputs):
        raise UsageError(
            f"{folder} holds a finished run over standard input; whether this is the same text is not known",
            remedy="pass `--restart` to begin again, or choose another `--out`",
        )


def _keep_finished(
    stage: Stage[PlanT, JobT, ProgressT, WorkT, ManifestT], folder: Path, job: JobT
) -> StageResult[WorkT, ManifestT]:
    with ExitStack() as stack:
        stack.callback(out_folder.finish_folder, folder)
        manifest = stage.find_finished(folder, job)
    return StageResult(work=None, manifest=manifest, seconds=0.0, peak_private_bytes=0)


def _open(
    stage: Stage[PlanT, JobT, ProgressT, WorkT, ManifestT],
    folder: Path,
    plan: PlanT,
    job: JobT,
    listen: Listener,
) -> WorkT:
    """Fresh work, or that of the run in the folder. A run that came to nothing is not worth keeping."""
    paths = [
        folder / WORK_FOLDER / name for name in (stage.kind.work_name, stage.kind.progress_name)
    ]
    if not all(path.exists() for path in paths):
        return _begin(stage, folder, plan, job)
    before = load_record(paths[0], stage.job_type)
    progress = load_record(paths[1], stage.progress_type)
    if progress.is_empty:
        return _begin(stage, folder, plan, job)
    refuse_differences(stage.list_differences(before, job, progress), folder)
    if plan.reads_stdin and progress.needs_input:
        raise UsageError(
            f"{folder} holds an unfinished run over standard input, which cannot be read again",
            remedy="pass `--restart` to begin again",
        )
    if before != job:
        _store_job(stage, folder, job)
    work = stage.open(folder, plan, job, progress)
    listen(out_folder.resuming_after(work.in_words))
    return work


def _begin(
    stage: Stage[PlanT, JobT, ProgressT, WorkT, ManifestT], folder: Path, plan: PlanT, job: JobT
) -> WorkT:
    stage.clear(folder, plan, restart=False)
    _store_job(stage, folder, job)
    return stage.open(folder, plan, job, None)


def _store_job(
    stage: Stage[PlanT, JobT, ProgressT, WorkT, ManifestT], folder: Path, job: JobT
) -> None:
    store_record(folder / WORK_FOLDER / stage.kind.work_name, job)
