"""The story of `tokenize`: text of any size becomes token shards, inside a budget, crash by crash.

    inputs → blocks → token runs → two splits of shards → manifest

A checkpoint is taken whenever a shard is full, after half a shard of tokens, and every few seconds.
What lies between two checkpoints is done again after a crash, and comes out the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import (
    ChangedInputError,
    DataError,
    LowtideError,
    StorageError,
    UsageError,
    VerificationError,
)
from lowtide.events import Listener, Note, ignore
from lowtide.memory.allocator import give_back, return_large_pieces
from lowtide.memory.budget import Budget
from lowtide.memory.fence import fence
from lowtide.memory.meter import private_bytes
from lowtide.pipeline import folder as out_folder
from lowtide.pipeline.encode_blocks import BlockEncoder
from lowtide.pipeline.job import (
    Job,
    job_of_manifest,
    load_job,
    load_progress,
    loosen,
    refuse_changes,
    store_job,
)
from lowtide.pipeline.job_inputs import describe_inputs, disown_changed, refuse_written_inputs
from lowtide.pipeline.keep_journal import Kept, keep_journal
from lowtide.pipeline.prepare import Prepared, describe_held_out, on_reference, prepare
from lowtide.pipeline.prepare_examples import describe_spelled_out
from lowtide.pipeline.settings import TokenizeSettings, is_one_document
from lowtide.pipeline.shard_folder import empty_folder
from lowtide.pipeline.shard_run import ShardRun
from lowtide.pipeline.watch_run import ShouldStop, Watch, never_stop
from lowtide.shards.layout import MANIFEST_NAME
from lowtide.shards.manifest import DatasetManifest, read_manifest
from lowtide.shards.read import open_dataset
from lowtide.source.arrow_memory import plain_allocation
from lowtide.source.find_inputs import input_names
from lowtide.source.find_place import naming_places
from lowtide.source.read_text import describe_skip
from lowtide.source.skipped import describe_skipped
from lowtide.source.stream import Block, Cursor, read_blocks
from lowtide.storage.paths import as_path
from lowtide.tokenizer.agreement import SAMPLE_BYTES, find_disagreement, sample_pieces
from lowtide.tokenizer.encode import Encoder
from lowtide.units import MIB, format_bytes, format_count

_FENCE_SLACK_BYTES = 192 * MIB
"""Reserved memory that is never touched counts for a fence and not for a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeResult:
    """What a run came to. The manifest is on disk as well; the rest belongs to this run alone."""

    folder: Path
    manifest: DatasetManifest
    seconds: float
    peak_private_bytes: int
    """The most that was seen after any block and at the end; 0 when the folder was done already."""
    already_done: bool = False


def tokenize(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    settings: TokenizeSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
) -> TokenizeResult:
    """Turn text files into token shards in the folder `out`, or resume where an earlier call was cut off.

    `memory` ("1GiB", "50%") and `workers` change how much is used and how long it takes, never a byte of
    the output. Raises StoppedError after a clean stop; the same call resumes the run.

        lowtide.tokenize("corpus/*.parquet", "tokens", memory="1GiB")
    """
    started = time.monotonic()
    folder = as_path(out)
    prepared = prepare(
        input_names(inputs),
        settings or TokenizeSettings(),
        out=folder,
        memory=memory,
        workers=workers,
    )
    with closing(prepared):
        return_large_pieces()
        _introduce(prepared, listen)
        out_folder.make_folder(folder)
        with out_folder.hold_lock(folder):
            out_folder.remove_killed_writes(folder)
            job = Job(
                settings=prepared.settings,
                tokenizer_fingerprint=prepared.vocabulary.fingerprint,
                inputs=describe_inputs(prepared.inputs),
            )
            if restart:
                empty_folder(folder, prepared.layout)
            if (folder / MANIFEST_NAME).exists():
                return _already_done(folder, job)
            return _run(
                folder, prepared, job, listen=listen, should_stop=should_stop, started=started
            )


def _introduce(prepared: Prepared, listen: Listener) -> None:
    """What was chosen, and what a person may not expect of it."""
    listen(Note(text=f"budget {prepared.budget.in_words}; {_in_words(prepared)}"))
    if prepared.reads_stdin:
        listen(Note(text="standard input is read once: a run that is cut off cannot be resumed"))
    if prepared.skipped:
        listen(Note(text=describe_skipped(prepared.skipped)))
    skips_whole = describe_skip(prepared.read, prepared.inputs)
    if skips_whole:
        listen(Note(text=skips_whole))
    if is_one_document(prepared.settings, prepared.inputs):
        listen(Note(text=f"one document: {describe_held_out(prepared)}"))
    spelled = describe_spelled_out(prepared.settings, prepared.vocabulary)
    if spelled:
        listen(Note(text=spelled))


