"""Learn merges from counted words: find the commonest pair of neighbours, make it one symbol, again and again.

    "low" ×5, "lower" ×2, "lowest" ×1     l o w   l o w e r   l o w e s t
    (l, o) and (o, w) occur 8 times each; the smaller pair wins a tie
    l o → lo                              lo w    lo w e r    lo w e s t
    lo w → low                            low     low e r     low e s t

The words lie in cells (see native/merger.h), equal words counted once, and each merge visits only the places
of its pair. `reference_train.py` is the plain version. How an allowance of memory is spent stands at the end:

    words as cells │ a table of pairs, and a queue │ lists of places
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.errors import DoesNotFitError, VerificationError
from lowtide.native import MergerSettings, Step, load_native
from lowtide.settings import Ties
from lowtide.storage.publish import reserve, storage_errors
from lowtide.tokenizer.byte_pairs import bytes_in_order
from lowtide.units import MIB, format_bytes, round_up_to_mib

Steps: TypeAlias = npt.NDArray[np.void]
STEP = np.dtype(Step)
"""One merge: its two tokens, the count it was chosen for, how many tokens the corpus has less after it, and
how many of the corpus's words became a single token. Tokens are numbered: the 256 bytes in the order of their
ids, then one for each merge."""

_SLICE_STEPS = 1024
_SLICE_PLACES = 8_000_000
"""Number of places visited in one call of the C code: about a tenth of a second."""
_COPY_SYMBOLS = 1 << 18

_MOST_CELLS = (1 << 32) - 1
_PAIR_BYTES = 16 + 12
"""A slot in the table of pairs, and half an entry in the queue."""
_RECOUNT_BYTES = 24 + 12
"""Needed in addition for each slot while pairs are recounted."""
_LEAST_PAIR_SLOTS, _MANY_PAIR_SLOTS = 1 << 16, 1 << 20
_CELLS_A_SLOT = 64
"""A table that stays in the processor's cache is faster; if it is too small, pairs have to be recounted."""
_SYMBOL_BYTES = 192
_WRITTEN_BYTES = 1000
"""Needed for each token while files are written: as bytes, as text, in two JSON files."""
_PLACE_BYTES = 4
_PLACES_A_CELL = 3
"""More are never needed: one for each cell at first, two for each merge."""
_GOOD_PLACES_A_CELL, _FEW_PLACES_A_CELL, _LEAST_PLACES_A_CELL = 0.25, 0.04, 0.02
"""With fewer than the first, pairs are recounted more often; the commonest pair of bytes stands at up to a
twentieth of all places."""
_MORE_PLACES = 1024
_SYMBOLS_BY_BITS = {8: 239, 16: (1 << 16) - 65, 32: (1 << 31) - 1}


class Status(IntEnum):
    """Why the C code returned; the same names as in native/merger.h."""

    ROOM_IS_FULL = 0
    TARGET_REACHED = 1
    NO_PAIR_LEFT = 2
    CELLS_TOO_NARROW = 3
    OUT_OF_MEMORY = 4
    LISTS_TOO_SMALL = 5


_UNFINISHED = (Status.ROOM_IS_FULL, Status.CELLS_TOO_NARROW, Status.LISTS_TOO_SMALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """The settings that decide the merges."""

    most_merges: int
    min_frequency: int = 1
    ties: Ties = "huggingface"


@dataclass(frozen=True, slots=True, kw_only=True)
class WordClasses:
    """The counts that words have, highest first, with the number of words and of cells for each count."""

    counts: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]
    cells: npt.NDArray[np.uint64]
    alphabet: bytes
    """The bytes that occur in words of two bytes or more, in the order of their ids."""

    @property
    def words_with_pairs(self) -> int:
        """Number of words in the text that have two bytes or more."""
        return sum(
            count * words
            for count, words in zip(self.counts.tolist(), self.words.tolist(), strict=True)
        )

    @property
    def cell_count(self) -> int:
        """The cells of all words, with an empty one before the first word and one behind each."""
        return 1 + int(self.cells.sum())


def read_classes(words: npt.NDArray[np.uint8]) -> WordClasses:
    """Read the classes in one pass over a file of words. Words of one byte have no pair and are left out."""
    native = load_native()
    damaged = ctypes.c_int()
    found = native.lt_classes_of(words.ctypes.data, words.size, damaged)
    if not found and not damaged.value:
        raise MemoryError("no memory for the counts of words")
    if not found:
        raise _damaged_words()
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


def _damaged_words() -> VerificationError:
    return VerificationError(
        "the counted words are damaged", remedy="pass `--restart` to count them again"
    )


