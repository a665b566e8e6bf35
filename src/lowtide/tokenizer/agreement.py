"""Do the fast encoder and the reference give the same ids on this input? Asked once per run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from lowtide.tokenizer.encode import Encoder, EncodeSettings
from lowtide.tokenizer.reference import make_reference

SAMPLE_BYTES = 128 * 1024
_LEAST_HALVED_BYTES = 64


def find_disagreement(
    encoder: Encoder, settings: EncodeSettings, pieces: Iterable[bytes]
) -> bytes | None:
    """The first of the sampled pieces on which the ids differ; None when all are the same."""
    reference = make_reference(settings.vocabulary, settings.special_in_text, settings.marks)
    for piece in pieces:
        if not np.array_equal(reference.encode(piece), encoder.encode(piece, document_count=0).ids):
            return piece
    return None


def sample_pieces(encoder: Encoder, settings: EncodeSettings, text: bytes) -> list[bytes]:
    """The documents in the first `SAMPLE_BYTES` of the text; the last may be cut short.

    A document that the encoder leaves to the reference would compare the reference with itself: it is halved
    until only short pieces around the characters at fault are left out. Both encoders see a piece as a
    document of its own, so where it was cut does not matter.
    """
    documents = text[:SAMPLE_BYTES].split(settings.delimiter)
    documents[-1] = documents[-1].decode(errors="ignore").encode()  # half a character at the cut
    return [piece for document in documents for piece in _fast_pieces(encoder, document)]


def _fast_pieces(encoder: Encoder, text: bytes) -> Iterator[bytes]:
    """The pieces of a text that the encoder does not leave to the reference."""
    if not encoder.needs_reference(text):
        if text:
            yield text
    elif len(text) > _LEAST_HALVED_BYTES:
        middle = len(text) // 2
        while text[middle] & 0xC0 == 0x80:  # inside a character
            middle += 1
        yield from _fast_pieces(encoder, text[:middle])
        yield from _fast_pieces(encoder, text[middle:])


def first_difference(left: np.ndarray, right: np.ndarray) -> int:
    """The first index at which two arrays differ, or where the shorter one ends."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter
