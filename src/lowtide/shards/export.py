"""The same tokens in another format, without tokenizing again: verify, copy, seal.

The source is verified first: a copy with a fresh manifest must not make damage look sound. Progress
is kept in `.lowtide/export.json` of the new folder; the same call resumes after a crash.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from lowtide.errors import UsageError, VerificationError
from lowtide.settings import Format, Placement
from lowtide.shards.layout import (
    DEFAULT_SHARD_TOKENS,
    MANIFEST_NAME,
    SPLITS,
    WORK_FOLDER,
    EndArray,
    ShardLayout,
    Split,
    TokenArray,
)
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
from lowtide.shards.read import Dataset, TokenSplit, open_dataset
from lowtide.shards.verify import Progress as Progress
from lowtide.shards.verify import ProgressCounter, verify_dataset
from lowtide.shards.write import SplitWriter, WriterMark
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.publish import remove_leftovers, storage_errors, sync_folder
from lowtide.storage.sealed_json import read_sealed, write_sealed

CHECKPOINT_TOKENS = 1 << 28
EXPORT_PROGRESS_NAME = "export.json"
_HABIT: dict[Format, Placement] = {"nanogpt": "end", "llmc": "start", "megatron": "end"}
"""Where a format's readers expect end-of-text; `.npy` readers take both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedDataset:
    """A dataset in its new format."""

    manifest: DatasetManifest
    already_done: bool
    """Whether the folder held this very export before; then nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is being exported; an export resumes only one of an equal job."""

    layout: ShardLayout
    eot: Placement
    source: tuple[InputRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The contents of the progress file."""

    job: _Job
    marks: dict[Split, WriterMark]


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
) -> ExportedDataset:
    """Write `dataset` to the folder `out` in another format.

    `eot` moves the end-of-text token ("end" or "start"); None puts it where the format's readers
    expect it. Loss masks are copied too; a dataset with them keeps its end-of-text in place. An
    unfinished export of the same dataset is resumed, a finished one is left as it is.
    """
    tokenizer = dataset.tokenizer
    if tokenizer is None:
        raise UsageError(
            f"nothing says which tokenizer made {dataset.path}",
            remedy="name it with `--tokenizer`",
        )
    layout = ShardLayout(
        format=to, vocabulary_size=tokenizer.vocabulary_size, shard_tokens=shard_tokens
    )
    placement = _placement(dataset, to, eot)
    _check_source(dataset)
    job = _Job(layout=layout, eot=placement, source=_fingerprints(dataset))
    promised = _manifest(dataset, job, tokenizer, tool_version)
    already_done = _stands(out, promised)
    if not already_done:
        state = _claim(out, job)
        counter = ProgressCounter(dataset.tokens, progress)
        splits = _copy_splits(dataset, out, state, counter, checkpoint_tokens)
        write_manifest(out, dataclasses.replace(promised, splits=splits))
    _clear_work(out)
    return ExportedDataset(manifest=read_manifest(out), already_done=already_done)


# Before the copy


def _placement(dataset: Dataset, to: Format, wanted: Placement | None) -> Placement:
    """Where end-of-text will stand. It can be moved, but neither added nor removed."""
    if any(split.loss_mask for split in dataset.splits.values()):
        if wanted not in (None, dataset.eot):  # every token would get its neighbour's bit
            raise UsageError(
                f"{dataset.path} holds examples with a loss mask: end-of-text stands at {dataset.eot!r} "
                f"and cannot be put at {wanted!r} by a copy",
                remedy=f"leave `--eot` out, or tokenize again with `--eot {wanted}`",
            )
        return dataset.eot
    if wanted is None:
        movable = dataset.eot != "none" and _end_of_text(dataset) is not None
        return _HABIT.get(to, dataset.eot) if movable else dataset.eot
    if wanted != dataset.eot and "none" in (wanted, dataset.eot):
        raise UsageError(
            f"end-of-text stands at {dataset.eot!r} and cannot be put at {wanted!r} by a copy",
            remedy=f"tokenize again with `--eot {wanted}`",
        )
    return wanted


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
            remedy=f"run `lowtide verify {dataset.path}` to see all problems, then repair it",
        )


def _fingerprints(dataset: Dataset) -> tuple[InputRecord, ...]:
    """Records of the source's files: they identify the job, and are the inputs of a peer's dataset."""
    paths = [file.path for file in dataset.files]
    paths += [split.loss_mask.path for split in dataset.splits.values() if split.loss_mask]
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
    """Whether this export was finished before, except perhaps for removing its work folder."""
    if not (out / MANIFEST_NAME).is_file():
        return False
    found = read_manifest(out)
    if promised != dataclasses.replace(found, splits={}, tool_version=promised.tool_version):
        return False
    open_dataset(out)  # a shard that is gone, or of another size, is an error
    return True


def _claim(out: Path, job: _Job) -> _State:
    """The state to resume from, stored in the folder; UsageError if the folder holds anything else."""
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
    """Whether the folder is empty, or its export was killed before any progress was stored."""
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
    dataset: Dataset,
    out: Path,
    state: _State,
    progress: ProgressCounter,
    checkpoint_tokens: int,
) -> dict[Split, SplitRecord]:
    """Copy every split from its last checkpoint on, with a new one every `checkpoint_tokens`."""
    records: dict[Split, SplitRecord] = {}
    for found, split in dataset.splits.items():
        name, mask = cast(Split, found), split.loss_mask
        layout, at = state.job.layout, state.marks.get(name)
        writer = (
            SplitWriter.resume(out, layout, at)
            if at
            else SplitWriter.start(out, layout, name, learnt=mask is not None)
        )
        with writer:
            progress.add(writer.tokens)
            pieces = _pieces_left(dataset, split, state.job, writer)
            state = _checkpoint(out, state, writer)
            next_checkpoint = writer.tokens + checkpoint_tokens
            for ids, ends in pieces:
                stop = writer.tokens + len(ids)
                writer.append(ids, ends, mask.read(writer.tokens, stop) if mask else None)
                progress.add(len(ids))
                if writer.tokens >= next_checkpoint:
                    state = _checkpoint(out, state, writer)
                    next_checkpoint = writer.tokens + checkpoint_tokens
            assert writer.tokens == split.tokens, "a copy is as long as its source"
            shards, index = writer.seal()
        records[name] = SplitRecord(shards=tuple(shards), index=index, learnt=writer.learnt)
    return records


def _checkpoint(out: Path, state: _State, writer: SplitWriter) -> _State:
    mark = writer.mark()
    after = dataclasses.replace(state, marks={**state.marks, mark.split: mark})
    _store(out, after)
    writer.publish_finished()
    return after


def _pieces_left(
    dataset: Dataset, split: TokenSplit, job: _Job, writer: SplitWriter
) -> Iterator[tuple[TokenArray, EndArray]]:
    """What the writer does not hold yet, in pieces of at most 8 MiB with the document ends in each.

    End-of-text is moved to where the job wants it:

        a b E | c E      behind each document, as nanoGPT has it
        E a b | E c      in front, as llm.c has it: the same stream, one place later
    """
    end_of_text = _end_of_text(dataset)
    if split.documents is None and job.layout.format == "megatron" and split.tokens:
        raise UsageError(
            f"Megatron needs to know where the documents of split {split.name} end",
            remedy="name a tokenizer that has an end-of-text token with `--tokenizer`",
        )
    if dataset.eot == job.eot or end_of_text is None or not split.tokens:
        stream = split.stream(writer.tokens)
    else:
        at = split.tokens - 1 if dataset.eot == "end" else 0
        if int(split.read(at, at + 1)[0]) != end_of_text:
            raise VerificationError(
                f"end-of-text does not stand at the {dataset.eot} of split {split.name}",
                remedy=f"keep it where it is with `--eot {dataset.eot}`",
            )
        move = _eot_in_front if job.eot == "start" else _eot_behind
        stream = move(split, writer.tokens, end_of_text)
    if split.documents is None:
        return ((piece, np.empty(0, dtype=np.int64)) for piece in stream)
    return _with_ends(stream, split.document_ends(writer.documents), writer.tokens)


def _eot_in_front(split: TokenSplit, start: int, end_of_text: int) -> Iterator[TokenArray]:
    """Turn documents `a b E | c E` into `E a b | E c`: the stream one place later, from `start` on."""
    if start == 0:
        yield np.array([end_of_text], dtype="<u4")
    yield from split.stream(max(0, start - 1), split.tokens - 1)


def _eot_behind(split: TokenSplit, start: int, end_of_text: int) -> Iterator[TokenArray]:
    """Turn documents `E a b | E c` into `a b E | c E`: the stream one place earlier."""
    if start < split.tokens:
        yield from split.stream(start + 1)
        yield np.array([end_of_text], dtype="<u4")


def _with_ends(
    tokens: Iterator[TokenArray], more_ends: Iterator[EndArray], start: int
) -> Iterator[tuple[TokenArray, EndArray]]:
    """Pieces of tokens, each with the document ends that lie in it, counted from its start."""
    ends = np.empty(0, dtype=np.int64)
    for piece in tokens:
        stop = start + len(piece)
        while not len(ends) or ends[-1] <= stop:
            more = next(more_ends, None)
            if more is None:
                break
            ends = np.concatenate([ends, more])
        here = int(np.searchsorted(ends, stop, side="right"))
        yield piece, ends[:here] - start
        ends = ends[here:]
        start = stop


# After the copy


def _manifest(
    dataset: Dataset, job: _Job, tokenizer: TokenizerRecord, tool_version: str
) -> DatasetManifest:
    """The new folder's manifest, without its files."""
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
    """Remove the work folder, once the manifest is written."""
    work = out / WORK_FOLDER
    remove_leftovers(out)
    if work.is_dir():
        remove_leftovers(work)
        with storage_errors(work):
            (work / EXPORT_PROGRESS_NAME).unlink(missing_ok=True)
            work.rmdir()
        sync_folder(out)
