"""The story of `train-tokenizer`: text of any size becomes a byte-pair vocabulary, exact, inside a budget.

    inputs → blocks → words and how often they come → merges → vocabularies → files → manifest

Words are counted in tables of a fixed size, and checkpoints are taken every half minute. When all are counted,
that is a checkpoint too: learning merges takes seconds, and is done again after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import (
    ChangedInputError,
    DataError,
    LowtideError,
    StorageError,
    UsageError,
)
from lowtide.events import Listener, Note, ignore
from lowtide.memory.allocator import give_back, return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.memory.fence import fence
from lowtide.memory.meter import private_bytes
from lowtide.pipeline import folder as out_folder
from lowtide.pipeline.count_run import CountRun
from lowtide.pipeline.folder import TOKENIZER
from lowtide.pipeline.job_inputs import describe_inputs, disown_changed, refuse_written_inputs
from lowtide.pipeline.keep_journal import keep_journal
from lowtide.pipeline.learn_run import Learning, learn
from lowtide.pipeline.measure_tokenizer import (
    Comparison,
    NotCompared,
    Yardstick,
    choose_yardstick,
)
from lowtide.pipeline.train_job import (
    CountProgress,
    TrainJob,
    load_count_progress,
    load_train_job,
    loosen_training,
    refuse_train_changes,
    store_train_job,
)
from lowtide.pipeline.train_manifest import TrainManifest, make_train_manifest
from lowtide.pipeline.train_outputs import (
    empty_tokenizer_folder,
    empty_work_folder,
    find_finished,
    publish_tokenizer,
    refuse_linked_folders,
    write_picture,
    write_vocabulary,
)
from lowtide.pipeline.train_prepare import TrainPrepared, prepare_training
from lowtide.pipeline.train_settings import TrainSettings
from lowtide.pipeline.watch_run import ShouldStop, Watch, never_stop
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.find_inputs import input_names
from lowtide.source.find_place import naming_places
from lowtide.source.read_text import describe_skip
from lowtide.source.skipped import Skipped, describe_skipped
from lowtide.source.stream import read_blocks
from lowtide.storage.paths import as_path
from lowtide.tokenizer.vocabulary import from_json, load_vocabulary
from lowtide.tokenizer.write_files import tokenizer_json
from lowtide.units import MIB, format_bytes

CHECKPOINT_SECONDS = 30.0
"""Writing the tables out takes a third of a second, and every run is merged at the end."""
_FENCE_SLACK_BYTES = 192 * MIB
"""Reserved memory that is never touched counts for a fence and not for a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run came to. The manifest is on disk as well; the rest belongs to this run alone."""

    folder: Path
    manifest: TrainManifest
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


def train_tokenizer(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    settings: TrainSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> TrainResult:
    """Learn a BPE tokenizer from text files into the folder `out`, or resume where an earlier call was cut off.

    `memory` ("1GiB", "50%"), `workers` and `checkpoint_seconds` change how much is used and how long it
    takes, never a byte of the output. Raises StoppedError after a clean stop; the same call resumes the run.

        lowtide.train_tokenizer("corpus/*.parquet", "tokenizer", lowtide.TrainSettings(vocab_size=(8000,)))
    """
    started = time.monotonic()
    folder = as_path(out)
    prepared = prepare_training(
        input_names(inputs),
        settings or TrainSettings(),
        out=folder,
        memory=memory,
        workers=workers,
    )
    return_large_pieces()
    listen(Note(text=f"budget {prepared.budget.in_words}; {_in_words(prepared)}"))
    if prepared.reads_stdin:
        listen(Note(text="standard input is read once: a run that is cut off cannot be resumed"))
    if prepared.skipped:
        listen(Note(text=describe_skipped(prepared.skipped)))
    skips_whole = describe_skip(prepared.read, prepared.inputs)
    if skips_whole:
        listen(Note(text=skips_whole))
    out_folder.make_folder(folder, TOKENIZER)
    with out_folder.hold_lock(folder):
        out_folder.remove_killed_writes(folder)
        job = TrainJob(settings=prepared.settings, inputs=describe_inputs(prepared.inputs))
        if restart or not (folder / TOKENIZER.manifest_name).exists():
            refuse_linked_folders(folder, prepared.settings)
        if restart:
            empty_tokenizer_folder(folder, prepared.settings)
        if (folder / TOKENIZER.manifest_name).exists():
            return replace(_find_done(folder, job), skipped=prepared.skipped)
        run = _begin(folder, prepared, job, listen)
        journal = keep_journal(
            folder,
            "train-tokenizer",
            listen,
            settings=prepared.settings.as_record(),
            budget_bytes=prepared.budget.total_bytes,
            started=started,
        )
        with closing(run), _abandoned_if_empty(run), journal as kept:
            watch = Watch(
                run,
                prepared,
                listen=kept.listen,
                should_stop=should_stop,
                started=started,
                checkpoint_seconds=checkpoint_seconds,
            )
            kept.peak_private_bytes = lambda: watch.peak_private_bytes
            result = _train(run, prepared, job, watch, started)
        out_folder.finish_folder(folder)
        return result


@contextmanager
def _abandoned_if_empty(run: CountRun) -> Iterator[None]:
    """An error before the first word leaves no folder behind."""
    try:
        yield
    except LowtideError:
        if run.is_empty:
            out_folder.abandon_folder(run.folder)
        raise


def _find_done(folder: Path, job: TrainJob) -> TrainResult:
    """The result that stands, if it is this job's."""
    try:
        manifest = find_finished(folder, job)
    finally:
        out_folder.finish_folder(folder)
    return TrainResult(
        folder=folder,
        manifest=manifest,
        learning=None,
        comparison=None,
        seconds=0.0,
        peak_private_bytes=0,
    )