def _already_done(folder: Path, job: Job) -> TokenizeResult:
    with ExitStack() as stack:
        stack.callback(out_folder.finish_folder, folder)
        done = _find_finished(folder, job)
    return TokenizeResult(
        folder=folder, manifest=done, seconds=0.0, peak_private_bytes=0, already_done=True
    )


def _run(
    folder: Path,
    prepared: Prepared,
    job: Job,
    *,
    listen: Listener,
    should_stop: ShouldStop,
    started: float,
) -> TokenizeResult:
    """To the manifest, from the beginning or from where the folder stands."""
    with ExitStack() as stack:
        run = _begin(folder, prepared, job, listen)
        stack.callback(run.close)
        with _keep_journal(folder, prepared, listen, started) as kept:
            watch = Watch(
                run, prepared, listen=kept.listen, should_stop=should_stop, started=started
            )
            kept.peak_private_bytes = lambda: watch.peak_private_bytes
            try:
                with refuse_written_inputs(job.inputs, prepared.inputs):
                    _encode_all(run, prepared, watch, kept.listen)
            except LowtideError as error:
                if isinstance(error, ChangedInputError):
                    inputs = disown_changed(job.inputs, prepared.inputs)
                    store_job(folder, replace(job, inputs=inputs))
                if not run.counts.tokens:
                    stack.callback(out_folder.abandon_folder, folder)
                raise
            manifest = run.seal(prepared, job.inputs)
        out_folder.finish_folder(folder)
    return TokenizeResult(
        folder=folder,
        manifest=manifest,
        seconds=time.monotonic() - started,
        peak_private_bytes=watch.peak_private_bytes,
    )


def _keep_journal(
    folder: Path, prepared: Prepared, listen: Listener, started: float
) -> AbstractContextManager[Kept]:
    return keep_journal(
        folder,
        "tokenize",
        listen,
        settings=prepared.settings.as_record(),
        budget_bytes=prepared.budget.total_bytes,
        started=started,
    )


def _begin(folder: Path, prepared: Prepared, job: Job, listen: Listener) -> ShardRun:
    """A fresh run, or the one that stands in the folder. One that came to no token is not worth keeping."""
    before = load_job(folder)
    progress = load_progress(folder) if before else None
    if before is None or progress is None or not progress.counts.tokens:
        empty_folder(folder, prepared.layout)
        store_job(folder, job)
        return ShardRun.start(folder, prepared)
    refuse_changes(loosen(before, job, progress), job, folder)
    if prepared.reads_stdin:
        raise UsageError(
            f"{folder} holds an unfinished run over standard input, which cannot be read again",
            remedy="pass `--restart` to begin again",
        )
    if before != job:
        store_job(folder, job)
    run = ShardRun.resume(folder, prepared, progress)
    listen(
        Note(
            text=f"going on: {format_count(run.counts.tokens)} tokens from "
            f"{format_bytes(run.done_bytes)} of input stand and are verified"
        )
    )
    return run


def _find_finished(folder: Path, job: Job) -> DatasetManifest:
    """The manifest of a finished folder, if it was made by this very job and its files are there."""
    manifest = read_manifest(folder)
    refuse_changes(job_of_manifest(manifest, job), job, folder)
    if any(item.fingerprint == "" for item in job.inputs):
        raise UsageError(
            f"{folder} holds a finished run over standard input; whether this is the same text is not known",
            remedy="pass `--restart` to begin again, or choose another `--out`",
        )
    try:
        open_dataset(folder)
    except VerificationError as error:
        remedy = "pass `--restart` to make it again, or put the file back from a copy"
        raise VerificationError(error.problem, remedy=remedy) from error
    return manifest


def _encode_all(run: ShardRun, prepared: Prepared, watch: Watch, listen: Listener) -> None:
    """Read, encode and write to the end, with a checkpoint before any error leaves the house."""
    blocks = watch.while_reading(
        read_blocks(prepared.inputs, prepared.read, start=run.cursor, partly_read=run.partly_read)
    )
    used_bytes = private_bytes() - prepared.foreign_bytes
    extra_bytes = prepared.budget.total_bytes - used_bytes + _FENCE_SLACK_BYTES
    with plain_allocation(), fence(max(extra_bytes, _FENCE_SLACK_BYTES)):
        with naming_places(prepared.inputs, prepared.read, lambda: Cursor(file=0, position=0)):
            prepared, first, blocks = prove_encoder(
                prepared, run, blocks, listen, heed=watch.while_reading
            )
        encoder = BlockEncoder(
            prepared.recipe, prepared.allowances, first, while_waiting=watch.while_waiting
        )
        try:
            with (
                naming_places(prepared.inputs, prepared.read, lambda: run.cursor),
                closing(encoder),
            ):
                _write_all(run, blocks, encoder, watch)
        except (StorageError, ChangedInputError):
            raise  # a failed disk cannot take a checkpoint, and mixed text must not be in one
        except LowtideError:
            run.checkpoint()
            raise
        except MemoryError as cause:
            run.checkpoint()
            raise DataError(
                f"an allocation beyond the budget was refused ({cause or 'out of memory'})",
                remedy="pass a larger `--memory`; the same command resumes where it stopped",
            ) from cause
    if prepared.settings.examples:
        _refuse_nothing_learnt(run)
    elif not run.counts.documents:
        raise DataError(
            "the inputs hold no text at all",
            remedy="check the paths and `--column` or `--separator`",
        )


