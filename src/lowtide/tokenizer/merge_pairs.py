"""Learn merges from counted words: find the commonest pair of neighbours, make it one symbol, again and again.

    "low" ×5, "lower" ×2, "lowest" ×1     l o w   l o w e r   l o w e s t
    (l, o) and (o, w) came 8 times each; the smaller pair wins a tie
    l o → lo                              lo w    lo w e r    lo w e s t
    lo w → low                            low     low e r     low e s t

The words lie in cells (see native/merger.h), equal words counted once, and each merge visits only the places
where its pair stands. `reference_train.py` is the same thing as plainly as it can be said.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.errors import DoesNotFitError, VerificationError
from lowtide.native import MergerSettings, Step, load_native
from lowtide.storage.publish import reserve, storage_errors
from lowtide.tokenizer.byte_pairs import bytes_in_order
from lowtide.tokenizer.merge_room import MergeAllowances, spend_on_merges, spend_with_file
from lowtide.tokenizer.reference_train import Ties
from lowtide.units import round_up_to_mib

Steps: TypeAlias = npt.NDArray[np.void]
STEP = np.dtype(Step)
"""One merge: its two tokens, the count it was chosen for, how many tokens the corpus has less for it, and
how many of its words became a single token. Tokens are numbered: the 256 bytes in the order of their ids, then
one for each merge."""

_SLICE_STEPS = 1024
_SLICE_PLACES = 8_000_000
"""Places looked at between two looks at the clock: about a tenth of a second."""
_COPY_SYMBOLS = 1 << 18


class Status(IntEnum):
    """Why the compiled loop came back."""

    ROOM_IS_FULL = 0
    TARGET_REACHED = 1
    NO_PAIR_LEFT = 2
    CELLS_TOO_NARROW = 3
    OUT_OF_MEMORY = 4
    LISTS_TOO_SMALL = 5


_GO_ON = (Status.ROOM_IS_FULL, Status.CELLS_TOO_NARROW, Status.LISTS_TOO_SMALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """What decides the merges."""

    most_merges: int
    min_frequency: int = 1
    ties: Ties = "huggingface"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordClasses:
    """Which counts the words have, the highest first, how many words have each and how many cells they fill."""

    counts: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]
    cells: npt.NDArray[np.uint64]
    alphabet: bytes
    """The bytes that occur in words of two bytes or more, in the order of their ids."""

    @property
    def words_with_pairs(self) -> int:
        """Words of the text that have two bytes or more, each as often as it comes."""
        return sum(
            count * words
            for count, words in zip(self.counts.tolist(), self.words.tolist(), strict=True)
        )

    @property
    def cell_count(self) -> int:
        """One before the first word, and one behind each."""
        return 1 + int(self.cells.sum())


def _first_cells(classes: WordClasses) -> npt.NDArray[np.uint64]:
    ends = np.cumsum(classes.cells, dtype=np.uint64) + np.uint64(1)
    return np.concatenate([np.ones(1, np.uint64), ends])[:-1]


def read_classes(words: npt.NDArray[np.uint8]) -> WordClasses:
    """Walk over a run of words once. Words of a single byte have no pair and are left out."""
    native = load_native()
    damaged = ctypes.c_int()
    found = native.lt_classes_of(words.ctypes.data, words.size, damaged)
    if not found and not damaged.value:
        raise MemoryError("no memory for the counts of words")
    if not found:
        raise VerificationError(
            "the counted words are damaged", remedy="pass `--restart` to count them again"
        )
    total = native.lt_classes_total(found)
    counts = np.empty(total, np.int64)
    words_of, cells = np.empty(total, np.uint64), np.empty(total, np.uint64)
    seen = np.empty(256, np.uint8)
    addresses = (array.ctypes.data for array in (counts, words_of, cells, seen))
    native.lt_classes_list(found, *addresses)
    native.lt_classes_free(found)
    order = np.argsort(-counts, kind="stable")
    return WordClasses(
        counts=counts[order],
        words=words_of[order],
        cells=cells[order],
        alphabet=bytes(byte for byte in bytes_in_order() if seen[byte]),
    )


class MergeLearner:
    """Learns merges slice by slice. Use it in a `with`: its memory goes when that ends."""

    def __init__(
        self,
        words: npt.NDArray[np.uint8],
        classes: WordClasses,
        settings: MergeSettings,
        *,
        allowance_bytes: int,
        folder: Path,
    ) -> None:
        """`words` is a run; `folder` takes cells that do not fit into memory."""
        self._native = load_native()
        self._allowance_bytes = allowance_bytes
        self._most_symbols = len(classes.alphabet) + settings.most_merges
        self._alphabet = classes.alphabet
        self._folder = folder
        self.merges = 0
        self.is_exhausted = False
        """Whether no pair is left that comes often enough."""
        self.allowances = spend_on_merges(
            classes.cell_count, len(classes.alphabet), self._most_symbols, allowance_bytes
        )
        self._counts = classes.counts
        self._ends = _first_cells(classes)
        self._cells = self._make_cells(classes.cell_count, self.allowances)
        self._lay(words, self._ends + classes.cells)
        self._handle: int | None = self._start(classes, settings)

    def __enter__(self) -> MergeLearner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._native.lt_merger_free(self._handle)
        self._handle = None
        self._cells = np.empty(0, np.uint8)  # lets go of the file, if they are mapped
        for path in self._folder.glob("cells*.tmp"):
            path.unlink()

    @property
    def recounts(self) -> int:
        """How often all pairs were counted anew; once is the least."""
        return int(self._native.lt_merger_recounts(self._handle))

    def learn(self, merges: int) -> Iterator[Steps]:
        """Merges, up to `merges` in all since the beginning; fewer when it is exhausted before."""
        target = min(len(self._alphabet) + merges, self._most_symbols)
        room = np.empty(_SLICE_STEPS, STEP)
        made = ctypes.c_uint64()
        status = Status.ROOM_IS_FULL
        while status in _GO_ON:
            status = Status(
                self._native.lt_merger_run(
                    self._handle, target, _SLICE_PLACES, room.ctypes.data, room.size, made
                )
            )
            self.merges += made.value
            yield self._numbered(room[: made.value])
            if status is Status.CELLS_TOO_NARROW:
                self._lay_anew(in_file=False)
            if status is Status.LISTS_TOO_SMALL:
                self._refuse_if_in_file()
                self._lay_anew(in_file=True)
        self.is_exhausted = status is Status.NO_PAIR_LEFT
        if status is Status.OUT_OF_MEMORY:
            raise MemoryError("no memory for learning merges")

    def _refuse_if_in_file(self) -> None:
        if self.allowances.cells_in_file:
            most_bytes = len(self._cells) * 4
            raise DoesNotFitError(
                "a single pair of bytes stands at more places than the budget has room for",
                remedy=f"pass a `--memory` that is {round_up_to_mib(most_bytes)} larger",
            )

    def _numbered(self, steps: Steps) -> Steps:
        """Symbols are counted from 1 over the bytes that occur; tokens from 0 over all 256."""
        numbers = {byte: number for number, byte in enumerate(bytes_in_order())}
        known = np.array([numbers[byte] for byte in self._alphabet], np.uint32)
        result = steps.copy()
        for side in ("left", "right"):
            symbols = steps[side].astype(np.int64) - 1
            made = symbols - len(known) + 256
            letters = known[np.minimum(symbols, len(known) - 1)]
            result[side] = np.where(symbols < len(known), letters, made)
        return result

    def _make_cells(
        self, count: int, allowances: MergeAllowances
    ) -> npt.NDArray[np.unsignedinteger]:
        dtype = np.dtype(f"u{allowances.bits // 8}")
        if not allowances.cells_in_file:
            return np.zeros(count + 1, dtype)
        path = self._path(allowances)
        with storage_errors(path), path.open("wb") as file:
            reserve(file.fileno(), (count + 1) * dtype.itemsize)
        return np.memmap(path, dtype, "r+", shape=(count + 1,))

    def _path(self, allowances: MergeAllowances) -> Path:
        """One name for each width: a file that is mapped must not be written anew."""
        return self._folder / f"cells{allowances.bits}.tmp"

    def _lay(self, words: npt.NDArray[np.uint8], ends: npt.NDArray[np.uint64]) -> None:
        symbols = np.zeros(256, np.uint16)
        for number, byte in enumerate(self._alphabet, start=1):
            symbols[byte] = number
        whole = self._native.lt_lay_words(
            words.ctypes.data,
            words.size,
            self._counts.ctypes.data,
            self._ends.ctypes.data,
            ends.ctypes.data,
            self._counts.size,
            symbols.ctypes.data,
            self._cells.ctypes.data,
            self.allowances.bits,
        )
        if not whole:
            raise VerificationError(
                "the counted words are damaged", remedy="pass `--restart` to count them again"
            )

    def _start(self, classes: WordClasses, settings: MergeSettings) -> int:
        alphabet = np.frombuffer(classes.alphabet, np.uint8)
        native_settings = MergerSettings(
            ties=settings.ties == "greatest",
            bits=self.allowances.bits,
            min_frequency=settings.min_frequency,
            cells=self._cells.ctypes.data,
            cell_count=classes.cell_count,
            class_ends=self._ends.ctypes.data,
            class_counts=self._counts.ctypes.data,
            class_total=self._counts.size,
            alphabet=alphabet.ctypes.data,
            alphabet_size=alphabet.size,
            most_symbols=self._most_symbols,
            pair_slots=self.allowances.pair_slots,
            list_room=self.allowances.list_room,
        )
        handle: int | None = self._native.lt_merger_new(ctypes.byref(native_settings))
        if not handle:
            raise MemoryError("no memory for learning merges")
        return handle

    def _lay_anew(self, *, in_file: bool) -> None:
        """Lay the words into other cells, by way of a file: the two do not fit side by side."""
        native = self._native
        count = int(native.lt_merger_close_up(self._handle))
        symbol_count = len(self._alphabet) + self.merges
        slots = [self.allowances.pair_slots]
        most_symbols, allowance_bytes = self._most_symbols, self._allowance_bytes
        if in_file:
            allowances = spend_with_file(count, most_symbols, allowance_bytes, slot_counts=slots)
        else:
            allowances = spend_on_merges(
                count, symbol_count, most_symbols, allowance_bytes, slot_counts=slots
            )
        dtype = np.dtype(f"u{allowances.bits // 8}")
        path = self._path(allowances)
        with storage_errors(path), path.open("wb") as file:
            self._copy_cells(file, dtype)
        self._cells = np.empty(0, np.uint8)
        if allowances.cells_in_file:
            self._cells = np.memmap(path, dtype, "r+", shape=(count + 1,))
        else:
            self._cells = np.fromfile(path, dtype)
            path.unlink()
        self.allowances = allowances
        if not native.lt_merger_use_cells(
            self._handle, self._cells.ctypes.data, allowances.bits, count, allowances.list_room
        ):
            raise MemoryError("no memory for learning merges")

    def _copy_cells(self, file: BinaryIO, dtype: np.dtype[np.unsignedinteger]) -> None:
        symbols = np.empty(_COPY_SYMBOLS, np.uint32)
        at = ctypes.c_uint64(0)
        while written := self._native.lt_merger_copy(
            self._handle, at, symbols.ctypes.data, symbols.size
        ):
            file.write(symbols[:written].astype(dtype).tobytes())
        file.write(bytes(dtype.itemsize))  # behind the last word one cell more is read
