"""Write one split: tokens go in as they come, whole shards come out.

    .lowtide/train_000003.npy.partial   grows; `mark` makes it durable up to here
    .lowtide/train_000002.npy.partial   full; waits until the mark that knows it is stored
    train_000001.npy                    published: immutable

A checkpoint is `writer.mark()` → the caller stores the mark → `writer.publish_finished()`. A crash
between any two of them resumes from the last stored mark, and the folder ends with the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.shards.documents import StoredDocuments
from lowtide.shards.layout import (
    NPY_HEADER_BYTES,
    WORK_FOLDER,
    EndArray,
    ShardLayout,
    Split,
    TokenArray,
    companion_name,
    documents_header,
    documents_name,
    learnt_name,
    shard_header,
    shard_name,
    shard_number,
)
from lowtide.shards.loss_mask import BitArray, LossMaskMark, LossMaskWriter
from lowtide.shards.manifest import (
    DocumentIndexRecord,
    LossMaskRecord,
    ShardRecord,
    SplitRecord,
    check_names,
    from_json,
    to_json,
)
from lowtide.shards.megatron import write_index
from lowtide.shards.payload import BUFFER_BYTES, RESTART, PartialFile, read_exactly
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.publish import publish, storage_errors, sync_folder
from lowtide.storage.sealed_json import JsonObject

_END_BYTES = 8
_PIECE_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterMark:
    """A point the writer can return to: everything before it is on the disk."""

    split: Split
    finished: tuple[ShardRecord, ...] = ()
    open: ShardRecord | None = None
    """The shard that was growing, with what it held then."""
    index: DocumentIndexRecord | None = None
    """The document index, with what it held then."""
    learnt: LossMaskMark | None = None
    """The loss mask; None for text, where every token is a target."""

    @property
    def tokens(self) -> int:
        """Tokens before the mark."""
        open_tokens = self.open.tokens if self.open else 0
        return open_tokens + sum(shard.tokens for shard in self.finished)

    @property
    def documents(self) -> int:
        """Documents that ended before the mark."""
        return self.index.documents if self.index else 0

    @property
    def names(self) -> set[str]:
        """The files that the mark names."""
        records = (*self.finished, self.open, self.index, self.learnt)
        return {record.name for record in records if record}

    def check_names(self, layout: ShardLayout, path: Path) -> None:
        """VerificationError if the mark, read from `path`, names a file that lowtide does not write."""
        shards = [shard for shard in (*self.finished, self.open) if shard]
        check_names(path, layout, self.split, shards, self.index, self.learnt)

    def as_json(self) -> JsonObject:
        """Plain values for the caller's progress file."""
        return to_json(self)

    @classmethod
    def from_json(cls, payload: JsonObject, path: Path) -> WriterMark:
        """The mark back from the progress file at `path`; VerificationError if it is not one."""
        return from_json(payload, WriterMark, path)


def verify_finished(folder: Path, layout: ShardLayout, mark: WriterMark) -> None:
    """Read every finished shard of a resumed split and compare digests: costs one pass."""
    for shard in mark.finished:
        path = folder / shard.name
        _check_shard_form(path, layout, shard.tokens)
        length = shard.tokens * layout.token_bytes
        if digest_file(path, layout.header_bytes, length) != shard.digest:
            raise VerificationError(f"{path} is not what was written to it", remedy=RESTART)


def _check_shard_form(path: Path, layout: ShardLayout, tokens: int) -> None:
    """VerificationError unless the file has the size and header that its count demands."""
    wanted_bytes = layout.file_bytes(tokens)
    if not path.is_file():
        raise VerificationError(f"{path} is missing", remedy=RESTART)
    found_bytes = path.stat().st_size
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes instead of {wanted_bytes}", remedy=RESTART
        )
    if read_exactly(path, 0, layout.header_bytes) != shard_header(layout, tokens):
        raise VerificationError(f"{path} has a damaged header", remedy=RESTART)


def needs_bytes(split_count: int, *, learnt: bool = False) -> int:
    """Memory that writers occupy, beyond the arrays handed to `append`.

    One buffer each for shard, index and loss mask; and, one at a time, a piece of ids made wider, a piece
    that `resume` reads again, or the arrays from which Megatron's index is made.
    """
    return split_count * (3 if learnt else 2) * BUFFER_BYTES + 4 * _PIECE_TOKENS


