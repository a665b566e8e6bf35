"""Which documents are kept for validation: a pure function of each document's text.

Order-free and unbiased, and two equal documents never land on both sides. Only the first 64 KiB count, so
that the side of a document is known when its first block is read, however long it is.
"""

from __future__ import annotations

import numpy as np
import xxhash

from lowtide.source.blocks import FIRST_PIECE_BYTES

HASHED_BYTES = FIRST_PIECE_BYTES  # a document's first block always holds that many


def held_out_documents(
    text: bytes, *, delimiter: bytes, fraction: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each piece of `text` between delimiters is kept for validation; the last piece is unfinished.

    The flag of a piece that only continues a document from the block before has no meaning.
    """
    if fraction <= 0:
        return np.zeros(text.count(delimiter) + 1, dtype=np.bool_)
    pieces = text.split(delimiter)
    hashes = (xxhash.xxh3_64_intdigest(piece[:HASHED_BYTES]) for piece in pieces)
    keys = np.fromiter(hashes, dtype=np.uint64, count=len(pieces))
    return keys < np.uint64(int(fraction * 2**64))
