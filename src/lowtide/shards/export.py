"""The same tokens in another format, without tokenizing again: verify, copy, seal.

The source is proven first: a copy with a fresh manifest must not make damage look sound. Progress
is kept in `.lowtide/export.json` of the new folder; the same call resumes after a crash.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from lowtide.errors import UsageError, VerificationError
from lowtide.shards.layout import (
    DEFAULT_SHARD_TOKENS,
    MANIFEST_NAME,
    SPLITS,
    WORK_FOLDER,
    EndArray,
    Format,
    Placement,
    ShardLayout,
    Split,
    TokenArray,
)
from lowtide.shards.learnt import LearntBits
from lowtide.shards.manifest import (
    DatasetManifest,
    InputRecord,
    SplitRecord,
    TokenizerRecord,
    from_json,
    read_manifest,
    to_json,
    write_manifest,
)
from lowtide.shards.mark import WriterMark
from lowtide.shards.move_end_of_text import pieces_with_ends
from lowtide.shards.read import Dataset, TokenSplit, open_dataset
from lowtide.shards.verify import verify_dataset
from lowtide.shards.write import SplitWriter
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.publish import remove_leftovers, storage_errors, sync_folder
from lowtide.storage.sealed_json import read_sealed, write_sealed

Progress: TypeAlias = Callable[[int, int], None]
"""Called with tokens copied so far, and in all."""

CHECKPOINT_TOKENS = 1 << 28
EXPORT_PROGRESS_NAME = "export.json"
_HABIT: dict[Format, Placement] = {"nanogpt": "end", "llmc": "start", "megatron": "end"}
"""Where a format's readers expect end-of-text; `.npy` readers take both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is being exported; two calls with equal jobs are the same work."""

    layout: ShardLayout
    eot: Placement
    source: tuple[InputRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The contents of the progress file."""

    job: _Job
    marks: dict[Split, WriterMark]

    def after(self, mark: WriterMark) -> _State:
        """The state once a split has come to a mark."""
        return dataclasses.replace(self, marks={**self.marks, mark.split: mark})


def export_dataset(
    dataset: Dataset,
    to: Format,
    out: Path,
    *,
    tool_version: str,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    eot: Placement | None = None,
    progress: Progress | None = None,
    checkpoint_tokens: int = CHECKPOINT_TOKENS,
) -> DatasetManifest:
    """Write `dataset` to the folder `out` in another format, and return its manifest.

    `eot` moves the end-of-text token ("end" or "start"); None means where the format's readers
    expect it. Learnt bits go along; with them it stays where it is. What this very export left
    unfinished is gone on with, what it finished stands.
    """
    tokenizer = _needed_tokenizer(dataset)
    layout = ShardLayout(
        format=to, vocabulary_size=tokenizer.vocabulary_size, shard_tokens=shard_tokens
    )
    placement = _placement(dataset, to, eot)
    _check_source(dataset)
    job = _Job(layout=layout, eot=placement, source=_fingerprints(dataset))
    promised = _manifest(dataset, job, tokenizer, tool_version)
    if not _stands(out, promised):
        state = _claim(out, job)
        counter = _Counter(dataset.tokens, progress)
        splits = _copy_splits(dataset, out, state, counter, checkpoint_tokens)
        write_manifest(out, dataclasses.replace(promised, splits=splits))
    _clear_work(out)
    return read_manifest(out)


class _Counter:
    """Adds up what was copied, for the progress callback."""

    def __init__(self, total_tokens: int, progress: Progress | None) -> None:
        self._total_tokens = total_tokens
        self._progress = progress
        self._done_tokens = 0

    def add(self, tokens: int) -> None:
        self._done_tokens += tokens
        if self._progress:
            self._progress(self._done_tokens, self._total_tokens)


# Before the copy


def _needed_tokenizer(dataset: Dataset) -> TokenizerRecord:
    if dataset.tokenizer is None:
        raise UsageError(
            f"nothing says which tokenizer made {dataset.path}",
            remedy="name it with `--tokenizer`",
        )
    return dataset.tokenizer


def _placement(dataset: Dataset, to: Format, wanted: Placement | None) -> Placement:
    """Where end-of-text will stand. It can be moved; it can be neither added nor removed."""
    if any(split.learnt for split in dataset.splits.values()):
        return _unmoved(dataset, wanted)
    if wanted is None:
        movable = dataset.eot != "none" and _end_of_text(dataset) is not None
        return _HABIT.get(to, dataset.eot) if movable else dataset.eot
    if wanted != dataset.eot and "none" in (wanted, dataset.eot):
        raise UsageError(
            f"end-of-text stands at {dataset.eot!r} and cannot be put at {wanted!r} by a copy",
            remedy=f"tokenize again with `--eot {wanted}`",
        )
    return wanted


def _unmoved(dataset: Dataset, wanted: Placement | None) -> Placement:
    """Examples keep theirs: moved, every token would have its neighbour's learnt bit."""
    if wanted not in (None, dataset.eot):
        raise UsageError(
            f"{dataset.path} holds examples with learnt bits: end-of-text stands at {dataset.eot!r} "
            f"and cannot be put at {wanted!r} by a copy",
            remedy=f"leave `--eot` out, or tokenize again with `--eot {wanted}`",
        )
    return dataset.eot


def _end_of_text(dataset: Dataset) -> int | None:
    return dataset.tokenizer.end_of_text if dataset.tokenizer else None


def _check_source(dataset: Dataset) -> None:
    unknown = [name for name in dataset.splits if name not in SPLITS]
    if unknown:
        raise UsageError(
            f"{dataset.path} has splits that are neither train nor val: {', '.join(unknown)}",
            remedy="export one file at a time, or name the files after train and val",
        )
    found = verify_dataset(dataset.path, tokenizer=dataset.tokenizer)
    if found.problems:
        raise VerificationError(
            f"{dataset.path} is damaged: {found.problems[0]}",
            remedy=f"run `lowtide verify {dataset.path}` for all that is wrong, then mend it",
        )


def _fingerprints(dataset: Dataset) -> tuple[InputRecord, ...]:
    """The source's files: for its manifest where it has none, and to know the job again."""
    splits = dataset.splits.values()
    paths = [file.path for split in splits for file in split.files]
    paths += [split.learnt.path for split in splits if split.learnt]
    return tuple(
        InputRecord(
            name=path.name,
            size_bytes=path.stat().st_size,
            fingerprint=fingerprint_file(path),
            kind=dataset.format,
        )
        for path in paths
    )


def _stands(out: Path, promised: DatasetManifest) -> bool:
    """This export was finished before, but perhaps for the tidying."""
    if not (out / MANIFEST_NAME).is_file():
        return False
    found = read_manifest(out)
    if promised != dataclasses.replace(found, splits={}, tool_version=promised.tool_version):
        return False
    open_dataset(out)  # a shard that is gone, or of another size, is an error
    return True


def _claim(out: Path, job: _Job) -> _State:
    """The state to go on from, stored in the folder; a folder with anything else is refused."""
    work = out / WORK_FOLDER
    progress_path = work / EXPORT_PROGRESS_NAME
    if work.is_symlink():
        raise _occupied(out, f"{WORK_FOLDER}, which is a link")
    if progress_path.is_file():
        state = from_json(read_sealed(progress_path), _State, progress_path)
        if state.job != job:
            raise _occupied(out, "another unfinished export")
        remove_leftovers(work)
        return state
    if out.exists() and not _is_free(out):
        raise _occupied(out, "something else")
    with storage_errors(out):
        work.mkdir(parents=True, exist_ok=True)
    sync_folder(out.parent)
    sync_folder(out)
    state = _State(job=job, marks={})
    _store(out, state)
    return state


def _is_free(out: Path) -> bool:
    """Empty, or killed before the first byte of progress was stored."""
    with storage_errors(out):
        entries = list(out.iterdir())
        if entries == [out / WORK_FOLDER]:
            remove_leftovers(out / WORK_FOLDER)
            return not any((out / WORK_FOLDER).iterdir())
    return not entries


def _occupied(out: Path, what: str) -> UsageError:
    return UsageError(f"{out} holds {what}", remedy="pass another `--out`, or empty that folder")


def _store(out: Path, state: _State) -> None:
    write_sealed(out / WORK_FOLDER / EXPORT_PROGRESS_NAME, to_json(state))


# The copy


def _copy_splits(
    dataset: Dataset, out: Path, state: _State, counter: _Counter, checkpoint_tokens: int
) -> dict[Split, SplitRecord]:
    records: dict[Split, SplitRecord] = {}
    for name, split in dataset.splits.items():
        has_bits = split.learnt is not None
        with _open_writer(out, state, cast(Split, name), learnt=has_bits) as writer:
            counter.add(writer.tokens)
            stream = _pieces_left(dataset, split, state.job, writer)
            state = _checkpoint(out, state, writer)
            while _copy(stream, split.learnt, writer, counter, checkpoint_tokens):
                state = _checkpoint(out, state, writer)
            assert writer.tokens == split.tokens, "a copy is as long as its source"
            shards, index = writer.seal()
            record = SplitRecord(shards=tuple(shards), index=index, learnt=writer.learnt)
        records[cast(Split, name)] = record
    return records


def _pieces_left(
    dataset: Dataset, split: TokenSplit, job: _Job, writer: SplitWriter
) -> Iterator[tuple[TokenArray, EndArray]]:
    """What the writer has not seen yet, with end-of-text where the job wants it."""
    if split.documents is None:
        _check_no_index_needed(split, job)
    return pieces_with_ends(
        split,
        source_eot=dataset.eot,
        eot=job.eot,
        end_of_text=_end_of_text(dataset),
        tokens=writer.tokens,
        documents=writer.documents,
    )


def _check_no_index_needed(split: TokenSplit, job: _Job) -> None:
    if job.layout.format == "megatron" and split.tokens:
        raise UsageError(
            f"Megatron needs to know where the documents of split {split.name} end",
            remedy="name a tokenizer that has an end-of-text token with `--tokenizer`",
        )


def _copy(
    pieces: Iterator[tuple[TokenArray, EndArray]],
    learnt: LearntBits | None,
    writer: SplitWriter,
    counter: _Counter,
    least_tokens: int,
) -> bool:
    """Copy at least so many tokens; False when the stream had no more than was copied."""
    goal = writer.tokens + least_tokens
    for ids, ends in pieces:
        stop = writer.tokens + len(ids)
        writer.append(ids, ends, learnt.read(writer.tokens, stop) if learnt else None)
        counter.add(len(ids))
        if writer.tokens >= goal:
            return True
    return False


def _open_writer(out: Path, state: _State, split: Split, *, learnt: bool) -> SplitWriter:
    mark = state.marks.get(split)
    if mark is None:
        return SplitWriter.start(out, state.job.layout, split, learnt=learnt)
    return SplitWriter.resume(out, state.job.layout, mark)


def _checkpoint(out: Path, state: _State, writer: SplitWriter) -> _State:
    after = state.after(writer.mark())
    _store(out, after)
    writer.publish_finished()
    return after


# After the copy


def _manifest(
    dataset: Dataset, job: _Job, tokenizer: TokenizerRecord, tool_version: str
) -> DatasetManifest:
    """The new folder's manifest, but for its files."""
    if dataset.manifest:
        return dataclasses.replace(
            dataset.manifest,
            tool_version=tool_version,
            layout=job.layout,
            eot=job.eot,
            splits={},
        )
    return DatasetManifest(
        tool_version=tool_version,
        layout=job.layout,
        eot=job.eot,
        tokenizer=tokenizer,
        splits={},
        inputs=job.source,
    )


def _clear_work(out: Path) -> None:
    """The manifest stands: what helped to get there goes."""
    work = out / WORK_FOLDER
    remove_leftovers(out)
    if work.is_dir():
        remove_leftovers(work)
        with storage_errors(work):
            (work / EXPORT_PROGRESS_NAME).unlink(missing_ok=True)
            work.rmdir()
        sync_folder(out)
