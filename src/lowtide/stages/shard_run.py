"""The work of `tokenize`: encoded blocks become two splits of shards.

blocks → encoder → two writers → checkpoint (`progress.json`), and at the end `lowtide.json`
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lowtide import __version__
from lowtide.errors import DataError, VerificationError
from lowtide.settings import Format, TokenizeSettings
from lowtide.shards.layout import SPLITS, WORK_FOLDER, Split
from lowtide.shards.manifest import (
    BadRowRecord,
    DatasetManifest,
    ExamplesRecord,
    InputRecord,
    SkippedRecord,
    SplitRecord,
    TokenizerRecord,
    write_manifest,
)
from lowtide.shards.write import SplitWriter, WriterMark, verify_finished
from lowtide.source.find_place import naming_places
from lowtide.source.stream import Cursor, PartlyRead, read_blocks
from lowtide.stages.arrange import split_documents
from lowtide.stages.encode_blocks import ArrangedBlock, BlockEncoder
from lowtide.stages.folder import SHARDS
from lowtide.stages.job import Counts, JobInput, add_block, store_record
from lowtide.stages.prepare import Prepared
from lowtide.stages.prove_encoder import prove_encoder
from lowtide.stages.read_inputs import reading_inputs
from lowtide.stages.watch_run import Watch
from lowtide.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """Everything that decides the shards."""

    version: int = 1
    settings: TokenizeSettings
    tokenizer_fingerprint: str
    inputs: tuple[JobInput, ...]

    @property
    def format(self) -> Format:
        """The format of the shards."""
        return self.settings.format


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProgress:
    """A checkpoint: a run that resumes from it writes the same bytes."""

    cursor: Cursor
    held_out_open: bool
    """Whether the document at the cursor is held out for validation."""
    done_bytes: int
    counts: Counts
    train: WriterMark
    val: WriterMark
    partly_read: PartlyRead | None = None
    """The text before the cursor of the file it lies in; None at a file's start, and in older checkpoints."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no token yet."""
        return not self.counts.tokens

    @property
    def marks(self) -> tuple[WriterMark, WriterMark]:
        """How far each split was written."""
        return self.train, self.val


