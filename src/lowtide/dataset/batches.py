"""Windows into `x` and `y`: read raw tokens, widen them, ignore positions without a target.

Arrays are reused: fresh memory would cost more than filling it, because the kernel clears every page of it
first (175 µs against 12 for a batch of 32 × 1,024).
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np

from lowtide.dataset.document_ids import PADDING, Borders
from lowtide.dataset.find_tokens import FoundTokens, verified_loss_mask
from lowtide.dataset.order import Numbers
from lowtide.dataset.settings import Settings
from lowtide.dataset.windows import Rows
from lowtide.errors import DoesNotFitError, UsageError, VerificationError
from lowtide.shards.layout import LARGEST_VOCABULARY, TokenArray
from lowtide.shards.loss_mask import BitArray, LossMask
from lowtide.shards.stamps import StampedFiles
from lowtide.shards.token_pieces import Copier
from lowtide.units import format_bytes


class ArrayPool:
    """Lends int64 arrays whose memory returns by itself when the last view of them is dropped."""

    def __init__(self) -> None:
        self._recent: deque[bytearray] = deque()
        """What was lent, in this order; free again once it is not in `_lent`."""
        self._lent: dict[int, weakref.ref[Numbers]] = {}

    def take(self, arrays: int, rows: int, columns: int) -> tuple[Numbers, ...]:
        """Some arrays of equal shape, with arbitrary contents."""
        memory = self._take_memory(8 * arrays * rows * columns)
        flat: Numbers = np.frombuffer(memory, dtype=np.int64)
        key = id(memory)
        # Every view that numpy or torch makes of `flat` keeps `flat` itself alive, and so the memory.
        # The callback is C alone: Python swallows a Ctrl-C that comes while it runs Python code there.
        self._lent[key] = weakref.ref(flat, partial(self._lent.pop, key))
        self._recent.append(memory)
        return tuple(flat.reshape(arrays, rows, columns))

    def _take_memory(self, wanted_bytes: int) -> bytearray:
        for _ in range(len(self._recent)):
            try:
                memory = self._recent.popleft()
            except IndexError:  # another thread took the last one
                break
            if id(memory) in self._lent:
                self._recent.append(memory)
            elif len(memory) == wanted_bytes:
                return memory
        try:
            return bytearray(wanted_bytes)
        except (MemoryError, OverflowError) as cause:
            raise DoesNotFitError(
                f"there is no memory for a batch of {format_bytes(wanted_bytes)}",
                remedy="ask for fewer windows at a time, or for shorter ones",
            ) from cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The targets at positions that no token follows, and what an id must stay below."""

    ignore_index: int
    """Target of padding, and of a position that nothing follows."""
    closing: int
    """Target at a document's last token: `ignore_index`, or end-of-text if that comes first."""
    vocabulary_size: int
    """Every id must be smaller."""


def choose_targets(found: FoundTokens, settings: Settings) -> Targets:
    """The targets of a dataset: with end-of-text in front of documents, it is still the last token's target.

    For an example, the loss mask decides that.
    """
    tokenizer = found.dataset.tokenizer
    end_of_text = tokenizer.end_of_text if tokenizer else None
    by_document = settings.windows == "document" and found.split.loss_mask is None
    learns_end = by_document and found.dataset.eot == "start"
    return Targets(
        ignore_index=settings.ignore_index,
        closing=end_of_text if learns_end and end_of_text is not None else settings.ignore_index,
        vocabulary_size=tokenizer.vocabulary_size if tokenizer else LARGEST_VOCABULARY,
    )


