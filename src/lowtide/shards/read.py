"""Open a dataset: a folder of ours, or whatever a peer has left.

    dataset = open_dataset(Path("tokens"))
    train = dataset.splits["train"]
    train.read(0, 1025)         # a view of the mapped file, or a copy across two shards
    train.document(7)           # (start, end)

Sizes are compared before anything is mapped: a short map kills the process with SIGBUS.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.errors import UsageError, VerificationError
from lowtide.shards.documents import (
    DocumentIndex,
    MegatronDocuments,
    ScannedDocuments,
    StoredDocuments,
)
from lowtide.shards.layout import (
    MANIFEST_NAME,
    NPY_HEADER_BYTES,
    SPLITS,
    WORK_FOLDER,
    EndArray,
    Format,
    Placement,
    ShardLayout,
    TokenArray,
    learnt_name,
)
from lowtide.shards.learnt import LearntBits, check_learnt_size
from lowtide.shards.manifest import DatasetManifest, SplitRecord, TokenizerRecord, read_manifest
from lowtide.shards.payload import read_pieces, reading
from lowtide.shards.peers import PeerSplit, TokenFile, find_peer_splits

_OPEN_MAPS = 64
"""A map keeps a file descriptor: thousands of shards must not use them up."""


class TokenSplit:
    """One split's token stream over its files. Holds at most 64 maps and no tokens."""

    def __init__(
        self,
        name: str,
        files: Sequence[TokenFile],
        documents: DocumentIndex | None = None,
        learnt: LearntBits | None = None,
    ) -> None:
        self.name = name
        self.files = tuple(files)
        self.documents = documents
        """None when nothing says where documents end."""
        self.learnt = learnt
        """Which tokens of examples are learnt; None for text, of which all are."""
        self._stops = np.cumsum([file.tokens for file in self.files], dtype=np.int64)
        self._maps: OrderedDict[int, TokenArray] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Tokens over all files."""
        return int(self._stops[-1]) if self.files else 0

    @property
    def document_count(self) -> int | None:
        """None when nothing says where documents end."""
        if self.documents is None:
            return None if self.tokens else 0
        return self.documents.count

    def read(self, start: int, stop: int) -> TokenArray:
        """The tokens from `start` up to `stop`: a read-only view, or a copy across files."""
        self._check_range(start, stop)
        parts = [self._map(number)[a:b] for number, a, b in self._pieces(start, stop)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self._dtype)

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[TokenArray]:
        """The same tokens in pieces of at most 8 MiB, read and not mapped.

        Every piece lies in the same buffer: use it before asking for the next.
        """
        stop = self.tokens if stop is None else stop
        self._check_range(start, stop)
        for number, a, b in self._pieces(start, stop):
            file = self.files[number]
            offset = file.header_bytes + a * file.dtype.itemsize
            for piece in read_pieces(file.path, offset, (b - a) * file.dtype.itemsize):
                yield np.frombuffer(piece, dtype=file.dtype)

    def document(self, number: int) -> tuple[int, int]:
        """Where document `number` starts and ends in the stream."""
        documents = self._known_documents()
        if not 0 <= number < documents.count:
            raise UsageError(
                f"split {self.name} has no document {number}",
                remedy=f"pick one below {documents.count}",
            )
        return documents.end(number - 1) if number else 0, documents.end(number)

    def document_ends(self, first: int = 0) -> Iterator[EndArray]:
        """The ends of the documents from `first` on, in pieces of at most 8 MiB."""
        return self._known_documents().ends(first) if self.tokens else iter(())

    @property
    def _dtype(self) -> np.dtype[np.unsignedinteger]:
        return self.files[0].dtype if self.files else np.dtype("<u2")

    def _known_documents(self) -> DocumentIndex:
        if self.documents is None:
            raise UsageError(
                f"nothing says where the documents of split {self.name} end",
                remedy="name the tokenizer that made it with `--tokenizer`",
            )
        return self.documents

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.tokens:
            raise UsageError(
                f"tokens {start} to {stop} are not in split {self.name}",
                remedy=f"stay between 0 and {self.tokens}",
            )

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The files that hold a range, each with the part of it: (number, from, to)."""
        number = int(np.searchsorted(self._stops, start, side="right"))
        while start < stop:
            before = int(self._stops[number]) - self.files[number].tokens
            until = min(stop, int(self._stops[number]))
            if until > start:
                yield number, start - before, until - before
            start = until
            number += 1

    def _map(self, number: int) -> TokenArray:
        if number not in self._maps:
            self._maps[number] = map_tokens(self.files[number])
            if len(self._maps) > _OPEN_MAPS:
                self._maps.popitem(last=False)
        self._maps.move_to_end(number)
        return self._maps[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What was found at a path, ready to be read."""

    path: Path
    format: Format
    splits: Mapping[str, TokenSplit]
    manifest: DatasetManifest | None
    """None for a peer's files."""
    tokenizer: TokenizerRecord | None
    """The manifest's, or the one that was named for a peer's files."""
    eot: Placement
    """Where the end-of-text token stands; for a peer's files, as far as one can see."""

    @property
    def tokens(self) -> int:
        """Tokens over all splits."""
        return sum(split.tokens for split in self.splits.values())


def open_dataset(path: Path, *, tokenizer: TokenizerRecord | None = None) -> Dataset:
    """Whatever dataset lies there. `tokenizer` tells what a peer's files do not say.

    A peer's headerless files are read as uint16 unless the tokenizer needs more; with its
    end-of-text id documents are found where no index names them.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist", remedy="name a dataset's folder or file")
    if (path / MANIFEST_NAME).is_file():
        return _open_own(path, read_manifest(path))
    if (path / WORK_FOLDER).is_dir():
        raise UsageError(
            f"{path} is not finished: it has no {MANIFEST_NAME}",
            remedy="run the command that was writing it again: it resumes where it stopped",
        )
    return _open_peer(path, tokenizer)


def map_tokens(file: TokenFile) -> TokenArray:
    """The file's tokens as a read-only map; VerificationError if its size is not what it was."""
    if file.tokens == 0:
        return np.empty(0, dtype=file.dtype)
    with reading(file.path), file.path.open("rb") as opened:
        check_size(file.path, file.file_bytes)
        found: TokenArray = np.memmap(
            opened, dtype=file.dtype, mode="r", offset=file.header_bytes, shape=(file.tokens,)
        )
    return found


def check_size(path: Path, wanted_bytes: int) -> None:
    """VerificationError unless the file has exactly this size."""
    with reading(path):
        found_bytes = path.stat().st_size
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes instead of {wanted_bytes}",
            remedy=f"put {path.name} back from a copy, or make the dataset again",
        )


