"""Prove a dataset: every byte of it against its manifest, or a peer's files against themselves.

What is found wrong comes back as sentences, not as an exception: one damaged shard must not hide
another. Reads everything once (the index of documents up to five times), in pieces of 8 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import xxhash

from lowtide.errors import DataError, StorageError, VerificationError
from lowtide.journal import LOG_NAME, REPORT_NAME
from lowtide.shards.documents import MegatronDocuments, StoredDocuments
from lowtide.shards.layout import (
    MANIFEST_NAME,
    NPY_HEADER_BYTES,
    SPLITS,
    WORK_FOLDER,
    Split,
    companion_name,
    documents_header,
    documents_name,
    shard_header,
    shard_number,
)
from lowtide.shards.learnt import learnt_problems
from lowtide.shards.manifest import (
    DatasetManifest,
    DocumentIndexRecord,
    ShardRecord,
    SplitRecord,
    TokenizerRecord,
    file_names,
    read_manifest,
)
from lowtide.shards.megatron import index_pieces, index_problems
from lowtide.shards.payload import read_exactly, read_pieces
from lowtide.shards.read import Dataset, TokenSplit, check_size, open_dataset

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes of tokens read so far, and in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was read, and what was wrong with it."""

    files: int
    tokens: int
    documents: int
    ids_checked: bool
    """False when nothing says how large the vocabulary is."""
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Nothing was wrong."""
        return not self.problems


def verify_dataset(
    path: Path,
    *,
    tokenizer: TokenizerRecord | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Everything wrong with the dataset at `path`; `tokenizer` gives a peer's vocabulary.

    Errors are raised only for what is not a dataset at all.
    """
    if (path / MANIFEST_NAME).is_file():
        return _verify_own(path, progress)
    if any((path / documents_name(split)).is_file() for split in SPLITS):
        return _broken(f"{path / MANIFEST_NAME} is missing")
    try:
        dataset = open_dataset(path, tokenizer=tokenizer)
    except DataError as error:  # a file of another kind, such as int64: it can be written again
        return _broken(f"{error.problem}; {error.remedy}")
    except VerificationError as error:
        return _broken(error.problem)
    return _verify_peer(dataset, progress)


def _broken(problem: str) -> Verification:
    return Verification(files=0, tokens=0, documents=0, ids_checked=False, problems=(problem,))


