"""TokenDataset: tokens on disk as batches, exact and in the same order on every machine.

train = TokenDataset("tokens", context=1024)
x, y = train.batch(0, 32)                   # numpy, int64, (32, 1024)
for x, y in train.loader(32, rank=0):       # torch
    ...
train[0]                                    # a window of the first epoch, as DataLoader asks for it
"""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal, overload

from lowtide.dataset.batches import ArrayPool, BatchReader, check_arrays
from lowtide.dataset.document_ids import Borders, IndexedBorders, PieceBorders, TokenBorders
from lowtide.dataset.find_tokens import (
    count_targets,
    digest_documents,
    digest_loss_mask,
    digest_tokens,
    find_tokens,
    stored_documents,
)
from lowtide.dataset.items import TrainerItems, WindowItems
from lowtide.dataset.order import Numbers
from lowtide.dataset.pack_documents import DocumentWindows
from lowtide.dataset.schedule import ReadAhead, Schedule
from lowtide.dataset.settings import (
    IGNORE_INDEX,
    LAST_POSITION,
    OrderKind,
    Settings,
    WindowKind,
    check_position,
    whole,
)
from lowtide.dataset.windows import ContiguousWindows, Windows
from lowtide.errors import LowtideError, UsageError
from lowtide.settings import Format
from lowtide.shards.documents import DocumentIndex, ScannedDocuments
from lowtide.shards.layout import TokenFile
from lowtide.shards.manifest import DatasetManifest, ExamplesRecord, TokenizerRecord
from lowtide.shards.stamps import StampedFiles, changed
from lowtide.shards.token_pieces import make_copier
from lowtide.units import format_count

if TYPE_CHECKING:
    from lowtide.dataset.describe import LoaderFacts
    from lowtide.dataset.loader import Loader


