"""Verify a dataset: every byte against its manifest, or a peer's files against themselves.

Problems come back as sentences, not as an exception: one damaged shard must not hide another.
Reads everything once (the document index up to five times), in pieces of 8 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from lowtide.errors import DataError, StorageError, VerificationError
from lowtide.journal import LOG_NAME, REPORT_NAME
from lowtide.shards.documents import DocumentIndex, StoredDocuments
from lowtide.shards.layout import (
    MANIFEST_NAME,
    SPLITS,
    WORK_FOLDER,
    Split,
    companion_name,
    documents_header,
    documents_name,
    shard_header,
    shard_number,
)
from lowtide.shards.loss_mask import loss_mask_problems
from lowtide.shards.manifest import (
    DatasetManifest,
    DocumentIndexRecord,
    ShardRecord,
    SplitRecord,
    TokenizerRecord,
    file_names,
    read_manifest,
)
from lowtide.shards.megatron import MegatronIndex, index_pieces
from lowtide.shards.payload import check_size, payload_problems, read_exactly
from lowtide.shards.read import Dataset, TokenSplit, open_dataset

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the amount done so far and the total: bytes read by `verify`, tokens copied by `export`."""


class ProgressCounter:
    """Adds up what is done, for the progress callback."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    def add(self, amount: int) -> None:
        """Report that so much more is done."""
        self._done += amount
        if self._progress:
            self._progress(self._done, self._total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was read, and what is wrong with it."""

    files: int
    tokens: int
    documents: int
    ids_checked: bool
    """False when nothing says how large the vocabulary is."""
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def verify_dataset(
    path: Path,
    *,
    tokenizer: TokenizerRecord | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Find everything wrong with the dataset at `path`; `tokenizer` gives a peer's vocabulary.

    Raises only if there is no dataset at all.
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


def _verify_own(path: Path, progress: Progress | None) -> Verification:
    """A folder of ours against its manifest."""
    try:
        manifest = read_manifest(path)
    except VerificationError as error:
        return _broken(error.problem)
    counter = ProgressCounter(manifest.tokens * manifest.layout.token_bytes, progress)
    problems = list(_folder_problems(path, manifest))
    for split, record in manifest.splits.items():
        problems += _plan_problems(manifest, split, record)
        for shard in record.shards:
            problems += _collect(_shard_problems(path, manifest, shard, counter))
        if record.index:
            of_index = _collect(_index_problems(path, record.index, record.tokens))
            # Damaged ends would demand an `.idx` with a sequence count beyond all memory.
            problems += of_index or _collect(
                _companion_problems(path, manifest, split, record.index)
            )
        if record.learnt:
            problems += _collect(loss_mask_problems(path, record.learnt, record.tokens))
    return Verification(
        files=len(file_names(manifest)) + 1,
        tokens=manifest.tokens,
        documents=manifest.documents,
        ids_checked=True,
        problems=tuple(problems),
    )


def _collect(problems: Iterator[str]) -> list[str]:
    """All problems of one file; a file that cannot be read ends its own list, not the verification."""
    found: list[str] = []
    try:
        found.extend(problems)
    except (VerificationError, StorageError) as error:
        found.append(error.problem)
    return found


def _folder_problems(path: Path, manifest: DatasetManifest) -> Iterator[str]:
    """Files that should not be there. Missing ones are noticed when they are read."""
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
        full = manifest.layout.file_tokens or shard.tokens
        if not 1 <= shard.tokens <= full or (shard.tokens < full and not last):
            yield f"{MANIFEST_NAME}: {shard.name} cannot hold {shard.tokens} tokens"
    if record.index and record.index.name != documents_name(split):
        yield f"{MANIFEST_NAME}: the document index of {split} is called {record.index.name}"
    if record.shards and not record.index and companion_name(manifest.layout, split):
        yield f"{MANIFEST_NAME}: {split} has no document index"


def _shard_problems(
    folder: Path, manifest: DatasetManifest, shard: ShardRecord, progress: ProgressCounter
) -> Iterator[str]:
    layout = manifest.layout
    largest = 0

    def look(piece: memoryview) -> None:
        nonlocal largest
        largest = max(largest, int(np.frombuffer(piece, dtype=layout.dtype).max()))
        progress.add(len(piece))

    yield from payload_problems(
        folder / shard.name,
        shard_header(layout, shard.tokens),
        shard.tokens * layout.token_bytes,
        digest=shard.digest,
        holds="tokens",
        look=look,
    )
    if largest >= layout.vocabulary_size:
        yield f"{shard.name}: id {largest} is beyond the vocabulary of {layout.vocabulary_size}"


def _index_problems(folder: Path, record: DocumentIndexRecord, tokens: int) -> Iterator[str]:
    path = folder / record.name
    yield from payload_problems(
        path,
        documents_header(record.documents),
        8 * record.documents,
        digest=record.digest,
        holds="ends",
    )
    yield from _order_problems(path, StoredDocuments(path=path, count=record.documents), tokens)


def _companion_problems(
    folder: Path, manifest: DatasetManifest, split: Split, record: DocumentIndexRecord
) -> Iterator[str]:
    """Megatron's `.idx` must be, byte for byte, what the document ends demand."""
    name = companion_name(manifest.layout, split)
    if name is None:
        return
    documents = StoredDocuments(path=folder / record.name, count=record.documents)
    done_bytes = 0
    for wanted in index_pieces(documents, manifest.layout):
        if read_exactly(folder / name, done_bytes, wanted.nbytes) != wanted.tobytes():
            yield f"{name}: it does not fit {record.name}"
            return
        done_bytes += wanted.nbytes
    check_size(folder / name, done_bytes)


def _order_problems(path: Path, documents: DocumentIndex, tokens: int) -> Iterator[str]:
    """Ends never go back, and the last one is the stream's."""
    last = 0
    for ends in documents.ends():
        if (np.diff(ends, prepend=last) < 0).any():
            yield f"{path.name}: its document ends are out of order"
            return
        last = int(ends[-1])
    if last != tokens:
        yield f"{path.name}: its last document ends at {last}, the tokens at {tokens}"


def _verify_peer(dataset: Dataset, progress: Progress | None) -> Verification:
    """A peer's files against themselves and the vocabulary."""
    counter = ProgressCounter(sum(file.file_bytes for file in dataset.files), progress)
    vocabulary_size = dataset.tokenizer.vocabulary_size if dataset.tokenizer else None
    problems: list[str] = []
    for split in dataset.splits.values():
        problems += _collect(_id_problems(split, vocabulary_size, counter))
        if isinstance(split.documents, MegatronIndex):
            problems += _collect(_megatron_problems(split.documents))
    splits = dataset.splits.values()
    return Verification(
        files=len(dataset.files),
        tokens=dataset.tokens,
        documents=0 if problems else sum(split.document_count or 0 for split in splits),
        ids_checked=vocabulary_size is not None,
        problems=tuple(problems),
    )


def _id_problems(
    split: TokenSplit, vocabulary_size: int | None, progress: ProgressCounter
) -> Iterator[str]:
    largest = 0
    for piece in split.stream():
        largest = max(largest, int(piece.max()))
        progress.add(piece.nbytes)
    if vocabulary_size is not None and largest >= vocabulary_size:
        yield f"split {split.name}: id {largest} is beyond the vocabulary of {vocabulary_size}"


def _megatron_problems(index: MegatronIndex) -> Iterator[str]:
    problems = index.problems()
    yield from problems
    if not problems:
        yield from _order_problems(index.path, index, index.tokens)