def _open_own(path: Path, manifest: DatasetManifest) -> Dataset:
    splits: dict[str, TokenSplit] = {
        name: _own_split(path, manifest.layout, name, record)
        for name, record in manifest.splits.items()
    }
    return Dataset(
        path=path,
        format=manifest.layout.format,
        splits=splits,
        manifest=manifest,
        tokenizer=manifest.tokenizer,
        eot=manifest.eot,
    )


def _own_split(path: Path, layout: ShardLayout, name: str, record: SplitRecord) -> TokenSplit:
    files = [
        TokenFile(
            path=path / shard.name,
            header_bytes=layout.header_bytes,
            tokens=shard.tokens,
            dtype=layout.dtype,
            layout=layout,
        )
        for shard in record.shards
    ]
    for file in files:
        check_size(file.path, file.file_bytes)
    return TokenSplit(name, files, _own_documents(path, record), _own_learnt(path, record))


def _own_documents(path: Path, record: SplitRecord) -> StoredDocuments | None:
    if record.index is None:
        return None
    index_path = path / record.index.name
    check_size(index_path, NPY_HEADER_BYTES + 8 * record.index.documents)
    return StoredDocuments(path=index_path, count=record.index.documents)


def _own_learnt(path: Path, record: SplitRecord) -> LearntBits | None:
    if record.learnt is None:
        return None
    learnt_path = path / record.learnt.name
    check_learnt_size(learnt_path, record.tokens)
    return LearntBits(learnt_path, record.tokens)


def _open_peer(path: Path, tokenizer: TokenizerRecord | None) -> Dataset:
    for name in map(learnt_name, SPLITS):
        if (path / name).exists():  # taken for a peer's, every token would be learnt, unnoticed
            raise VerificationError(
                f"{path} holds {name} but no {MANIFEST_NAME}: it is no longer whole",
                remedy=f"put {MANIFEST_NAME} back from a copy, or make the dataset again",
            )
    vocabulary_size = tokenizer.vocabulary_size if tokenizer else None
    found = find_peer_splits(path, vocabulary_size)
    end_of_text = tokenizer.end_of_text if tokenizer else None
    placement = _seen_placement(found[0], end_of_text)
    splits = {peer.name: _peer_split(peer, end_of_text, placement) for peer in found}
    return Dataset(
        path=path,
        format=found[0].format,
        splits=splits,
        manifest=None,
        tokenizer=tokenizer,
        eot=placement,
    )


def _peer_split(peer: PeerSplit, end_of_text: int | None, placement: Placement) -> TokenSplit:
    split = TokenSplit(peer.name, peer.files)
    if peer.index:
        split.documents = MegatronDocuments(index=peer.index, tokens=split.tokens)
    elif end_of_text is not None:
        split.documents = ScannedDocuments(
            split.stream, tokens=split.tokens, end_of_text=end_of_text, placement=placement
        )
    return split


def _seen_placement(peer: PeerSplit, end_of_text: int | None) -> Placement:
    """It begins with the token, or ends with it; if both or neither, the format's habit decides."""
    habit: Placement = "start" if peer.format == "llmc" else "end"
    split = TokenSplit(peer.name, peer.files)
    if end_of_text is None or not split.tokens:
        return habit
    first = int(next(split.stream(0, 1))[0]) == end_of_text
    last = int(next(split.stream(split.tokens - 1, split.tokens))[0]) == end_of_text
    if first == last:
        return habit
    return "start" if first else "end"