class MergeLearner:
    """Learns merges slice by slice. Use it in a `with` statement, which frees its memory at the end."""

    def __init__(
        self,
        words: npt.NDArray[np.uint8],
        classes: WordClasses,
        settings: MergeSettings,
        *,
        allowance_bytes: int,
        folder: Path,
    ) -> None:
        """`words` is the content of a file of words; `folder` takes cells that do not fit into memory."""
        self._native = load_native()
        self._allowance_bytes = allowance_bytes
        self._most_symbols = len(classes.alphabet) + settings.most_merges
        self._alphabet = classes.alphabet
        self._folder = folder
        self.merges = 0
        self.is_exhausted = False
        """Whether no pair is left that is frequent enough."""
        self.allowances = spend_on_merges(
            classes.cell_count, len(classes.alphabet), self._most_symbols, allowance_bytes
        )
        self._counts = classes.counts
        cells_before = np.cumsum(classes.cells, dtype=np.uint64) - classes.cells
        self._ends = cells_before + np.uint64(1)
        self._cells = self._make_cells(classes.cell_count, self.allowances)
        self._lay(words, self._ends + classes.cells)
        self._handle: int | None = self._start(classes, settings)

    def __enter__(self) -> MergeLearner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._native.lt_merger_free(self._handle)
        self._handle = None
        self._cells = np.empty(0, np.uint8)  # unmaps the file, if there is one
        for path in self._folder.glob("cells*.tmp"):
            path.unlink()

    @property
    def recounts(self) -> int:
        """How often all pairs were counted; at least once."""
        return int(self._native.lt_merger_recounts(self._handle))

    def learn(self, merges: int) -> Iterator[Steps]:
        """Learn until there are `merges` merges since the beginning, or no pair is frequent enough."""
        target = min(len(self._alphabet) + merges, self._most_symbols)
        slice_steps = np.empty(_SLICE_STEPS, STEP)
        made = ctypes.c_uint64()
        status = Status.ROOM_IS_FULL
        while status in _UNFINISHED:
            status = Status(
                self._native.lt_merger_run(
                    self._handle,
                    target,
                    _SLICE_PLACES,
                    slice_steps.ctypes.data,
                    slice_steps.size,
                    made,
                )
            )
            self.merges += made.value
            yield self._numbered(slice_steps[: made.value])
            if status is Status.CELLS_TOO_NARROW:
                self._move_cells(in_file=False)
            if status is Status.LISTS_TOO_SMALL:
                if self.allowances.cells_in_file:
                    more = round_up_to_mib(len(self._cells) * 4)
                    raise DoesNotFitError(
                        "a single pair of bytes occurs at more places than fit into the budget",
                        remedy=f"pass a `--memory` that is {more} larger",
                    )
                self._move_cells(in_file=True)
        self.is_exhausted = status is Status.NO_PAIR_LEFT
        if status is Status.OUT_OF_MEMORY:
            raise MemoryError("no memory for learning merges")

    def _numbered(self, steps: Steps) -> Steps:
        """The steps with tokens in place of symbols, which count from 1 and only the bytes that occur."""
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
        """The file for cells of this width: each width has its own, for a mapped file must not be rewritten."""
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
            raise _damaged_words()

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

    def _move_cells(self, *, in_file: bool) -> None:
        """Move the words into cells of another width, through a file: old and new do not fit side by side."""
        native, handle = self._native, self._handle
        count = int(native.lt_merger_close_up(handle))
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
            symbols = np.empty(_COPY_SYMBOLS, np.uint32)
            at = ctypes.c_uint64(0)
            while written := native.lt_merger_copy(handle, at, symbols.ctypes.data, symbols.size):
                file.write(symbols[:written].astype(dtype).tobytes())
            file.write(bytes(dtype.itemsize))  # one cell behind the last word is read
        self._cells = np.empty(0, np.uint8)
        if allowances.cells_in_file:
            self._cells = np.memmap(path, dtype, "r+", shape=(count + 1,))
        else:
            self._cells = np.fromfile(path, dtype)
            path.unlink()
        self.allowances = allowances
        if not native.lt_merger_use_cells(
            handle, self._cells.ctypes.data, allowances.bits, count, allowances.list_room
        ):
            raise MemoryError("no memory for learning merges")


# Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeAllowances:
    """How an allowance is spent on learning merges."""

    bits: int
    """Width of a cell."""
    cells_in_file: bool
    pair_slots: int
    list_room: int
    """Number of places that all lists together may hold."""
    needs: dict[str, int]