class ShardRun:
    """Writes encoded blocks in order. After each of them a checkpoint can be taken."""

    def __init__(
        self, folder: Path, prepared: Prepared, job: ShardJob, at: ShardProgress | None
    ) -> None:
        """Begin at a checkpoint, after its files are verified, or at the first input."""
        self.folder = folder
        self._prepared = prepared
        self._job = job
        self._encoder: BlockEncoder | None = None
        self._full_shards = 0
        self._whole = True
        if at is None:
            examples = prepared.settings.examples is not None
            self._train, self._val = (
                SplitWriter.start(folder, prepared.layout, split, learnt=examples)
                for split in SPLITS
            )
            self.cursor = Cursor(file=0, position=0)
            self.partly_read: PartlyRead | None = None
            self._held_out_open = False
            self.done_bytes = 0
            self.counts = Counts()
            self.checkpoint()  # without it, a crash could leave files that nobody may clear away
            return
        _check_progress(folder, at, input_count=len(prepared.inputs))
        self._train, self._val = (
            SplitWriter.resume(folder, prepared.layout, mark) for mark in at.marks
        )
        # After the writers: a shard that a kill left between its mark and its name stands by now.
        for mark in at.marks:
            verify_finished(folder, prepared.layout, mark)
        self.cursor = at.cursor
        self.partly_read = at.partly_read
        self._held_out_open = at.held_out_open
        self.done_bytes = at.done_bytes
        self.counts = at.counts
        self._stored_tokens = self.counts.tokens

    @property
    def is_empty(self) -> bool:
        """Whether there is no token yet."""
        return not self.counts.tokens

    @property
    def in_words(self) -> str:
        """How far it has come."""
        return f"{format_count(self.counts.tokens)} tokens"

    def work(self, watch: Watch) -> None:
        """Read, encode and write to the end of the input."""
        with reading_inputs(self, self._prepared, self._job, SHARDS):
            self._encode_all(watch)

    def _encode_all(self, watch: Watch) -> None:
        inputs, read = self._prepared.inputs, self._prepared.read
        blocks = watch.while_reading(
            read_blocks(inputs, read, start=self.cursor, partly_read=self.partly_read)
        )
        first = Cursor(file=0, position=0)
        with naming_places(inputs, read, lambda: first):
            prepared, encoder, blocks = prove_encoder(
                self._prepared,
                blocks,
                watch.listen,
                resumed=self.cursor != first,
                heed=watch.while_reading,
            )
        self._encoder = BlockEncoder(
            prepared.recipe, prepared.allowances, encoder, while_waiting=watch.while_waiting
        )
        with (
            naming_places(inputs, read, lambda: self.cursor),
            closing(self._encoder),
            closing(
                self._encoder.encode_in_order(blocks, continues=self.cursor.within > 0)
            ) as encoded_runs,
        ):
            for encoded in encoded_runs:
                due = self.take(encoded)
                watch.after_block(checkpoint_is_due=due)
            watch.after_all()
        self._refuse_too_many_bad()  # also of a run that was resumed behind them
        self._refuse_nothing()

    def _refuse_too_many_bad(self) -> None:
        """DataError if more was left out than `--max-bad` allows."""
        limit, counts = self._prepared.settings.max_bad, self.counts
        if limit is not None and counts.bad_count > limit:
            raise DataError(
                f"{format_count(counts.bad_count)} documents or rows were left out, more than {limit}; the "
                f"first because {counts.bad[0].reason}",
                remedy="pass a larger `--max-bad` and the same command resumes; or correct the input and pass "
                "`--restart`",
            )

    def _refuse_nothing(self) -> None:
        """DataError if there was no text, or no token to learn."""
        counts = self.counts
        if not self._prepared.settings.examples:
            if not counts.documents:
                raise DataError(
                    "the inputs hold no text at all",
                    remedy="check the paths and `--column` or `--separator`",
                )
        elif not counts.documents:
            left_out = (
                f": {format_count(counts.bad_count)} rows were left out" if counts.bad else ""
            )
            first = f", the first because {counts.bad[0].reason}" if counts.bad else ""
            raise DataError(
                f"the inputs hold no example{left_out}{first}",
                remedy="check the paths, `--examples` and `--column`",
            )
        elif not counts.tokens:
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

    def give_back(self) -> None:
        """Let the encoders forget their words."""
        if self._encoder is not None:
            self._encoder.renew()

    def take_child_bytes(self) -> int:
        """Peak memory of the reference encoders' processes since the last call."""
        return self._encoder.take_apart_bytes() if self._encoder is not None else 0

    def take(self, encoded: ArrangedBlock) -> bool:
        """Write a block to its splits. True if a checkpoint is due: after a shard, or half of one at risk."""
        self._whole = False
        block, held_out = encoded.block, encoded.held_out
        if block.held_out:
            held_out[:] = True
        if encoded.continues:
            held_out[0] = self._held_out_open
        self._held_out_open = bool(held_out[-1])
        for writer, run in zip(
            (self._train, self._val), split_documents(encoded.arranged, held_out), strict=True
        ):
            writer.append(run.tokens, run.ends, run.learnt)
        self.cursor = block.after
        self.partly_read = block.partly_read
        self.done_bytes = block.input_done_bytes
        self.counts = add_block(
            self.counts,
            block,
            tokens=len(encoded.arranged.tokens),
            unknown_tokens=encoded.unknown_tokens,
            examples=encoded.examples,
        )
        self._whole = True
        self._refuse_too_many_bad()
        unstored_tokens = self.counts.tokens - self._stored_tokens
        # Half a shard, whatever the format: with the block that crosses the line, a crash repeats less than one
        # shard, unless a single block holds half a shard.
        most_unstored_tokens = self._prepared.layout.shard_tokens // 2
        full_shards_before = self._full_shards
        self._full_shards = self._train.full_shards + self._val.full_shards
        return self._full_shards > full_shards_before or unstored_tokens >= most_unstored_tokens

    def checkpoint(self) -> None:
        """Sync the files, store how far they are written, then name the full shards.

        If a block was written only in part, the checkpoint before it stays the newest.
        """
        if not self._whole:
            return
        marks = [writer.mark() for writer in (self._train, self._val)]
        store_record(
            self.folder / WORK_FOLDER / SHARDS.progress_name,
            ShardProgress(
                cursor=self.cursor,
                partly_read=self.partly_read,
                held_out_open=self._held_out_open,
                done_bytes=self.done_bytes,
                counts=self.counts,
                train=marks[0],
                val=marks[1],
            ),
        )
        self._stored_tokens = self.counts.tokens
        self._train.publish_finished()
        self._val.publish_finished()

    def seal(self) -> DatasetManifest:
        """Publish the last shards and, last of all, the manifest."""
        self.checkpoint()  # it names every file that sealing will publish: a restart removes those alone
        splits: dict[Split, SplitRecord] = {"train": self._train.seal(), "val": self._val.seal()}
        manifest = make_manifest(self._prepared, self._job.inputs, splits, self.counts)
        write_manifest(self.folder, manifest)
        return manifest

    def close(self) -> None:
        """Close the files as they are."""
        self._train.close()
        self._val.close()