class _Meter:
    """Adds up what was read, for the progress callback."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self._total_bytes = total_bytes
        self._progress = progress
        self._done_bytes = 0

    def add(self, read_bytes: int) -> None:
        self._done_bytes += read_bytes
        if self._progress:
            self._progress(self._done_bytes, self._total_bytes)


# Our own folders


def _verify_own(path: Path, progress: Progress | None) -> Verification:
    try:
        manifest = read_manifest(path)
    except VerificationError as error:
        return _broken(error.problem)
    meter = _Meter(manifest.tokens * manifest.layout.token_bytes, progress)
    problems = list(_folder_problems(path, manifest))
    for split, record in manifest.splits.items():
        problems += _plan_problems(manifest, split, record)
        for shard in record.shards:
            problems += _collect(_shard_problems(path, manifest, shard, meter))
        if record.index:
            of_index = _collect(_index_problems(path, record.index, record.tokens))
            # From damaged ends no sane `.idx` follows, only a sequence count beyond all memory.
            of_index = of_index or _collect(
                _companion_problems(path, manifest, split, record.index)
            )
            problems += of_index
        if record.learnt:
            problems += _collect(learnt_problems(path, record.learnt, record.tokens))
    return Verification(
        files=len(file_names(manifest)) + 1,
        tokens=manifest.tokens,
        documents=manifest.documents,
        ids_checked=True,
        problems=tuple(problems),
    )


def _collect(problems: Iterator[str]) -> list[str]:
    """All of them; a file that cannot be read on ends its own list, not the verification."""
    found: list[str] = []
    try:
        found.extend(problems)
    except (VerificationError, StorageError) as error:
        found.append(error.problem)
    return found


def _folder_problems(path: Path, manifest: DatasetManifest) -> Iterator[str]:
    """Files that are there and should not be. Missing ones are noticed when they are read."""
    beside = (MANIFEST_NAME, WORK_FOLDER, ".stop", LOG_NAME, REPORT_NAME)
    expected = {*beside, *file_names(manifest)}
    for entry in sorted(path.iterdir()):
        if entry.name not in expected:
            yield f"{entry.name} is in the folder but not in the manifest"


def _plan_problems(manifest: DatasetManifest, split: Split, record: SplitRecord) -> Iterator[str]:
    """The manifest against itself: names and counts follow from the layout."""
    if manifest.layout.vocabulary_size != manifest.tokenizer.vocabulary_size:
        yield f"{MANIFEST_NAME}: layout and tokenizer disagree on the vocabulary"
    for number, shard in enumerate(record.shards):
        last = number == len(record.shards) - 1
        if shard_number(manifest.layout, split, shard.name) != number:
            yield f"{MANIFEST_NAME}: shard {number} of {split} is called {shard.name}"
        if not _fills(shard.tokens, manifest.layout.file_tokens, last=last):
            yield f"{MANIFEST_NAME}: {shard.name} cannot hold {shard.tokens} tokens"
    if record.index and record.index.name != documents_name(split):
        yield f"{MANIFEST_NAME}: the document index of {split} is called {record.index.name}"
    if record.shards and not record.index and companion_name(manifest.layout, split):
        yield f"{MANIFEST_NAME}: {split} has no document index"


def _fills(tokens: int, full: int | None, *, last: bool) -> bool:
    """Every shard but the last is full, and none is empty."""
    if full is None or last:
        return 1 <= tokens <= (full or tokens)
    return tokens == full


def _shard_problems(
    folder: Path, manifest: DatasetManifest, shard: ShardRecord, meter: _Meter
) -> Iterator[str]:
    layout = manifest.layout
    path = folder / shard.name
    check_size(path, layout.file_bytes(shard.tokens))
    if read_exactly(path, 0, layout.header_bytes) != shard_header(layout, shard.tokens):
        yield f"{shard.name}: its header is not that of {shard.tokens} tokens"
    state = xxhash.xxh3_128()
    largest = 0
    for piece in read_pieces(path, layout.header_bytes, shard.tokens * layout.token_bytes):
        state.update(piece)
        largest = max(largest, int(np.frombuffer(piece, dtype=layout.dtype).max()))
        meter.add(len(piece))
    if state.hexdigest() != shard.digest:
        yield f"{shard.name}: its tokens are not those that were written"
    if largest >= layout.vocabulary_size:
        yield f"{shard.name}: id {largest} is beyond the vocabulary of {layout.vocabulary_size}"


def _index_problems(folder: Path, record: DocumentIndexRecord, tokens: int) -> Iterator[str]:
    path = folder / record.name
    check_size(path, NPY_HEADER_BYTES + 8 * record.documents)
    if read_exactly(path, 0, NPY_HEADER_BYTES) != documents_header(record.documents):
        yield f"{record.name}: its header is not that of {record.documents} documents"
    state = xxhash.xxh3_128()
    for piece in read_pieces(path, NPY_HEADER_BYTES, 8 * record.documents):
        state.update(piece)
    if state.hexdigest() != record.digest:
        yield f"{record.name}: its ends are not those that were written"
    stored = StoredDocuments(path=path, count=record.documents)
    yield from _order_problems(record.name, stored, tokens)


def _companion_problems(
    folder: Path, manifest: DatasetManifest, split: Split, record: DocumentIndexRecord
) -> Iterator[str]:
    """Megatron's `.idx` must be, byte for byte, what the document ends demand."""
    name = companion_name(manifest.layout, split)
    if name is None:
        return
    done_bytes = 0
    for wanted in index_pieces(folder / record.name, record.documents, manifest.layout):
        if read_exactly(folder / name, done_bytes, wanted.nbytes) != wanted.tobytes():
            yield f"{name}: it does not fit {record.name}"
            return
        done_bytes += wanted.nbytes
    check_size(folder / name, done_bytes)


# Both


def _order_problems(
    name: str, documents: StoredDocuments | MegatronDocuments, tokens: int
) -> Iterator[str]:
    """Ends never go back, and the last one is the stream's."""
    last = 0
    for ends in documents.ends():
        if (np.diff(ends, prepend=last) < 0).any():
            yield f"{name}: its document ends are out of order"
            return
        last = int(ends[-1])
    if last != tokens:
        yield f"{name}: its last document ends at {last}, the tokens at {tokens}"


# Peers


def _verify_peer(dataset: Dataset, progress: Progress | None) -> Verification:
    splits = list(dataset.splits.values())
    meter = _Meter(sum(file.file_bytes for split in splits for file in split.files), progress)
    vocabulary_size = dataset.tokenizer.vocabulary_size if dataset.tokenizer else None
    problems: list[str] = []
    for split in splits:
        problems += _collect(_id_problems(split, vocabulary_size, meter))
        if isinstance(split.documents, MegatronDocuments):
            problems += _collect(_megatron_problems(split, split.documents))
    return Verification(
        files=sum(len(split.files) for split in splits),
        tokens=dataset.tokens,
        documents=0 if problems else sum(split.document_count or 0 for split in splits),
        ids_checked=vocabulary_size is not None,
        problems=tuple(problems),
    )


def _id_problems(split: TokenSplit, vocabulary_size: int | None, meter: _Meter) -> Iterator[str]:
    largest = 0
    for piece in split.stream():
        largest = max(largest, int(piece.max()))
        meter.add(piece.nbytes)
    if vocabulary_size is not None and largest >= vocabulary_size:
        yield f"split {split.name}: id {largest} is beyond the vocabulary of {vocabulary_size}"


def _megatron_problems(split: TokenSplit, documents: MegatronDocuments) -> Iterator[str]:
    problems = index_problems(documents.index, split.tokens)
    yield from problems
    if not problems:
        yield from _order_problems(documents.index.path.name, documents, split.tokens)
