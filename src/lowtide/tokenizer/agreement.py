"""Do the fast encoder and the reference give the same ids on this input? Asked once per run."""

from __future__ import annotations

import numpy as np

from lowtide.tokenizer.encode import Encoder, EncodeSettings
from lowtide.tokenizer.reference import make_reference

SAMPLE_BYTES = 128 * 1024


def find_disagreement(encoder: Encoder, settings: EncodeSettings, text: bytes) -> bytes | None:
    """The first piece of the sample on which the ids differ; None when all are the same."""
    reference = make_reference(settings.vocabulary, settings.special_in_text, settings.marks)
    for piece in sample_pieces(text, settings.delimiter):
        if not np.array_equal(reference.encode(piece), encoder.encode(piece, document_count=0).ids):
            return piece
    return None


def sample_pieces(text: bytes, delimiter: bytes) -> list[bytes]:
    """The documents in the first `SAMPLE_BYTES` of the text; of one that goes on behind them, the front.

    Both encoders see a piece as a document of its own, so where it was cut out of one does not matter.
    """
    pieces = text[:SAMPLE_BYTES].split(delimiter)
    pieces[-1] = pieces[-1].decode(errors="ignore").encode()  # half a character at the cut
    return [piece for piece in pieces if piece]


def first_difference(left: np.ndarray, right: np.ndarray) -> int:
    """The first index at which two arrays differ, or where the shorter one ends."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter
