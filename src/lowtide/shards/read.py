"""Open a dataset: a folder of ours, or the files of a peer.

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
from lowtide.settings import Format, Placement
from lowtide.shards.documents import DocumentIndex, ScannedDocuments, StoredDocuments
from lowtide.shards.layout import (
    MANIFEST_NAME,
    NPY_HEADER_BYTES,
    SPLITS,
    WORK_FOLDER,
    EndArray,
    ShardLayout,
    TokenArray,
    TokenFile,
    learnt_name,
    loss_mask_bytes,
)
from lowtide.shards.loss_mask import LossMask
from lowtide.shards.manifest import DatasetManifest, SplitRecord, TokenizerRecord, read_manifest
from lowtide.shards.payload import check_size, read_pieces, reading
from lowtide.shards.peers import PeerSplit, find_peer_splits
from lowtide.units import format_count

_OPEN_MAPS = 64
"""A map keeps a file descriptor: thousands of shards must not use them up."""


class TokenSplit:
    """One split's token stream over its files. Holds at most 64 maps and no tokens."""

    def __init__(self, name: str, files: Sequence[TokenFile]) -> None:
        self.name = name
        self.files = tuple(files)
        self.documents: DocumentIndex | None = None
        """None when nothing says where documents end."""
        self.loss_mask: LossMask | None = None
        """Which tokens of examples are targets; None for text, where all are."""
        self._stops = np.cumsum([file.tokens for file in self.files], dtype=np.int64)
        self._maps: OrderedDict[int, TokenArray] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Tokens over all files."""
        return int(self._stops[-1]) if self.files else 0

    def __repr__(self) -> str:
        return f"<TokenSplit {self.name}: {format_count(self.tokens)} tokens>"

    @property
    def document_count(self) -> int | None:
        """Number of documents; None when nothing says where they end."""
        if self.documents is None:
            return None if self.tokens else 0
        return self.documents.count

    def read(self, start: int, stop: int) -> TokenArray:
        """The tokens from `start` up to `stop`: a read-only view, or a copy if they lie in several files."""
        self._check_range(start, stop)
        parts = [self._map(number)[a:b] for number, a, b in self._pieces(start, stop)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=self._dtype)

    def stream(self, start: int = 0, stop: int | None = None) -> Iterator[TokenArray]:
        """The tokens from `start` up to `stop` in pieces of at most 8 MiB, read and not mapped.

        Every piece lies in the same buffer: use it before asking for the next.
        """
        stop = self.tokens if stop is None else stop
        self._check_range(start, stop)
        for number, a, b in self._pieces(start, stop):
            file = self.files[number]
            width = file.dtype.itemsize
            for piece in read_pieces(file.path, file.header_bytes + a * width, (b - a) * width):
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
        """The files that hold a range, each with its part of it, counted in the file: (number, from, to)."""
        for number, a, b in ranges_in_files(self._stops, start, stop):
            before = int(self._stops[number]) - self.files[number].tokens
            yield number, a - before, b - before

    def _map(self, number: int) -> TokenArray:
        """The tokens of one file as a read-only map; VerificationError if its size has changed."""
        if number not in self._maps:
            file = self.files[number]
            with reading(file.path), file.path.open("rb") as opened:
                check_size(file.path, file.file_bytes)
                self._maps[number] = np.memmap(
                    opened, file.dtype, "r", offset=file.header_bytes, shape=(file.tokens,)
                )
            if len(self._maps) > _OPEN_MAPS:
                self._maps.popitem(last=False)
        self._maps.move_to_end(number)
        return self._maps[number]


def ranges_in_files(stops: EndArray, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Cut a range of a stream at the ends of its files: (number of the file, from, to)."""
    number = int(np.searchsorted(stops, start, side="right"))
    while start < stop:
        until = min(stop, int(stops[number]))
        if until > start:
            yield number, start, until
        start = until
        number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """What was found at a path, ready to be read."""

    path: Path
    format: Format
    splits: Mapping[str, TokenSplit]
    manifest: DatasetManifest | None
    """None for a peer's files."""
    tokenizer: TokenizerRecord | None
    """The manifest's tokenizer, or the one named for a peer's files."""
    eot: Placement
    """Where the end-of-text token stands; for a peer's files, judged by the ends of the stream."""

    @property
    def files(self) -> list[TokenFile]:
        """The token files of all splits."""
        return [file for split in self.splits.values() for file in split.files]

    @property
    def tokens(self) -> int:
        """Tokens over all splits."""
        return sum(split.tokens for split in self.splits.values())

    def __repr__(self) -> str:
        splits = [f"{name} {format_count(one.tokens)}" for name, one in self.splits.items()]
        return f"<Dataset {self.path}: {self.format}, {', '.join(splits)} tokens>"