def _train(
    run: CountRun, prepared: TrainPrepared, job: TrainJob, watch: Watch, started: float
) -> TrainResult:
    """Count, learn, write, measure; the manifest last."""
    folder = run.folder
    try:
        with refuse_written_inputs(job.inputs, prepared.inputs):
            progress = _count_all(run, prepared, watch)
    except ChangedInputError:
        inputs = disown_changed(job.inputs, prepared.inputs)
        store_train_job(folder, replace(job, inputs=inputs))
        raise
    learning = _learn(folder, prepared, progress, watch, run)
    comparison, manifest = _finish(folder, prepared, job, learning, watch, run)
    seconds = time.monotonic() - started
    publish_tokenizer(
        folder,
        manifest,
        prepared,
        comparison,
        bad=run.counts.bad,
        seconds=seconds,
        peak_private_bytes=watch.peak_private_bytes,
    )
    return TrainResult(
        folder=folder,
        manifest=manifest,
        learning=learning,
        comparison=comparison,
        seconds=seconds,
        peak_private_bytes=watch.peak_private_bytes,
        skipped=prepared.skipped,
    )


def _begin(folder: Path, prepared: TrainPrepared, job: TrainJob, listen: Listener) -> CountRun:
    """A fresh run, or the one that stands in the folder."""
    before = load_train_job(folder)
    progress = load_count_progress(folder) if before else None
    if before is None or progress is None or not progress.counts.text_bytes:
        empty_work_folder(folder)
        store_train_job(folder, job)
        return CountRun.start(folder, prepared)
    refuse_train_changes(loosen_training(before, job, progress), job, folder)
    if prepared.reads_stdin and progress.words is None:
        raise UsageError(
            f"{folder} holds an unfinished run over standard input, which cannot be read again",
            remedy="pass `--restart` to begin again",
        )
    if before != job:
        store_train_job(folder, job)
    listen(
        Note(
            text=f"going on: the words of {format_bytes(progress.counts.text_bytes)} of text are counted "
            "and verified"
        )
    )
    return CountRun.resume(folder, prepared, progress)


