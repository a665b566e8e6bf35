"""`export`: the same tokens in a peer's format, without tokenizing again.

    dataset → verified → two splits of shards → manifest

The source is verified first: a copy with a fresh manifest must not make damage look sound.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from lowtide import __version__
from lowtide.errors import ChangedInputError, UsageError, VerificationError
from lowtide.events import Listener, ignore
from lowtide.journal import Kind
from lowtide.memory.budget import Budget, check_needs
from lowtide.memory.meter import child_pids
from lowtide.settings import Format, Placement
from lowtide.shards.export import (
    COPY_BYTES,
    check_end_of_text,
    check_splits,
    choose_placement,
    pieces_to_copy,
)
from lowtide.shards.layout import DEFAULT_SHARD_TOKENS, WORK_FOLDER, ShardLayout, Split
from lowtide.shards.manifest import (
    DatasetManifest,
    InputRecord,
    TokenizerRecord,
    read_manifest,
    write_manifest,
)
from lowtide.shards.read import Dataset, TokenSplit
from lowtide.shards.stamps import StampedFiles
from lowtide.shards.verify import verify_dataset
from lowtide.shards.write import SplitWriter, WriterMark, needs_bytes, verify_finished
from lowtide.stages.folder import EXPORT
from lowtide.stages.job import (
    Counts,
    list_input_changes,
    list_setting_changes,
    refuse_differences,
    store_record,
)
from lowtide.stages.shard_folder import empty_folder, refuse_missing_files
from lowtide.stages.spend import LIBRARIES_BYTES, find_budget, foreign_bytes, with_slack
from lowtide.stages.stage import StagePlan, StageResult, inside_budget, run_stage
from lowtide.stages.watch_run import ShouldStop, Watch, never_stop
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.publish import storage_errors
from lowtide.units import format_count

_CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """Everything that decides the copy."""

    version: int = 1
    manifest: DatasetManifest
    """The manifest that the copy will have, without its files."""
    source: tuple[InputRecord, ...]
    stamps: tuple[tuple[int, int, int], ...] = ()
    """Size, time of writing and time of change of each file of the source. Its fingerprint is a sample only."""

    @property
    def format(self) -> Format:
        """The format of the shards."""
        return self.manifest.layout.format


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan(StagePlan):
    """The plan of `export`."""

    dataset: Dataset
    job: ExportJob

    @property
    def total_bytes(self) -> int:
        """Size of all tokens, which are read twice: verified, then copied."""
        return 2 * sum(file.tokens * file.dtype.itemsize for file in self.dataset.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportProgress:
    """A checkpoint: an export that resumes from it writes the same bytes."""

    marks: tuple[WriterMark, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is no token yet."""
        return not any(mark.tokens for mark in self.marks)


def export_dataset(
    dataset: Dataset,
    to: Format,
    out: Path,
    *,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    eot: Placement | None = None,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
    checkpoint_seconds: float = _CHECKPOINT_SECONDS,
) -> StageResult[ExportRun, DatasetManifest]:
    """Rewrite the dataset into the folder `out`, or resume; see `lowtide.export`."""
    started = time.monotonic()
    foreign_pids = frozenset(child_pids(os.getpid()))
    sources = [dataset.path, *(file.path.parent for file in dataset.files)]
    if out.resolve() in {path.resolve() for path in sources}:
        raise UsageError(
            f"{out} holds the dataset that is to be exported",
            remedy="pass another folder as `--out`",
        )
    if dataset.tokenizer is None:
        raise UsageError(
            f"nothing says which tokenizer made {dataset.path}",
            remedy="name it with `--tokenizer`",
        )
    layout = ShardLayout(
        format=to, vocabulary_size=dataset.tokenizer.vocabulary_size, shard_tokens=shard_tokens
    )
    placement = choose_placement(dataset, to, eot)
    check_splits(dataset, to)
    budget = find_budget(memory)
    needs = {
        "interpreter and libraries": LIBRARIES_BYTES,
        "reader": COPY_BYTES,
        "shard writers": needs_bytes(split_count=2, learnt=True),
    }
    check_needs(budget, with_slack(needs))
    plan = ExportPlan(
        budget=budget,
        foreign_bytes=foreign_bytes(),
        foreign_pids=foreign_pids,
        dataset=dataset,
        job=_make_job(dataset, dataset.tokenizer, layout, placement),
    )
    return run_stage(
        ExportStage(),
        plan,
        out,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        started=started,
        checkpoint_seconds=checkpoint_seconds,
    )


