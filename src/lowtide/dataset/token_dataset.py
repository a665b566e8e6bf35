"""TokenDataset: tokens on disk as batches, exact and in the same order for everyone.

train = TokenDataset("tokens", context=1024)
x, y = train.batch(0, 32)                   # numpy, int64, (32, 1024)
for x, y in train.loader(32, rank=0):       # torch
    ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import xxhash

from lowtide.dataset.batches import ArrayPool, BatchReader, Borders, Targets
from lowtide.dataset.document_ids import IndexedBorders, TokenBorders
from lowtide.dataset.find_tokens import FoundTokens, find_tokens, stored_documents
from lowtide.dataset.items import TrainerItems, WindowItems
from lowtide.dataset.order import Numbers
from lowtide.dataset.pack_documents import DocumentWindows
from lowtide.dataset.schedule import Schedule
from lowtide.dataset.windows import ContiguousWindows, Windows
from lowtide.errors import UsageError
from lowtide.shards.documents import ScannedDocuments
from lowtide.shards.layout import Format
from lowtide.shards.manifest import TokenizerRecord
from lowtide.shards.payload import read_exactly
from lowtide.shards.peers import TokenFile
from lowtide.shards.token_pieces import make_copier

if TYPE_CHECKING:
    from lowtide.dataset.describe import LoaderFacts
    from lowtide.dataset.loader import Loader

WindowKind = Literal["contiguous", "document"]
OrderKind = Literal["shuffled", "sequential"]
IGNORE_INDEX = -100
"""What `torch.nn.functional.cross_entropy` leaves out unless it is told otherwise."""
LARGEST_CONTEXT = 1 << 24
_LOOKED_AT_BYTES = 4096
_LOOKED_AT_FILES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides what a dataset gives; two equal ones give the same batches."""

    path: str
    split: str
    context: int
    seed: int
    windows: WindowKind
    order: OrderKind
    val_fraction: float | None
    tokenizer: str | None
    ignore_index: int