def _count_all(run: CountRun, prepared: TrainPrepared, watch: Watch) -> CountProgress:
    """Read and count to the end, with a checkpoint before any error leaves the house."""
    if run.is_finished:
        return run.progress
    used_bytes = private_bytes() - prepared.foreign_bytes
    extra_bytes = prepared.budget.total_bytes - used_bytes + _FENCE_SLACK_BYTES
    with plain_allocation(), fence(max(extra_bytes, _FENCE_SLACK_BYTES)):
        try:
            for block in read_blocks(
                prepared.inputs, prepared.read, start=run.cursor, partly_read=run.partly_read
            ):
                with naming_places(prepared.inputs, prepared.read, lambda: run.cursor):
                    due = run.take(block)
                watch.after_block(run, checkpoint_is_due=due)
            run.finish()
            watch.after_all()
        except (StorageError, ChangedInputError):
            raise  # a failed disk cannot take a checkpoint, and mixed text must not be in one
        except LowtideError:
            run.checkpoint()
            raise
        except MemoryError as cause:
            raise DataError(
                f"an allocation beyond the budget was refused ({cause or 'out of memory'})",
                remedy="pass a larger `--memory`; the same command resumes where it stopped",
            ) from cause
    if not (run.progress.totals and run.progress.totals.words):
        raise _nothing_to_learn(run, prepared.settings)
    return run.progress


def _nothing_to_learn(run: CountRun, settings: TrainSettings) -> DataError:
    if run.progress.held_out_bytes:
        return DataError(
            f"all {run.counts.documents} documents are held out by --val {settings.val}",
            remedy="pass a smaller `--val`, or the `--separator` that ends documents",
        )
    if run.counts.bad_count:
        return DataError(
            f"all text was left out as bad text ({run.counts.bad_count} places)",
            remedy="pass `--bad-text replace`, or other files",
        )
    return DataError(
        "the inputs hold no text at all",
        remedy="check the paths and `--column` or `--separator`",
    )


def _learn(
    folder: Path, prepared: TrainPrepared, progress: CountProgress, watch: Watch, run: CountRun
) -> Learning:
    assert progress.words is not None, "counting is not finished"
    assert progress.totals is not None, "counting is not finished"
    give_back()
    most = prepared.settings.most_merges
    return learn(
        folder,
        progress.words,
        progress.totals,
        prepared.settings,
        allowance_bytes=prepared.allowances.merge_bytes,
        after_slice=lambda merges: watch.after_slice(run, merges, most),
    )


def _finish(
    folder: Path,
    prepared: TrainPrepared,
    job: TrainJob,
    learning: Learning,
    watch: Watch,
    run: CountRun,
) -> tuple[Comparison | NotCompared, TrainManifest]:
    """Write and measure the vocabularies, one at a time: each takes some hundred bytes a token meanwhile."""
    sizes = prepared.settings.vocab_size
    merges = len(learning.steps)

    def look() -> None:
        watch.after_slice(run, merges, merges)

    yardstick = choose_yardstick(folder, prepared, held_out_bytes=run.progress.held_out_bytes)
    files, rates = [], []
    for size in sizes:
        pairs = learning.byte_pairs(size)
        files += write_vocabulary(folder, learning.settings, size, pairs)
        look()
        if isinstance(yardstick, Yardstick):
            vocabulary = from_json(tokenizer_json(pairs), name="learnt")
            rates.append(yardstick.measure(vocabulary, look))
    files.append(write_picture(folder, learning))
    comparison: Comparison | NotCompared
    if isinstance(yardstick, NotCompared):
        comparison = yardstick
    else:
        comparison = Comparison(
            text=yardstick.text,
            text_bytes=yardstick.text_bytes,
            learnt=tuple(rates),
            gpt2=yardstick.measure(load_vocabulary("gpt2"), look),
        )
    manifest = make_train_manifest(
        prepared.settings,
        job.inputs,
        run.counts,
        learning.totals,
        [learning.describe(size) for size in sizes],
        files,
    )
    return comparison, manifest


def _in_words(prepared: TrainPrepared) -> str:
    allowances = prepared.allowances
    workers = f"{allowances.workers} worker{'s' if allowances.workers > 1 else ''}"
    tables = f"a table of {format_bytes(allowances.table_bytes)} each"
    return f"{workers}, {tables}, blocks of {format_bytes(allowances.block_bytes)}"