def spend_on_merges(
    cell_count: int,
    symbol_count: int,
    most_symbols: int,
    allowance_bytes: int,
    *,
    slot_counts: Sequence[int] = (),
) -> MergeAllowances:
    """The widest cells, tables and lists that fit into the allowance.

    Narrow cells are enough until there are 239 symbols. By then words are shorter, and wider cells may fit
    where they did not. Short lists cost time; cells in a mapped file cost far more and come last. `slot_counts`
    are the sizes to choose from for the table of pairs, once it can no longer be any size.
    """
    slot_counts = slot_counts or _slot_counts(cell_count, most_symbols)
    if cell_count > _MOST_CELLS:
        raise DoesNotFitError(
            f"the distinct words are {format_bytes(cell_count)} together, and merges can be learnt from "
            f"{format_bytes(_MOST_CELLS)} at most",
            remedy="leave out files of random or encoded data: ordinary text of a terabyte has fewer",
        )
    wide = 16 if most_symbols <= _SYMBOLS_BY_BITS[16] else 32
    widths = [wide, 8] if symbol_count < _SYMBOLS_BY_BITS[8] * 3 // 4 else [wide]
    for places_a_cell in (_GOOD_PLACES_A_CELL, _FEW_PLACES_A_CELL):
        for bits in widths:
            for slots in slot_counts:
                needs = _needs(most_symbols, slots) | {"words": cell_count * bits // 8}
                places = (allowance_bytes - sum(needs.values())) // _PLACE_BYTES
                if places >= cell_count * places_a_cell + _MORE_PLACES:
                    return _with_lists(bits, slots, places, cell_count, needs, in_file=False)
    return spend_with_file(cell_count, most_symbols, allowance_bytes, slot_counts=slot_counts)


def spend_with_file(
    cell_count: int, most_symbols: int, allowance_bytes: int, *, slot_counts: Sequence[int]
) -> MergeAllowances:
    """The largest tables and lists with the cells in a file: all memory that is left goes to the lists."""
    wide = 16 if most_symbols <= _SYMBOLS_BY_BITS[16] else 32
    for slots in slot_counts:
        needs = _needs(most_symbols, slots)
        places = (allowance_bytes - sum(needs.values())) // _PLACE_BYTES
        if places >= cell_count * _LEAST_PLACES_A_CELL + _MORE_PLACES:
            return _with_lists(wide, slots, places, cell_count, needs, in_file=True)
    raise _does_not_fit(cell_count, most_symbols, allowance_bytes)


def _needs(most_symbols: int, slots: int) -> dict[str, int]:
    return {
        "symbols": most_symbols * _SYMBOL_BYTES + MIB,
        "pairs": slots * (_PAIR_BYTES + _RECOUNT_BYTES),
    }


def _with_lists(
    bits: int, slots: int, places: int, cell_count: int, needs: dict[str, int], *, in_file: bool
) -> MergeAllowances:
    kept = min(places, _PLACES_A_CELL * cell_count + _MORE_PLACES, _MOST_CELLS)
    return MergeAllowances(
        bits=bits,
        cells_in_file=in_file,
        pair_slots=slots,
        list_room=kept,
        needs=needs | {"lists of places": kept * _PLACE_BYTES},
    )


def check_merge_room(most_merges: int, allowance_bytes: int) -> None:
    """Refuse a vocabulary that no corpus could teach in this allowance, before any words are counted."""
    symbols = 256 + most_merges
    spend_on_merges(symbols, 256, symbols, allowance_bytes)
    written = symbols * _WRITTEN_BYTES
    if written > allowance_bytes:
        raise DoesNotFitError(
            f"writing a vocabulary of {symbols} tokens needs {format_bytes(written)}, and "
            f"{format_bytes(allowance_bytes)} are left of the budget",
            remedy=f"pass a `--memory` that is {round_up_to_mib(written - allowance_bytes)} larger, or a "
            "smaller `--vocab-size`",
        )


def _slot_counts(cell_count: int, most_symbols: int) -> list[int]:
    """Sizes of the table of pairs to try, each half the one before. A merge may add two pairs a symbol."""
    least = _power_of_two(max(_LEAST_PAIR_SLOTS, 2 * min(most_symbols, cell_count)))
    many = min(max(4 * most_symbols, cell_count // _CELLS_A_SLOT), _MANY_PAIR_SLOTS)
    best = _power_of_two(max(least, many))
    return [best >> shift for shift in range((best // least).bit_length())]


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def _does_not_fit(cell_count: int, most_symbols: int, allowance_bytes: int) -> DoesNotFitError:
    least_slots = _slot_counts(cell_count, most_symbols)[-1]
    places = int(cell_count * _LEAST_PLACES_A_CELL) + _MORE_PLACES + 1
    least = sum(_needs(most_symbols, least_slots).values()) + places * _PLACE_BYTES
    more = round_up_to_mib(max(least - allowance_bytes, MIB))
    return DoesNotFitError(
        f"learning merges needs at least {format_bytes(least)}, and {format_bytes(allowance_bytes)} are "
        "left of the budget",
        remedy=f"pass a `--memory` that is {more} larger, or a smaller `--vocab-size`",
    )