def open_dataset(path: Path, *, tokenizer: TokenizerRecord | None = None) -> Dataset:
    """Open the dataset at `path`. `tokenizer` supplies what a peer's files do not say.

    A peer's headerless files are read as uint16 unless the tokenizer needs more; with its
    end-of-text id, documents are found where no index names them.
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


def _open_own(path: Path, manifest: DatasetManifest) -> Dataset:
    return Dataset(
        path=path,
        format=manifest.layout.format,
        splits={
            name: _own_split(path, manifest.layout, name, record)
            for name, record in manifest.splits.items()
        },
        manifest=manifest,
        tokenizer=manifest.tokenizer,
        eot=manifest.eot,
    )


def _own_split(folder: Path, layout: ShardLayout, name: str, record: SplitRecord) -> TokenSplit:
    """A split as the manifest records it, once the size of every file is compared."""
    files = [
        TokenFile(
            path=folder / shard.name,
            header_bytes=layout.header_bytes,
            tokens=shard.tokens,
            dtype=layout.dtype,
            layout=layout,
        )
        for shard in record.shards
    ]
    for file in files:
        check_size(file.path, file.file_bytes)
    split = TokenSplit(name, files)
    if record.index:
        index_path, count = folder / record.index.name, record.index.documents
        check_size(index_path, NPY_HEADER_BYTES + 8 * count)
        split.documents = StoredDocuments(path=index_path, count=count)
    if record.learnt:
        mask_path = folder / record.learnt.name
        check_size(mask_path, NPY_HEADER_BYTES + loss_mask_bytes(record.tokens))
        split.loss_mask = LossMask(mask_path, record.tokens)
    return split


def _open_peer(path: Path, tokenizer: TokenizerRecord | None) -> Dataset:
    for name in map(learnt_name, SPLITS):
        if (path / name).exists():  # without its mask, every token would silently be a target
            raise VerificationError(
                f"{path} holds {name} but no {MANIFEST_NAME}: it is no longer whole",
                remedy=f"put {MANIFEST_NAME} back from a copy, or make the dataset again",
            )
    found = find_peer_splits(path, tokenizer.vocabulary_size if tokenizer else None)
    end_of_text = tokenizer.end_of_text if tokenizer else None
    placement = _seen_placement(found[0], end_of_text)
    return Dataset(
        path=path,
        format=found[0].format,
        splits={peer.name: _peer_split(peer, end_of_text, placement) for peer in found},
        manifest=None,
        tokenizer=tokenizer,
        eot=placement,
    )


def _peer_split(peer: PeerSplit, end_of_text: int | None, placement: Placement) -> TokenSplit:
    split = TokenSplit(peer.name, peer.files)
    if peer.index:
        split.documents = peer.index
    elif end_of_text is not None:
        split.documents = ScannedDocuments(
            split.stream, tokens=split.tokens, end_of_text=end_of_text, placement=placement
        )
    return split


def _seen_placement(peer: PeerSplit, end_of_text: int | None) -> Placement:
    """At which end of the stream end-of-text stands; if at both or neither, where the format has it."""
    habit: Placement = "start" if peer.format == "llmc" else "end"
    split = TokenSplit(peer.name, peer.files)
    if end_of_text is None or not split.tokens:
        return habit
    first = int(next(split.stream(0, 1))[0]) == end_of_text
    last = int(next(split.stream(split.tokens - 1, split.tokens))[0]) == end_of_text
    if first == last:
        return habit
    return "start" if first else "end"
