"""A stage makes a folder step by step, and can be stopped and resumed between two steps.

    plan → lock → begin, resume or refuse what differs → work, with a watch beside it → manifest

A `Stage` defines its job, and how its folder is cleared, opened and found finished; its `Work` does the steps.
`run_stage` does everything else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from lowtide.errors import (
    ChangedInputError,
    DataError,
    LowtideError,
    StorageError,
    UsageError,
    VerificationError,
)
from lowtide.events import Listener, Note
from lowtide.journal import Kind
from lowtide.memory.allocator import return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.memory.fence import fence
from lowtide.memory.meter import private_bytes
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.find_inputs import Stream
from lowtide.stages import folder as out_folder
from lowtide.stages.folder import FolderKind
from lowtide.stages.job import Counts, load_record, refuse_differences, store_record
from lowtide.stages.keep_journal import keep_journal
from lowtide.stages.watch_run import ShouldStop, Watch
from lowtide.units import MIB

_FENCE_SLACK_BYTES = 192 * MIB
"""Memory that is reserved and never touched counts for a fence, but not for a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A run that is about to start: all choices made, nothing written. Each stage adds its own."""

    budget: Budget
    foreign_bytes: int
    """Private memory that was there before and that the budget does not count."""
    foreign_pids: frozenset[int]
    """Child processes from before the run: their memory is not counted either."""

    @property
    def total_bytes(self) -> int:
        """What `done_bytes` of the work comes to; 0 if nobody knows beforehand."""
        return 0

    @property
    def stream(self) -> Stream | None:
        """What of the input comes once and never again."""
        return None

    def notes(self) -> Iterator[str]:
        """What was chosen, and what a person may not expect of it, in the order it is shown."""
        yield f"budget {self.budget.in_words}"

    def close(self) -> None:
        """End the processes that the plan started."""


class Progress(Protocol):
    """A checkpoint: a run that resumes from it makes the same bytes."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is done that would be worth keeping."""


ManifestT = TypeVar("ManifestT", covariant=True)


class Work(Protocol[ManifestT]):
    """An open folder, and what is done in it. A checkpoint can be taken after every unit."""

    @property
    def folder(self) -> Path: ...
    @property
    def done_bytes(self) -> int:
        """How much is done, of the plan's `total_bytes`."""

    @property
    def counts(self) -> Counts: ...
    @property
    def is_empty(self) -> bool:
        """Whether nothing is done that would be worth keeping."""

    @property
    def in_words(self) -> str:
        """How far it has come, such as `98.1M tokens`."""

    def work(self, watch: Watch) -> None:
        """Do everything that is left; calls the watch after each unit."""

    def checkpoint(self) -> None:
        """Store what is done, without a unit that is done in part."""

    def give_back(self) -> None:
        """Free what is kept for speed only, because memory runs short."""

    def take_child_bytes(self) -> int:
        """Peak memory of child processes since the last call."""

    def seal(self) -> ManifestT:
        """Publish the outputs and, last of all, the manifest."""

    def close(self) -> None:
        """End threads and close files as they are."""


PlanT = TypeVar("PlanT", bound=StagePlan, contravariant=True)
JobT = TypeVar("JobT")
ProgressT = TypeVar("ProgressT", bound=Progress)
WorkT = TypeVar("WorkT", bound=Work[object], covariant=True)


class Stage(Protocol[PlanT, JobT, ProgressT, WorkT, ManifestT]):
    """What differs from one kind of folder to another."""

    name: Kind
    kind: FolderKind
    job_type: type[JobT]
    progress_type: type[ProgressT]

    def settings(self, plan: PlanT) -> dict[str, object]:
        """The resolved settings, for the journal."""

    def job(self, plan: PlanT) -> JobT:
        """Everything that decides the output, inputs as they are now; stored when a run begins."""

    def list_differences(self, before: JobT, now: JobT, progress: ProgressT) -> list[str]:
        """The reasons, a line each, why the run that was begun cannot be resumed."""

    def clear(self, folder: Path, plan: PlanT, *, restart: bool) -> None:
        """Remove what an unfinished run left; with `restart`, also what a finished one made. Nothing else."""

    def open(self, folder: Path, plan: PlanT, job: JobT, at: ProgressT | None) -> WorkT:
        """The work, from a checkpoint after its files are verified, or from the beginning."""

    def find_finished(self, folder: Path, job: JobT) -> ManifestT:
        """The manifest of a finished folder; an error if another job made it or files are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult(Generic[WorkT, ManifestT]):
    """The result of `run_stage`."""

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
    """Make the folder, from the beginning or from its last checkpoint, up to its manifest; closes the plan.

    `started` is when the run began, by the monotonic clock. Raises StoppedError after a clean stop.
    """
    with closing(plan), ExitStack() as stack:
        return_large_pieces()
        for text in plan.notes():
            listen(Note(text=text))
        out_folder.make_folder(folder, stage.kind)
        stack.enter_context(out_folder.hold_lock(folder))
        out_folder.remove_killed_writes(folder)
        job = stage.job(plan)
        if restart:
            stage.clear(folder, plan, restart=True)
        if (folder / stage.kind.manifest_name).exists():
            stack.callback(out_folder.finish_folder, folder)
            manifest = stage.find_finished(folder, job)
            if plan.stream is not None:
                raise UsageError(
                    f"{folder} holds a finished run over {plan.stream.name}; whether this is the same text is "
                    "not known",
                    remedy=f"pass `{plan.stream.restart}` to begin again, or choose another `--out`",
                )
            return StageResult(work=None, manifest=manifest, seconds=0.0, peak_private_bytes=0)
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
            except LowtideError:
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
def inside_budget(work: Work[object], plan: StagePlan) -> Iterator[None]:
    """Work inside a memory fence; a checkpoint is taken before an error leaves."""
    extra_bytes = plan.budget.total_bytes - (private_bytes() - plan.foreign_bytes)
    with fence(max(extra_bytes, 0) + _FENCE_SLACK_BYTES):
        try:
            yield
        except (StorageError, ChangedInputError, VerificationError):
            raise  # a failed disk cannot take a checkpoint, and what was changed must not be in one
        except LowtideError:
            work.checkpoint()
            raise
        except MemoryError as cause:
            work.checkpoint()
            resumes = "" if plan.stream else "; the same command resumes where it stopped"
            raise DataError(
                f"an allocation beyond the budget was refused ({cause or 'out of memory'})",
                remedy=f"pass a larger `--memory`{resumes}",
            ) from cause


def _open(
    stage: Stage[PlanT, JobT, ProgressT, WorkT, ManifestT],
    folder: Path,
    plan: PlanT,
    job: JobT,
    listen: Listener,
) -> WorkT:
    """New work, or that of the run in the folder, unless it has done nothing yet."""
    job_path, progress_path = (
        folder / WORK_FOLDER / name for name in (stage.kind.work_name, stage.kind.progress_name)
    )
    if job_path.exists() and progress_path.exists():
        before = load_record(job_path, stage.job_type)
        progress = load_record(progress_path, stage.progress_type)
        if not progress.is_empty:
            refuse_differences(stage.list_differences(before, job, progress), folder)
            if before != job:
                store_record(job_path, job)
            work = stage.open(folder, plan, job, progress)
            listen(out_folder.resuming_after(work.in_words))
            return work
    stage.clear(folder, plan, restart=False)
    store_record(job_path, job)
    return stage.open(folder, plan, job, None)
