"""Of examples only the answers are learnt: every other target is silenced, by the bits beside the shards.

tokens      user  hi   assistant  hello  end
learnt       0    0       0         1     1
targets           ·       ·       hello  end        the bit of the target counts, not of what it follows
"""

from __future__ import annotations

import numpy as np

from lowtide.dataset.find_tokens import FoundTokens, proven_learnt
from lowtide.dataset.order import Numbers
from lowtide.dataset.settings import Settings
from lowtide.dataset.windows import Rows
from lowtide.shards.learnt import BitArray, LearntBits
from lowtide.shards.stamps import StampedFiles


class LearntTargets:
    """Silences what is not learnt, for one thread at a time. Holds a flag for each token of one batch."""

    def __init__(self, bits: LearntBits, *, context: int, ignore_index: int) -> None:
        self._bits = bits
        self._context = context
        self._ignore_index = ignore_index
        self._stamp = StampedFiles([bits.path])
        self._flags: BitArray = np.zeros((0, context + 1), dtype=np.bool_)

    def silence(self, rows: Rows, y: Numbers) -> None:
        """Every target of `y` whose bit is 0 becomes `ignore_index`."""
        if len(self._flags) != len(y):
            self._flags = np.zeros((len(y), self._context + 1), dtype=np.bool_)
        pieces = rows.pieces
        found = self._bits.read_pieces(pieces.starts, pieces.counts)
        before = np.cumsum(pieces.counts) - pieces.counts
        places = np.arange(len(found)) + np.repeat(pieces.places - before, pieces.counts)
        self._flags.reshape(-1)[places] = (
            found  # what no piece covers is padding, and silent already
        )
        self._stamp.check([0])
        np.copyto(y, self._ignore_index, where=~self._flags[:, 1:])


def find_learnt(found: FoundTokens, settings: Settings) -> LearntTargets | None:
    """For the tokens that were found, whose bits are proven first; None for text."""
    bits = proven_learnt(found)
    if bits is None:
        return None
    return LearntTargets(bits, context=settings.context, ignore_index=settings.ignore_index)