def need_torch(
    why: str = "a loader gives torch tensors",
    *,
    instead: str = ", or use `batch`, which gives numpy arrays",
) -> None:
    """Raise UsageError if torch is not installed; does not load it."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"{why}, and torch is not installed", remedy=f"`pip install 'lowtide[train]'`{instead}"
        )


class TokenDataset:
    """The windows of one split. Batch k is a pure function of (dataset, seed, k).

    `path` is a folder of lowtide, or files of nanoGPT, llm.c, Megatron or numpy. `context` is the length of a
    window. `windows="document"` never lets a target cross a document, and is the default for examples, whose
    targets are limited to their loss mask. `order="sequential"` is for evaluation. `val_fraction` takes the
    validation split from the end of files that have none. `tokenizer` supplies what a peer's files do not
    say: the vocabulary, and where documents end.
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        context: int = 1024,
        seed: int = 0,
        *,
        windows: WindowKind | None = None,
        order: OrderKind = "shuffled",
        val_fraction: float | None = None,
        tokenizer: str | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        self.settings = Settings(
            path=str(Path(path).absolute()),  # the program may change its folder
            split=split,
            context=whole("context", context),
            seed=whole("seed", seed),
            windows="contiguous" if windows is None else windows,
            order=order,
            val_fraction=val_fraction,
            tokenizer=_absolute_if_file(tokenizer),
            ignore_index=whole("ignore_index", ignore_index),
        )
        self._found = find_tokens(self.settings)
        if windows is None and self._found.split.loss_mask is not None:
            self.settings = replace(self.settings, windows="document")
        self._lock, self._process = threading.Lock(), os.getpid()
        self._index_stamp: StampedFiles | None = None
        self._windows = self._cut()
        shuffled = order == "shuffled"
        self._schedule = Schedule(self._windows, seed=self.settings.seed, shuffled=shuffled)
        scattered = shuffled or self.settings.windows == "document"
        self._copier = make_copier(self.files, scattered=scattered)
        self._reader = BatchReader(self._copier, self._found, self.settings)
        self._read_ahead = ReadAhead(self._fetch, context=self.context) if scattered else None
        self._borders: Borders | None = None
        self._pool = ArrayPool()

    @property
    def context(self) -> int:
        """Tokens in a window."""
        return self.settings.context

    @property
    def tokens(self) -> int:
        """Tokens of the split, or of the share of it that `val_fraction` selects."""
        return self._found.tokens

    @property
    def window_count(self) -> int:
        """Windows in an epoch."""
        return self._windows.count

    @property
    def windows(self) -> Windows:
        """How the stream is cut into windows."""
        return self._windows

    @property
    def files(self) -> tuple[TokenFile, ...]:
        """The files of the split, in order."""
        return self._found.split.files

    @property
    def format(self) -> Format:
        """The format of the files."""
        return self._found.dataset.format

    @property
    def tokenizer(self) -> TokenizerRecord | None:
        """The tokenizer that made the tokens; None if neither the files nor the caller name it."""
        return self._found.dataset.tokenizer

    @property
    def document_count(self) -> int | None:
        """Documents of the whole split; None if only a scan could count them."""
        documents = self._found.split.documents
        unknown = documents is None or isinstance(documents, ScannedDocuments)
        return None if unknown else self._found.split.document_count

    @property
    def manifest(self) -> DatasetManifest | None:
        """What `lowtide.json` says; None for a peer's files."""
        return self._found.dataset.manifest

    @property
    def examples(self) -> ExamplesRecord | None:
        """How examples were turned into tokens; None for text."""
        return self.manifest.examples if self.manifest else None

    @property
    def learnt_tokens(self) -> int | None:
        """Tokens that are targets by the loss mask; None for text. Costs a pass if a `val_fraction` is set."""
        return count_targets(self._found)

    @property
    def padding_share(self) -> float:
        """Share of padding among all positions of an epoch's windows."""
        return 1 - self._windows.tokens / (self.window_count * self.context)

    @overload
    def batch(self, k: int, batch_size: int) -> tuple[Numbers, Numbers]: ...

    @overload
    def batch(
        self, k: int, batch_size: int, *, documents: Literal[True]
    ) -> tuple[Numbers, Numbers, Numbers]: ...

    def batch(self, k: int, batch_size: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """Batch `k`: tokens `x` and targets `y`, int64 arrays of `batch_size` rows.

        A batch may cross the end of an epoch into the next one. With `documents`, a third array numbers the
        documents in each row. The caller may keep or change the arrays.
        """
        count = whole("batch_size", batch_size, at_least=1)
        return self.read(whole("k", k, at_least=0) * count, count, documents=documents)

    def read(self, first: int, count: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """The windows at positions `first` up to `first + count` of the endless order."""
        count = whole("count", count, at_least=1)
        arrays = self._pool.take(3 if documents else 2, count, self.context)
        self.fill(first, arrays)
        return arrays

    def fill(self, first: int, arrays: tuple[Numbers, ...]) -> None:
        """Read windows from position `first` on into contiguous int64 arrays: x, y and perhaps documents."""
        first = check_position(first, len(arrays[0]))
        check_arrays(arrays, self.context)
        if not len(arrays[0]):
            return
        with self._own_lock():
            rows = self._schedule.rows(first, len(arrays[0]))
            ids = arrays[2] if len(arrays) > 2 else None
            borders = self._known_borders() if ids is not None else None
            started = perf_counter()
            self._reader.fill(rows, arrays[0], arrays[1], borders=borders, ids=ids)
            if self._index_stamp is not None:
                self._index_stamp.check([0])
            if self._read_ahead is not None:
                self._read_ahead.after(first, len(arrays[0]), perf_counter() - started)

    def epoch(self, batch_size: int, *, epoch: int = 0) -> Iterator[tuple[Numbers, Numbers]]:
        """Every window of one epoch once, as evaluation needs them; the last batch may be short."""
        number = whole("epoch", epoch, at_least=0)
        return self._epoch(whole("batch_size", batch_size, at_least=1), number)

    def _epoch(self, batch_size: int, epoch: int) -> Iterator[tuple[Numbers, Numbers]]:
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
        need_torch()
        from lowtide.dataset.loader import Loader

        return Loader(
            self,
            batch_size,
            rank=rank,
            world_size=world_size,
            start=start,
            stop=None if epochs is None else self._window_count_of(epochs),
            device=device,
            prefetch=prefetch,
            documents=documents,
        )

    def _window_count_of(self, epochs: float) -> int:
        if not 0 < epochs < float("inf"):
            raise UsageError(
                f"`epochs` is {epochs}, not a number above 0",
                remedy="pass `epochs=1`, or None for no end",
            )
        return max(1, round(epochs * self.window_count))

    def __len__(self) -> int:
        """Windows in an epoch."""
        return self.window_count

    def __getitem__(self, index: int) -> tuple[Numbers, Numbers]:
        """Window `index` of the first epoch, `(x, y)`: `torch.utils.data.DataLoader(dataset)` works."""
        return self.items()[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Numbers, Numbers]]:
        """Several windows at once, as newer DataLoaders ask."""
        return self.items().__getitems__(indices)

    def items(self, *, epochs: int = 1, start: int = 0) -> WindowItems:
        """One window per item, `(x, y)`, for DataLoader: `epochs` in a row, from position `start` on."""
        return WindowItems(self, first=start, stop=whole("epochs", epochs) * self.window_count)

    def trainer_items(self, *, epochs: int = 1, start: int = 0) -> TrainerItems:
        """One window per item, `input_ids` and `labels`, for the Hugging Face Trainer."""
        return TrainerItems(self, first=start, stop=whole("epochs", epochs) * self.window_count)

    def describe(self) -> LoaderFacts:
        """Facts about the data and the memory it takes; print it."""
        from lowtide.dataset.describe import describe

        return describe(self)

    def order_run(self, first: int, count: int) -> tuple[Numbers, Numbers]:
        """Epoch and number of the windows at positions `first` up to `first + count`; reads nothing."""
        return self._schedule.numbers(first, count)

    def identity(self) -> dict[str, str | int | float | None]:
        """What must be unchanged when training resumes; part of every `state_dict`."""
        found: dict[str, str | int | float | None] = {
            "tokens": self.tokens,
            "digest": digest_tokens(self._found),
            "split": self.settings.split,
            "val_fraction": self.settings.val_fraction,
            "context": self.context,
            "seed": self.settings.seed,
            "windows": self.settings.windows,
            "order": self.settings.order,
            "documents": digest_documents(self._found)
            if self.settings.windows == "document"
            else None,
        }
        if self._found.split.loss_mask is not None:  # no key for text: old runs must resume
            found["learnt"] = digest_loss_mask(self._found)
        return found

    def __repr__(self) -> str:
        named = self.settings
        return (
            f"<TokenDataset {named.path} {named.split}: {format_count(self.tokens)} tokens, {len(self):,} "
            f"{named.windows} windows of {self.context}, {named.order}, seed {named.seed}>"
        )

    def close(self) -> None:
        """Release the files; reading again opens them again."""
        with self._own_lock():
            self._copier.close()

    def __reduce__(self) -> tuple[object, tuple[Settings, list[tuple[int, int]]]]:
        """A worker process opens the files itself, and checks that they are still the same."""
        return _open_again, (self.settings, self._copier.file_times())

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
        return DocumentWindows(
            self._find_documents(), start=found.start, tokens=found.tokens, context=context
        )

    def _find_documents(self) -> DocumentIndex:
        """The index, stamped from now on: if it is rewritten, windows must not move silently."""
        index = self._found.split.documents
        path = index.path if index is not None else None
        self._index_stamp = StampedFiles([path]) if path is not None else None
        documents, temporary = stored_documents(self._found)
        if temporary is not None:
            weakref.finalize(self, _remove, temporary, os.getpid())
        return documents

    def _own_lock(self) -> threading.Lock:
        """The lock, or a new one in a forked process: the parent's may have been held during the fork."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        return self._lock

    def _fetch(self, first: int, count: int) -> None:
        if first + count <= LAST_POSITION:
            with suppress(LowtideError):  # reading those windows will raise it
                self._copier.fetch(self._schedule.peek(first, count).pieces)

    def _known_borders(self) -> Borders:
        if self._borders is None:
            split, tokenizer = self._found.split, self.tokenizer
            if self.settings.windows == "document":
                self._borders = PieceBorders()
            elif isinstance(split.documents, ScannedDocuments) and tokenizer is not None:
                assert tokenizer.end_of_text is not None, "documents were found by it"
                self._borders = TokenBorders(
                    end_of_text=tokenizer.end_of_text, placement=self._found.dataset.eot
                )
            else:
                self._borders = IndexedBorders(self._find_documents())
        return self._borders


def _absolute_if_file(tokenizer: str | None) -> str | None:
    """Make a path independent of the folder that a worker process starts in."""
    if tokenizer is None or not Path(tokenizer).exists():
        return tokenizer
    return str(Path(tokenizer).absolute())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child ends too, and its parent still reads the file
        path.unlink(missing_ok=True)


def _open_again(settings: Settings, file_times: list[tuple[int, int]]) -> TokenDataset:
    opened = TokenDataset(**asdict(settings))
    now_times = opened._copier.file_times()
    for file, before, now in zip(opened.files, file_times, now_times, strict=True):
        if before != now:
            raise changed(file.path)
    return opened