def _check_progress(folder: Path, progress: ShardProgress, *, input_count: int) -> None:
    """VerificationError for a checkpoint that no run over these inputs can have stored."""
    cursor, counts = progress.cursor, progress.counts
    numbers = [cursor.file, cursor.position, cursor.within, progress.done_bytes]
    numbers += [number for number in msgspec.to_builtins(counts).values() if type(number) is int]
    if min(numbers) < 0 or cursor.file > input_count:
        raise VerificationError(
            f"{folder / WORK_FOLDER / SHARDS.progress_name} does not hold what it should: a count below 0, or "
            f"a place beyond the {input_count} inputs",
            remedy="pass `--restart` to begin again",
        )


def make_manifest(
    prepared: Prepared,
    inputs: tuple[JobInput, ...],
    splits: dict[Split, SplitRecord],
    counts: Counts,
) -> DatasetManifest:
    """The contents of `lowtide.json`. No time, budget or machine is in it: same input, same bytes."""
    vocabulary = prepared.vocabulary
    return DatasetManifest(
        tool_version=__version__,
        layout=prepared.layout,
        eot=prepared.settings.placement,
        tokenizer=TokenizerRecord(
            name=vocabulary.name,
            fingerprint=vocabulary.fingerprint,
            vocabulary_size=vocabulary.size,
            end_of_text=vocabulary.end_of_text,
            special_tokens=vocabulary.special_tokens,
        ),
        splits=splits,
        inputs=tuple(
            InputRecord(
                name=item.name,
                size_bytes=item.size_bytes,
                fingerprint=item.fingerprint,
                kind=item.kind,
            )
            for item in inputs
        ),
        skipped=tuple(
            SkippedRecord(reason=item.reason, count=item.count, first=item.first)
            for item in prepared.skipped
        ),
        settings=dict(prepared.settings.as_record()),
        text_bytes=counts.text_bytes,
        bad_rows=counts.bad_count,
        first_bad_rows=tuple(
            BadRowRecord(file=row.file, position=row.position, unit=row.unit, reason=row.reason)
            for row in counts.bad
        ),
        empty_documents=counts.empty_documents,
        unknown_tokens=counts.unknown_tokens,
        examples=_examples_record(prepared.settings, counts),
    )


def _examples_record(settings: TokenizeSettings, counts: Counts) -> ExamplesRecord | None:
    if settings.examples is None:
        return None
    return ExamplesRecord(
        kind=settings.examples,
        template=settings.template or "",
        template_text=settings.template_text or "",
        learn=settings.learn or "",
        too_long=settings.too_long or "",
        context=settings.context or 0,
        examples=counts.examples,
        learnt_tokens=counts.learnt_tokens,
        too_long_count=counts.too_long,
        dropped_count=counts.dropped,
    )