class SplitWriter:
    """Turns a token stream into the shards of one split. Not for two threads at once.

    After an error the object is unusable: close it, and resume from the last stored mark.
    """

    def __init__(self, folder: Path, layout: ShardLayout, mark: WriterMark) -> None:
        self._folder = folder
        self._work = folder / WORK_FOLDER
        self._layout = layout
        self._split = mark.split
        self._finished = list(mark.finished)
        self._unpublished: list[str] = []
        self._finished_tokens = sum(shard.tokens for shard in mark.finished)
        self._shard: PartialFile | None = None
        self._index: PartialFile | None = None
        self._loss_mask: LossMaskWriter | None = None
        self._last_end = 0
        self._sound = True

    @classmethod
    def start(
        cls, folder: Path, layout: ShardLayout, split: Split, *, learnt: bool = False
    ) -> Self:
        """Begin a split in a folder without files of it; `learnt` gives it a loss mask.

        Store a first mark before appending: without it, a crash inside `seal` leaves files that nobody
        may clear away.
        """
        writer = cls(folder, layout, WriterMark(split=split))
        writer._make_work_folder()
        for name in writer._own_names(folder):
            raise UsageError(
                f"{folder} already holds {name}",
                remedy="pass another `--out`, or move the file away",
            )
        writer._clear(WriterMark(split=split))
        if learnt:
            writer._loss_mask = writer._begin_loss_mask()
        return writer

    @classmethod
    def resume(cls, folder: Path, layout: ShardLayout, mark: WriterMark) -> Self:
        """Return to a mark: what came after it is cut off, what came before is checked.

        Reads the open shard and the index again, to continue their digests. Of finished shards it
        checks size and header; `verify_finished` reads them whole.
        """
        mark.check_names(layout, folder / WORK_FOLDER)
        writer = cls(folder, layout, mark)
        writer._make_work_folder()
        for shard in mark.finished:
            writer._put_in_place(shard)
        if mark.open:
            writer._shard = writer._reopen(
                mark.open.name,
                layout.header_bytes,
                mark.open.tokens * layout.token_bytes,
                mark.open.digest,
            )
        if mark.index:
            writer._reopen_index(mark.index, mark.tokens)
        if mark.learnt:
            writer._reopen_loss_mask(mark.learnt, mark.tokens)
        writer._clear(mark)
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def tokens(self) -> int:
        """Tokens of the split so far."""
        return self._finished_tokens + self._open_tokens

    @property
    def documents(self) -> int:
        """Documents that ended so far."""
        return self._index.payload_bytes // _END_BYTES if self._index else 0

    @property
    def full_shards(self) -> int:
        """Full shards so far; when it grows, a checkpoint is worth its cost."""
        return len(self._finished)

    def append(
        self, ids: TokenArray, document_ends: EndArray, learnt: BitArray | None = None
    ) -> None:
        """Add the next tokens. `document_ends` count from the start of `ids`, in order.

        A split with a loss mask takes a flag for each id in `learnt`: whether it is a target.
        """
        assert self._sound, "an earlier call failed: resume from the last mark"
        assert (learnt is None) == (self._loss_mask is None), (
            "examples have a loss mask, text has none"
        )
        assert learnt is None or len(learnt) == len(ids), "one flag per token"
        self._sound = False
        self._check_ids(ids)
        self._append_ends(document_ends, len(ids))
        for start in range(0, len(ids), _PIECE_TOKENS):
            self._append_tokens(ids[start : start + _PIECE_TOKENS])
            if self._loss_mask and learnt is not None:
                self._loss_mask.append(learnt[start : start + _PIECE_TOKENS])
        self._sound = True

    def mark(self) -> WriterMark:
        """Put everything so far on the disk. Store the mark, then publish."""
        assert self._sound, "an earlier call failed: resume from the last mark"
        for file in self._open_files():
            file.sync()
        sync_folder(self._work)  # the partial files' names must outlive a power cut too
        return WriterMark(
            split=self._split,
            finished=tuple(self._finished),
            open=self._open_record(),
            index=self._index_record(),
            learnt=self._loss_mask.mark() if self._loss_mask else None,
        )

    def publish_finished(self) -> None:
        """Give full shards their names. Call it only when the mark that knows them is stored."""
        while self._unpublished:
            self._publish(self._unpublished[0])
            self._unpublished.pop(0)

    def seal(self) -> SplitRecord:
        """Close and publish everything; a split without tokens leaves no file.

        There is no index when no document end was ever given.
        """
        assert self._sound, "an earlier call failed: resume from the last mark"
        self._sound = False
        index = self._index_record() if self.tokens else None
        assert index is None or self._last_end == self.tokens, "the last document has no end"
        learnt = self._seal_loss_mask()
        self._finish_shard()
        self._seal_index(index)
        self.publish_finished()
        return SplitRecord(shards=tuple(self._finished), index=index, learnt=learnt)

    def close(self) -> None:
        """Close the partial files unfinished. After `seal` there are none."""
        self._sound = False
        for file in self._open_files():
            file.close()
        self._shard = self._index = self._loss_mask = None

    def _open_files(self) -> list[PartialFile]:
        mask_file = self._loss_mask.file if self._loss_mask else None
        return [file for file in (self._shard, self._index, mask_file) if file]

    # Appending

    @property
    def _open_tokens(self) -> int:
        return self._shard.payload_bytes // self._layout.token_bytes if self._shard else 0

    def _check_ids(self, ids: TokenArray) -> None:
        largest = int(ids.max()) if len(ids) else 0
        if largest >= self._layout.vocabulary_size:
            raise DataError(
                f"token id {largest} is beyond the vocabulary of "
                f"{self._layout.vocabulary_size} entries",
                remedy="name the tokenizer that made these ids with `--tokenizer`",
            )

    def _append_ends(self, ends: EndArray, id_count: int) -> None:
        if not len(ends):
            return
        absolute = ends.astype("<i8") + self.tokens
        assert absolute[0] >= self._last_end, "a document ends before the one before it"
        assert ends[-1] <= id_count, "a document ends beyond its tokens"
        assert bool((absolute[1:] >= absolute[:-1]).all()), "document ends out of order"
        if self._index is None:
            path = self._partial(documents_name(self._split))
            self._index = PartialFile.create(path, NPY_HEADER_BYTES)
        self._index.write(absolute)
        self._last_end = int(absolute[-1])

    def _append_tokens(self, ids: TokenArray) -> None:
        while len(ids):
            if self._shard is None:
                path = self._partial(self._next_name())
                self._shard = PartialFile.create(path, self._layout.header_bytes)
            count = self._tokens_left()
            self._shard.write(ids[:count].astype(self._layout.dtype, copy=False))
            ids = ids[count:]
            if self._tokens_left() == 0:
                self._finish_shard()

    def _tokens_left(self) -> int:
        """Tokens that the open shard can still take."""
        limit = self._layout.file_tokens
        return _PIECE_TOKENS if limit is None else limit - self._open_tokens

    def _finish_shard(self) -> None:
        record = self._open_record()
        if self._shard is None or record is None:
            return
        self._shard.finish(shard_header(self._layout, record.tokens))
        self._shard = None
        self._finished.append(record)
        self._finished_tokens += record.tokens
        self._unpublished.append(record.name)

    def _seal_index(self, record: DocumentIndexRecord | None) -> None:
        companion = companion_name(self._layout, self._split)
        if self._index is None or record is None:
            assert companion is None or not self.tokens, "Megatron's index needs document ends"
            if self._index:
                self._drop(self._index)
            self._index = None
            return
        self._index.finish(documents_header(record.documents))
        ends_path = self._index.path
        self._index = None
        if companion:
            documents = StoredDocuments(path=ends_path, count=record.documents)
            write_index(self._partial(companion), documents, self._layout)
            self._publish(companion)
        self._publish(record.name)

    def _seal_loss_mask(self) -> LossMaskRecord | None:
        mask, record = self._loss_mask, None
        if mask is None:
            return None
        assert mask.tokens == self.tokens, "one flag per token"
        if self.tokens:
            record = mask.finish()
            self._publish(record.name)
        else:
            self._drop(mask.file)
        self._loss_mask = None
        return record

    def _drop(self, file: PartialFile) -> None:
        """Close and remove the file of a split without tokens."""
        file.close()
        with storage_errors(file.path):
            file.path.unlink()

    # Records

    def _next_name(self) -> str:
        return shard_name(self._layout, self._split, len(self._finished))

    def _open_record(self) -> ShardRecord | None:
        if self._shard is None:
            return None
        return ShardRecord(
            name=self._next_name(), tokens=self._open_tokens, digest=self._shard.digest
        )

    def _index_record(self) -> DocumentIndexRecord | None:
        if self._index is None:
            return None
        name = documents_name(self._split)
        return DocumentIndexRecord(name=name, documents=self.documents, digest=self._index.digest)

    # Files

    def _partial(self, name: str) -> Path:
        return self._work / f"{name}.partial"

    def _publish(self, name: str) -> None:
        publish(self._partial(name), self._folder / name)

    def _make_work_folder(self) -> None:
        with storage_errors(self._work):
            self._work.mkdir(parents=True, exist_ok=True)
        sync_folder(self._folder)

    def _put_in_place(self, shard: ShardRecord) -> None:
        """Publish a finished shard if that was not done yet, and check its form."""
        final = self._folder / shard.name
        if not final.exists():
            _check_shard_form(self._partial(shard.name), self._layout, shard.tokens)
            self._publish(shard.name)
        _check_shard_form(final, self._layout, shard.tokens)

    def _reopen(self, name: str, header_bytes: int, payload_bytes: int, digest: str) -> PartialFile:
        partial = self._partial(name)
        if not partial.exists() and (self._folder / name).exists():
            # A `seal` after the mark had published it, and no manifest knows it yet.
            publish(self._folder / name, partial)
            sync_folder(self._folder)
        if not partial.exists():
            raise VerificationError(f"{partial} is missing", remedy=RESTART)
        return PartialFile.reopen(partial, header_bytes, payload_bytes=payload_bytes, digest=digest)

    def _reopen_index(self, record: DocumentIndexRecord, tokens: int) -> None:
        if not tokens:  # a `seal` has removed the file: documents without a token end at 0
            self._append_ends(np.zeros(record.documents, dtype=np.int64), 0)
            return
        payload_bytes = record.documents * _END_BYTES
        self._index = self._reopen(record.name, NPY_HEADER_BYTES, payload_bytes, record.digest)
        last = NPY_HEADER_BYTES + payload_bytes - _END_BYTES
        self._last_end = int.from_bytes(
            read_exactly(self._index.path, last, _END_BYTES), "little", signed=True
        )

    def _begin_loss_mask(self) -> LossMaskWriter:
        path = self._partial(learnt_name(self._split))
        return LossMaskWriter(PartialFile.create(path, NPY_HEADER_BYTES), self._split)

    def _reopen_loss_mask(self, mark: LossMaskMark, tokens: int) -> None:
        whole_bytes = tokens // 8
        if whole_bytes:
            file = self._reopen(mark.name, NPY_HEADER_BYTES, whole_bytes, mark.digest)
            self._loss_mask = LossMaskWriter(file, self._split)
        else:  # a `seal` without tokens has removed the file, and there is nothing to lose
            self._loss_mask = self._begin_loss_mask()
        self._loss_mask.resume(mark, tokens)

    def _clear(self, mark: WriterMark) -> None:
        """Remove what this split left behind after the mark."""
        finished = {shard.name for shard in mark.finished}
        kept = {record.name for record in (mark.open, mark.index, mark.learnt) if record}
        with storage_errors(self._folder):
            for name in self._own_names(self._folder) - finished:
                (self._folder / name).unlink()
            for name in self._own_names(self._work, ".partial") - kept:
                self._partial(name).unlink()
        sync_folder(self._folder)
        sync_folder(self._work)

    def _own_names(self, folder: Path, suffix: str = "") -> set[str]:
        """Names in the folder that only this split's writer uses, without the suffix."""
        split = self._split
        extra = {documents_name(split), learnt_name(split), companion_name(self._layout, split)}
        with storage_errors(folder):
            names = {
                entry.name.removesuffix(suffix)
                for entry in folder.iterdir()
                if entry.name.endswith(suffix)
            }
        return {
            name
            for name in names
            if name in extra or shard_number(self._layout, split, name) is not None
        }