class MaskedTargets:
    """Ignores targets outside the loss mask, for one thread at a time. Holds one flag per token of a batch.

    tokens      user  hi   assistant  hello  end
    mask         0    0       0         1     1
    targets           ·       ·       hello  end        the bit of the target counts, not of what it follows
    """

    def __init__(self, mask: LossMask, settings: Settings) -> None:
        self._mask = mask
        self._context = settings.context
        self._ignore_index = settings.ignore_index
        self._stamp = StampedFiles([mask.path])
        self._flags: BitArray = np.zeros((0, self._context + 1), dtype=np.bool_)

    def apply(self, rows: Rows, y: Numbers) -> None:
        """Set every target of `y` whose bit is 0 to `ignore_index`."""
        if len(self._flags) != len(y):
            self._flags = np.zeros((len(y), self._context + 1), dtype=np.bool_)
        pieces = rows.pieces
        found = self._mask.read_pieces(pieces.starts, pieces.counts)
        before = np.cumsum(pieces.counts) - pieces.counts
        places = np.arange(len(found)) + np.repeat(pieces.places - before, pieces.counts)
        # What no piece covers is padding, and ignored already.
        self._flags.reshape(-1)[places] = found
        self._stamp.check([0])
        np.copyto(y, self._ignore_index, where=~self._flags[:, 1:])


class BatchReader:
    """Reads rows of one stream, for one thread at a time. Holds the raw tokens of one batch."""

    def __init__(self, copier: Copier, found: FoundTokens, settings: Settings) -> None:
        self._copier = copier
        self._targets = choose_targets(found, settings)
        mask = verified_loss_mask(found)
        self._masked = MaskedTargets(mask, settings) if mask else None
        self._raw: TokenArray = np.zeros((0, settings.context + 1), found.split.files[0].dtype)

    def fill(
        self,
        rows: Rows,
        x: Numbers,
        y: Numbers,
        *,
        borders: Borders | None = None,
        ids: Numbers | None = None,
    ) -> None:
        """Fill `x` and `y` (and `ids`), each contiguous and as wide as the context."""
        targets = self._targets
        largest = None
        if rows.filled is None and borders is None:
            largest = self._copier.widen(rows.pieces, x, y)
        if largest is None:
            raw = self._copy_raw(rows, len(x))
            np.copyto(x, raw[:, :-1])
            np.copyto(y, raw[:, 1:])
            if ids is not None and borders is not None:
                borders.fill(ids, rows, raw)
            largest = int(raw.max())
        if largest >= targets.vocabulary_size:
            raise VerificationError(
                f"id {largest} is beyond the vocabulary of {targets.vocabulary_size}",
                remedy="name the tokenizer that made the tokens, or see `lowtide verify`",
            )
        if rows.closing.size:
            y.reshape(-1)[rows.closing] = targets.closing
        if rows.silent.size:
            y.reshape(-1)[rows.silent] = targets.ignore_index
        if rows.filled is not None:
            _pad(rows.filled, targets.ignore_index, x, y, ids)
        if self._masked is not None:
            self._masked.apply(rows, y)

    def _copy_raw(self, rows: Rows, count: int) -> TokenArray:
        """The raw tokens of `count` rows of any kind."""
        if len(self._raw) != count:
            self._raw = np.zeros((count, self._raw.shape[1]), dtype=self._raw.dtype)
        self._raw[:] = 0  # padding must not hold an id of the batch before
        self._copier.copy(rows.pieces, self._raw.reshape(-1))
        return self._raw


def _pad(filled: Numbers, ignore_index: int, x: Numbers, y: Numbers, ids: Numbers | None) -> None:
    for row in np.flatnonzero(filled < x.shape[1]).tolist():
        at = int(filled[row])
        x[row, at:] = 0
        y[row, at:] = ignore_index
        if ids is not None:
            ids[row, at:] = PADDING


def check_arrays(arrays: tuple[Numbers, ...], context: int) -> None:
    """Raise UsageError unless the arrays can be written to by address: another shape would overrun them."""
    wanted = (len(arrays[0]), context)
    for one in arrays:
        plain = one.dtype == np.int64 and one.flags.c_contiguous and one.flags.writeable
        if not plain or one.shape != wanted:
            raise UsageError(
                f"an array of {one.dtype} and shape {one.shape} cannot be filled",
                remedy=f"pass writeable, contiguous int64 arrays of shape {wanted}",
            )
