"""The moving parts of a run: two writers, a cursor, the counts; and how they are stored and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from lowtide import __version__
from lowtide.pipeline.arrange import split_documents
from lowtide.pipeline.encode_blocks import EncodedRun
from lowtide.pipeline.job import (
    Counts,
    Progress,
    add_block,
    check_progress,
    store_progress,
)
from lowtide.pipeline.job_inputs import JobInput
from lowtide.pipeline.prepare import Prepared
from lowtide.pipeline.settings import TokenizeSettings
from lowtide.shards.layout import Split
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
from lowtide.shards.write import SplitWriter, verify_finished
from lowtide.source.stream import Cursor, PartlyRead
from lowtide.units import format_count


class ShardRun:
    """Takes encoded runs in order. Between two calls it can be stored, and found again after a crash."""

    def __init__(
        self,
        folder: Path,
        *,
        train: SplitWriter,
        val: SplitWriter,
        cursor: Cursor,
        partly_read: PartlyRead | None = None,
        held_out_open: bool = False,
        done_bytes: int = 0,
        counts: Counts | None = None,
        most_unstored_tokens: int,
    ) -> None:
        self.folder = folder
        self.cursor = cursor
        self.partly_read = partly_read
        self.done_bytes = done_bytes
        self.counts = counts or Counts()
        self._train = train
        self._val = val
        self._held_out_open = held_out_open
        self._full_shards = 0
        self._stored_tokens = self.counts.tokens
        self._most_unstored_tokens = most_unstored_tokens
        self._whole = True

    @classmethod
    def start(cls, folder: Path, prepared: Prepared) -> Self:
        """Begin at the first byte of the first input, with a checkpoint of nothing."""
        learnt = prepared.settings.examples is not None
        run = cls(
            folder,
            train=SplitWriter.start(folder, prepared.layout, "train", learnt=learnt),
            val=SplitWriter.start(folder, prepared.layout, "val", learnt=learnt),
            cursor=Cursor(file=0, position=0),
            most_unstored_tokens=_most_unstored_tokens(prepared),
        )
        run.checkpoint()  # without it, a crash could leave files that nobody may clear away
        return run

    @classmethod
    def resume(cls, folder: Path, prepared: Prepared, progress: Progress) -> Self:
        """Go on from a checkpoint: what stands is read and compared with its digests first."""
        check_progress(folder, progress, input_count=len(prepared.inputs))
        train, val = (
            SplitWriter.resume(folder, prepared.layout, mark)
            for mark in (progress.train, progress.val)
        )
        # After the writers: a shard that a kill left between its mark and its name stands by now.
        for mark in (progress.train, progress.val):
            verify_finished(folder, prepared.layout, mark)
        return cls(
            folder,
            train=train,
            val=val,
            cursor=progress.cursor,
            partly_read=progress.partly_read,
            held_out_open=progress.held_out_open,
            done_bytes=progress.done_bytes,
            counts=progress.counts,
            most_unstored_tokens=_most_unstored_tokens(prepared),
        )

    @property
    def in_words(self) -> str:
        """How far it has come."""
        return f"{format_count(self.counts.tokens)} tokens"

    @property
    def inside_document(self) -> bool:
        """Whether the next block goes on with a document that is already open."""
        return self.cursor.within > 0

    def take(self, encoded: EncodedRun) -> bool:
        """Write a run to its splits; True when a checkpoint is due: a shard is full, or half of one at risk."""
        self._whole = False
        block, held_out = encoded.block, encoded.held_out
        if block.held_out:
            held_out[:] = True
        if encoded.continues:
            held_out[0] = self._held_out_open
        self._held_out_open = bool(held_out[-1])
        for writer, run in zip(
            (self._train, self._val), split_documents(encoded.run, held_out), strict=True
        ):
            writer.append(run.tokens, run.ends, run.learnt)
        self.cursor = block.after
        self.partly_read = block.partly_read
        self.done_bytes = block.input_done_bytes
        self.counts = add_block(
            self.counts,
            block,
            tokens=len(encoded.run.tokens),
            unknown_tokens=encoded.unknown_tokens,
            examples=encoded.examples,
        )
        self._whole = True
        unstored_tokens = self.counts.tokens - self._stored_tokens
        return self._shard_became_full() or unstored_tokens >= self._most_unstored_tokens

    def checkpoint(self) -> None:
        """Everything so far survives from here on: bytes synced, progress stored, shards named.

        After a block that was taken in halves only, the checkpoint before it stays the one to go on from.
        """
        if not self._whole:
            return
        marks = [writer.mark() for writer in (self._train, self._val)]
        store_progress(
            self.folder,
            Progress(
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

    def seal(self, prepared: Prepared, inputs: tuple[JobInput, ...]) -> DatasetManifest:
        """Publish the last shards and, last of all, the manifest."""
        self.checkpoint()  # it names every file that sealing will publish: a restart removes those alone
        splits: dict[Split, SplitRecord] = {}
        for name, writer in (("train", self._train), ("val", self._val)):
            shards, index = writer.seal()
            record = SplitRecord(shards=tuple(shards), index=index, learnt=writer.learnt)
            splits[name] = record  # type: ignore[index]
        manifest = make_manifest(prepared, inputs, splits, self.counts)
        write_manifest(self.folder, manifest)
        return manifest

    def close(self) -> None:
        """Let go of the files as they stand."""
        self._train.close()
        self._val.close()

    def _shard_became_full(self) -> bool:
        full = self._train.full_shards + self._val.full_shards
        grown = full > self._full_shards
        self._full_shards = full
        return grown


def _most_unstored_tokens(prepared: Prepared) -> int:
    """Half a shard, whatever the format: with the block that crosses the line, a crash repeats less than
    one, unless a single block holds half a shard."""
    return prepared.layout.shard_tokens // 2


def make_manifest(
    prepared: Prepared,
    inputs: tuple[JobInput, ...],
    splits: dict[Split, SplitRecord],
    counts: Counts,
) -> DatasetManifest:
    """What `lowtide.json` will say. No clock, no budget, no machine: same input, same bytes."""
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