def _make_job(
    dataset: Dataset, tokenizer: TokenizerRecord, layout: ShardLayout, eot: Placement
) -> ExportJob:
    stamps = _stamps(dataset)
    source = tuple(
        InputRecord(
            name=path.name,
            size_bytes=size_bytes,
            fingerprint=fingerprint_file(path),
            kind=dataset.format,
        )
        for path, (size_bytes, _, _) in zip(_sources(dataset), stamps, strict=True)
    )
    promised = DatasetManifest(
        tool_version=__version__,
        layout=layout,
        eot=eot,
        tokenizer=tokenizer,
        splits={},
        inputs=source,
    )
    if dataset.manifest:
        promised = replace(
            dataset.manifest, tool_version=__version__, layout=layout, eot=eot, splits={}
        )
    return ExportJob(manifest=promised, source=source, stamps=stamps)


def _sources(dataset: Dataset) -> list[Path]:
    masks = [split.loss_mask.path for split in dataset.splits.values() if split.loss_mask]
    return [*(file.path for file in dataset.files), *masks]


def _stamps(dataset: Dataset) -> tuple[tuple[int, int, int], ...]:
    """What changes with every write, also with one that puts the time of writing back."""
    with storage_errors(dataset.path, doing="read"):
        found = [path.stat() for path in _sources(dataset)]
    return tuple((one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found)


class ExportStage:
    """A folder of token shards that were copied."""

    name: Kind = "export"
    kind = EXPORT
    job_type = ExportJob
    progress_type = ExportProgress

    def settings(self, plan: ExportPlan) -> dict[str, object]:
        """What was chosen."""
        return {"dataset": str(plan.dataset.path), **_settings(plan.job.manifest)}

    def job(self, plan: ExportPlan) -> ExportJob:
        """The manifest to come, and the files of the source."""
        return plan.job

    def list_differences(
        self,
        before: ExportJob,
        now: ExportJob,
        progress: ExportProgress,  # noqa: ARG002
    ) -> list[str]:
        """Settings and files of the source that differ, or were touched: a part of them is copied already."""
        files = list_input_changes(before.source, now.source)
        if not files and before.stamps != now.stamps:
            pairs = zip(now.source, before.stamps, now.stamps, strict=False)
            files = [
                f"{item.name} was written to or touched" for item, old, new in pairs if old != new
            ]
        return _list_differences(before.manifest, now.manifest, files)

    def clear(self, folder: Path, plan: ExportPlan, *, restart: bool) -> None:  # noqa: ARG002
        """Remove shards, checkpoint and manifest, whether the run was finished or not."""
        empty_folder(folder, self, plan.job.manifest.layout)

    def open(
        self, folder: Path, plan: ExportPlan, job: ExportJob, at: ExportProgress | None
    ) -> ExportRun:
        """A writer for each split."""
        return ExportRun(folder, plan, job, at)

    def find_finished(self, folder: Path, job: ExportJob) -> DatasetManifest:
        """The manifest of a finished folder, if it was made by this very job and its files are there."""
        manifest = read_manifest(folder)
        inputs = list_input_changes(manifest.inputs, job.manifest.inputs)
        refuse_differences(_list_differences(manifest, job.manifest, inputs), folder)
        refuse_missing_files(folder)
        return manifest


def _settings(manifest: DatasetManifest) -> dict[str, object]:
    layout = manifest.layout
    return {"to": layout.format, "shard_tokens": layout.shard_tokens, "eot": manifest.eot}


def _list_differences(
    before: DatasetManifest, now: DatasetManifest, changed_inputs: list[str]
) -> list[str]:
    """A line for each difference between two copies, whatever version made them."""
    lines = list_setting_changes(_settings(before), _settings(now)) + changed_inputs
    if not lines and replace(before, tool_version=now.tool_version, splits={}) != now:
        lines.append("the tokens are those of another dataset")
    return lines


class ExportRun:
    """Verifies the source, then copies one split after the other, with checkpoints between two pieces."""

    def __init__(
        self,
        folder: Path,
        plan: ExportPlan,
        job: ExportJob,
        at: ExportProgress | None,
    ) -> None:
        """Begin at a checkpoint, after its files are verified, or at the first token."""
        self.folder = folder
        self._plan = plan
        self._job = job
        self._verified_bytes = 0
        self._whole = True
        dataset, layout = plan.dataset, job.manifest.layout
        self._stamps = StampedFiles([file.path for file in dataset.files])
        marks = {mark.split: mark for mark in at.marks} if at else {}
        self._writers: dict[Split, SplitWriter] = {}
        for found, split in dataset.splits.items():
            name = cast(Split, found)
            self._writers[name] = (
                SplitWriter.resume(folder, layout, marks[name])
                if name in marks
                else SplitWriter.start(folder, layout, name, learnt=split.loss_mask is not None)
            )
        for mark in marks.values():
            verify_finished(folder, layout, mark)
        if at is None:
            self.checkpoint()  # without it, a crash could leave files that nobody may clear away

    @property
    def counts(self) -> Counts:
        """Documents and tokens that were copied."""
        writers = self._writers.values()
        return Counts(
            documents=sum(writer.documents for writer in writers),
            tokens=sum(writer.tokens for writer in writers),
        )

    @property
    def done_bytes(self) -> int:
        """Bytes that were verified, and bytes that were copied."""
        files = self._plan.dataset.files
        width = files[0].dtype.itemsize if files else 0
        return self._verified_bytes + self.counts.tokens * width

    @property
    def is_empty(self) -> bool:
        """Whether there is no token yet."""
        return not self.counts.tokens

    @property
    def in_words(self) -> str:
        """How far it has come."""
        return f"{format_count(self.counts.tokens)} tokens"

    def work(self, watch: Watch) -> None:
        """Verify the source and copy what is left of it."""
        dataset = self._plan.dataset

        def look(verified_bytes: int, _total: int) -> None:
            self._verified_bytes = verified_bytes
            watch.after_block(checkpoint_is_due=False)

        with inside_budget(self, self._plan):
            found = verify_dataset(dataset.path, tokenizer=dataset.tokenizer, progress=look)
            if found.problems:
                raise VerificationError(
                    f"{dataset.path} is damaged: {found.problems[0]}",
                    remedy=f"run `lowtide verify {dataset.path}` to see all problems, then repair it",
                )
            check_end_of_text(dataset, self._job.manifest.eot)
            for name, writer in self._writers.items():
                self._copy(dataset.splits[name], writer, watch)
            self._stamps.check(range(len(dataset.files)))
            if _stamps(dataset) != self._job.stamps:
                raise ChangedInputError(
                    f"{dataset.path} was written to or touched while it was copied",
                    remedy="let whatever writes to it finish, then pass `--restart`",
                )
            watch.after_all()

    def _copy(self, split: TokenSplit, writer: SplitWriter, watch: Watch) -> None:
        pieces = pieces_to_copy(
            self._plan.dataset,
            split,
            self._job.manifest.eot,
            tokens=writer.tokens,
            documents=writer.documents,
        )
        for ids, ends in pieces:
            start = writer.tokens
            flags = split.loss_mask.read(start, start + len(ids)) if split.loss_mask else None
            self._whole = False
            writer.append(ids, ends, flags)
            self._whole = True
            watch.after_block(checkpoint_is_due=False)
        assert writer.tokens == split.tokens, "a copy is as long as its source"

    def checkpoint(self) -> None:
        """Sync the files, store how far they are written, then name the full shards.

        If a piece was written only in part, the checkpoint before it stays the newest.
        """
        if not self._whole:
            return
        marks = tuple(writer.mark() for writer in self._writers.values())
        store_record(self.folder / WORK_FOLDER / EXPORT.progress_name, ExportProgress(marks=marks))
        for writer in self._writers.values():
            writer.publish_finished()

    def give_back(self) -> None:
        """Nothing is kept for speed."""

    def take_child_bytes(self) -> int:
        """Everything is done in this process."""
        return 0

    def seal(self) -> DatasetManifest:
        """Publish the last shards and, last of all, the manifest."""
        self.checkpoint()  # it names every file that sealing will publish: a restart removes those alone
        splits = {name: writer.seal() for name, writer in self._writers.items()}
        manifest = replace(self._job.manifest, splits=splits)
        write_manifest(self.folder, manifest)
        return manifest

    def close(self) -> None:
        """Close the files as they are."""
        for writer in self._writers.values():
            writer.close()