class TokenDataset:
    """The windows of one split. Batch k is a pure function of (dataset, seed, k).

    `path` is a folder of lowtide, or what nanoGPT, llm.c, Megatron or numpy left. `context` is the length of a
    window. `windows="document"` never lets a target cross a document; `order="sequential"` is for
    evaluation. `val_fraction` holds out the end of files that have no split of their own. `tokenizer`
    tells what a peer's files do not: the vocabulary, and where documents end.
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        context: int = 1024,
        seed: int = 0,
        *,
        windows: WindowKind = "contiguous",
        order: OrderKind = "shuffled",
        val_fraction: float | None = None,
        tokenizer: str | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        self.settings = Settings(
            path=os.fspath(path),
            split=split,
            context=context,
            seed=seed,
            windows=windows,
            order=order,
            val_fraction=val_fraction,
            tokenizer=tokenizer,
            ignore_index=ignore_index,
        )
        _check(self.settings)
        self._found = find_tokens(path, split, val_fraction=val_fraction, tokenizer=tokenizer)
        self._index_file: object = None
        self._windows = self._cut()
        self._schedule = Schedule(self._windows, seed=seed, shuffled=order == "shuffled")
        scattered = order == "shuffled" or windows == "document"
        self._reader = BatchReader(
            make_copier(self.files, scattered=scattered), dtype=self.files[0].dtype, context=context
        )
        self._targets = self._choose_targets()
        self._borders: Borders | None = None
        self._pool = ArrayPool()

    @property
    def context(self) -> int:
        """Tokens in a window."""
        return self.settings.context

    @property
    def tokens(self) -> int:
        """Tokens of the split, or of the share of it that was asked for."""
        return self._found.tokens

    @property
    def window_count(self) -> int:
        """Windows in an epoch."""
        return self._windows.count

    @property
    def windows(self) -> Windows:
        """How the stream is cut."""
        return self._windows

    @property
    def files(self) -> tuple[TokenFile, ...]:
        """The files of the split, in order."""
        return self._found.split.files

    @property
    def format(self) -> Format:
        """How the tokens lie on disk."""
        return self._found.dataset.format

    @property
    def tokenizer(self) -> TokenizerRecord | None:
        """None where neither the files nor the caller name it."""
        return self._found.dataset.tokenizer

    @property
    def document_count(self) -> int | None:
        """Documents of the whole split, where an index knows them without a scan."""
        documents = self._found.split.documents
        unknown = documents is None or isinstance(documents, ScannedDocuments)
        return None if unknown else self._found.split.document_count

    @overload
    def batch(self, k: int, batch_size: int) -> tuple[Numbers, Numbers]: ...

    @overload
    def batch(
        self, k: int, batch_size: int, *, documents: Literal[True]
    ) -> tuple[Numbers, Numbers, Numbers]: ...

    def batch(self, k: int, batch_size: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """Batch `k`: tokens `x` and targets `y`, int64 arrays of `batch_size` rows.

        Batches go on over the end of an epoch into the next one. With `documents`, a third array numbers the
        documents in each row. Arrays are the caller's to keep or change.
        """
        if k < 0 or batch_size < 1:
            raise UsageError(
                f"there is no batch {k} of {batch_size} windows",
                remedy="batches count from 0 and hold at least one window",
            )
        return self.read(k * batch_size, batch_size, documents=documents)

    def read(self, first: int, count: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """The windows at positions `first` up to `first + count` of the endless order."""
        arrays = self._pool.take(3 if documents else 2, count, self.context)
        self.fill(first, arrays)
        return arrays

    def fill(self, first: int, arrays: tuple[Numbers, ...]) -> None:
        """The same into arrays at hand (contiguous, int64): x, y and, where there is a third, documents."""
        rows = self._schedule.rows(first, len(arrays[0]))
        ids = arrays[2] if len(arrays) > 2 else None
        borders = self._known_borders() if ids is not None else None
        self._reader.fill(rows, self._targets, arrays[0], arrays[1], borders=borders, ids=ids)

    def epoch(self, batch_size: int, *, epoch: int = 0) -> Iterator[tuple[Numbers, Numbers]]:
        """Every window of one epoch once; the last batch may be short. What evaluation wants."""
        first, stop = epoch * self.window_count, (epoch + 1) * self.window_count
        for at in range(first, stop, batch_size):
            x, y = self.read(at, min(batch_size, stop - at))
            yield x, y

    def loader(
        self,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        epochs: float | None = None,
        device: str | None = None,
        prefetch: int = 2,
        documents: bool = False,
    ) -> Loader:
        """torch tensors, read ahead by a thread; needs torch. `batch_size` counts all ranks' windows.

        Endless without `epochs`. `start` is a position in windows, as `Loader.state_dict` keeps it.
        """
        from lowtide.dataset.loader import Loader

        return Loader(
            self,
            batch_size,
            rank=rank,
            world_size=world_size,
            start=start,
            stop=None if epochs is None else round(epochs * self.window_count),
            device=device,
            prefetch=prefetch,
            documents=documents,
        )

    def items(self, *, epochs: int = 1, start: int = 0) -> WindowItems:
        """One window an item, `(x, y)`, for `torch.utils.data.DataLoader(..., shuffle=False)`."""
        return WindowItems(self, first=start, stop=epochs * self.window_count)

    def trainer_items(self, *, epochs: int = 1, start: int = 0) -> TrainerItems:
        """One window an item, `input_ids` and `labels`, for the Hugging Face Trainer."""
        return TrainerItems(self, first=start, stop=epochs * self.window_count)

    def describe(self) -> LoaderFacts:
        """What a loader will see and hold; print it."""
        from lowtide.dataset.describe import describe

        return describe(self)

    def order_run(self, first: int, count: int) -> tuple[Numbers, Numbers]:
        """Epoch and number of the windows at positions `first` up to `first + count`; reads nothing."""
        return self._schedule.numbers(first, count)

    def identity(self) -> dict[str, str | int | float | None]:
        """What a resumed run must find unchanged; part of every `state_dict`."""
        return {
            "tokens": self.tokens,
            "digest": _digest(self._found),
            "split": self.settings.split,
            "val_fraction": self.settings.val_fraction,
            "context": self.context,
            "seed": self.settings.seed,
            "windows": self.settings.windows,
            "order": self.settings.order,
        }

    def close(self) -> None:
        """Let go of the files; reading again opens them again."""
        self._reader.close()

    def __reduce__(self) -> tuple[object, tuple[Settings]]:
        """A worker process opens the files by itself."""
        return _open_again, (self.settings,)

    def _cut(self) -> Windows:
        found, context = self._found, self.context
        if self.settings.windows == "contiguous":
            return ContiguousWindows(
                start=found.start,
                tokens=found.tokens,
                context=context,
                seed=self.settings.seed,
                shifted=self.settings.order == "shuffled",
            )
        documents, self._index_file = stored_documents(found.split)
        return DocumentWindows(documents, start=found.start, tokens=found.tokens, context=context)

    def _choose_targets(self) -> Targets:
        tokenizer, ignore_index = self.tokenizer, self.settings.ignore_index
        end_of_text = tokenizer.end_of_text if tokenizer else None
        # Where end-of-text stands in front of documents, a document's last token still learns that it ends.
        learns_end = self.settings.windows == "document" and self._found.dataset.eot == "start"
        return Targets(
            ignore_index=ignore_index,
            closing=end_of_text if learns_end and end_of_text is not None else ignore_index,
            vocabulary_size=tokenizer.vocabulary_size if tokenizer else None,
        )

    def _known_borders(self) -> Borders:
        if self._borders is None:
            split, tokenizer = self._found.split, self.tokenizer
            if isinstance(split.documents, ScannedDocuments) and tokenizer is not None:
                assert tokenizer.end_of_text is not None, "documents were found by it"
                self._borders = TokenBorders(
                    end_of_text=tokenizer.end_of_text, placement=self._found.dataset.eot
                )
            else:
                self._borders = IndexedBorders(stored_documents(split)[0])
        return self._borders


def _open_again(settings: Settings) -> TokenDataset:
    return TokenDataset(
        settings.path,
        settings.split,
        settings.context,
        settings.seed,
        windows=settings.windows,
        order=settings.order,
        val_fraction=settings.val_fraction,
        tokenizer=settings.tokenizer,
        ignore_index=settings.ignore_index,
    )


def _check(settings: Settings) -> None:
    if not 1 <= settings.context <= LARGEST_CONTEXT:
        raise UsageError(
            f"a context of {settings.context} tokens is out of range",
            remedy=f"pass one of 1 to {LARGEST_CONTEXT}",
        )
    if settings.windows not in ("contiguous", "document"):
        raise UsageError(
            f"there are no {settings.windows!r} windows",
            remedy="pass `windows='contiguous'` or `windows='document'`",
        )
    if settings.order not in ("shuffled", "sequential"):
        raise UsageError(
            f"there is no {settings.order!r} order",
            remedy="pass `order='shuffled'` or `order='sequential'`",
        )


def _digest(found: FoundTokens) -> str:
    """Of the manifest's digests; for a peer's files, of their sizes and both ends of some of them."""
    manifest = found.dataset.manifest
    state = xxhash.xxh3_128()
    if manifest is not None:
        for name, record in manifest.splits.items():
            if name == found.split.name:
                state.update("".join(shard.digest for shard in record.shards).encode())
        return state.hexdigest()
    files = found.split.files
    state.update(",".join(str(file.tokens) for file in files).encode())
    for file in files[:: -(-len(files) // _LOOKED_AT_FILES)]:
        length = min(_LOOKED_AT_BYTES, file.tokens * file.dtype.itemsize)
        state.update(read_exactly(file.path, file.header_bytes, length))
        state.update(read_exactly(file.path, file.file_bytes - length, length))
    return state.hexdigest()