def _refuse_nothing_learnt(run: ShardRun) -> None:
    counts = run.counts
    if not counts.documents:
        left_out = f": {format_count(counts.bad_count)} rows were left out" if counts.bad else ""
        first = f", the first because {counts.bad[0].reason}" if counts.bad else ""
        raise DataError(
            f"the inputs hold no example{left_out}{first}",
            remedy="check the paths, `--examples` and `--column`",
        )
    if counts.tokens:
        return
    left = f"nothing is left of {format_count(counts.documents)} examples: "
    if counts.too_long:
        raise DataError(
            f"{left}{format_count(counts.too_long)} were too long",
            remedy="pass a larger `--context`, or `--too-long split`",
        )
    raise DataError(
        f"{left}of each only the first token is learnt, and nothing precedes it",
        remedy="pass `--eot start` to have a token before it, or give the examples prompts",
    )


def _write_all(run: ShardRun, blocks: Iterator[Block], encoder: BlockEncoder, watch: Watch) -> None:
    with closing(encoder.encode_in_order(blocks, continues=run.inside_document)) as runs:
        for encoded in runs:
            due = run.take(encoded)
            watch.after_block(encoder, checkpoint_is_due=due)
    watch.after_all()


def prove_encoder(
    prepared: Prepared,
    run: ShardRun,
    blocks: Iterator[Block],
    listen: Listener,
    *,
    heed: Callable[[Iterator[Block]], Iterator[Block]] = iter,
) -> tuple[Prepared, Encoder, Iterator[Block]]:
    """An encoder that was compared with the reference on the front of the input, and all blocks still to read.

    The sample is the front of the whole input, also in a resumed run, and has the same length for every budget,
    so the decision depends on nothing else. Where the two differ, the reference encodes the whole run. `heed`
    wraps blocks that are read for the sample alone, so that a stop ends that too.
    """
    settings = prepared.recipe.encode
    encoder = Encoder(settings, allowance_bytes=prepared.allowances.reference_allowance_bytes)
    name = prepared.vocabulary.name
    why = encoder.why_reference
    if why is None:
        front, blocks = _front(prepared, run, blocks, heed)
        pieces = sample_pieces(encoder, settings, front)
        found = find_disagreement(encoder, settings, pieces)
        if found is None:
            give_back()
            if pieces:
                compared = format_bytes(sum(map(len, pieces)))
                reference = "tiktoken" if settings.vocabulary.kind == "ranks" else "tokenizers"
                listen(Note(text=f"ids equal those of {reference} on {compared} of this input"))
            return prepared, encoder, blocks
        why = f"gigatoken's ids are not the reference's, at {found[:60]!r}"
        prepared = on_reference(prepared, why)
        encoder = Encoder(
            prepared.recipe.encode, allowance_bytes=prepared.allowances.reference_allowance_bytes
        )
        give_back()
    else:
        prepared = on_reference(prepared, why)
    text = f"{name} runs on the reference encoder, which is much slower: {why}"
    listen(Note(text=text, level="warning"))
    return prepared, encoder, blocks


def _front(
    prepared: Prepared,
    run: ShardRun,
    blocks: Iterator[Block],
    heed: Callable[[Iterator[Block]], Iterator[Block]],
) -> tuple[bytes, Iterator[Block]]:
    """The first text of the input, and all blocks, those that were read for it included."""
    first = Cursor(file=0, position=0)
    goes_on = run.cursor != first
    whole = read_blocks(prepared.inputs, prepared.read, start=first)
    source = heed(whole) if goes_on else blocks
    taken: list[Block] = []
    while sum(len(block.text) for block in taken) < SAMPLE_BYTES:
        block = next(source, None)
        if block is None:
            break
        taken.append(block)
    front = b"".join(block.text for block in taken)[:SAMPLE_BYTES]
    return front, blocks if goes_on else itertools.chain(taken, blocks)


def _in_words(prepared: Prepared) -> str:
    allowances = prepared.allowances
    return (
        f"{allowances.workers} worker{'s' if allowances.workers > 1 else ''}, "
        f"blocks of {format_bytes(allowances.block_bytes)}"
    )
