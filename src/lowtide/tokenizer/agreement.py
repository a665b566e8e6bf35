"""Do the fast encoder and the reference give the same ids on this input? Asked once per run."""

from __future__ import annotations

import numpy as np

from lowtide.errors import VerificationError
from lowtide.tokenizer.encode import Encoder, EncodeSettings
from lowtide.tokenizer.reference import make_reference

SAMPLE_BYTES = 128 * 1024


def check_agreement(encoder: Encoder, settings: EncodeSettings, text: bytes) -> int:
    """Compare ids on the first documents of a block; returns how many bytes were compared.

    The sample ends at a document's end where there is one, else where the block ends: only there is the
    reference sure to see what the fast encoder sees.
    """
    if not encoder.is_fast:
        return 0
    documents = sample_documents(text, settings.delimiter)
    reference = make_reference(settings.vocabulary, settings.special_in_text, settings.marks)
    for document in documents:
        expected = reference.encode(document)
        got = encoder.encode(document, document_count=0).ids
        if not np.array_equal(expected, got):
            at = first_difference(expected, got)
            raise VerificationError(
                f"gigatoken and the reference disagree on this input at token {at} of a document that "
                f"begins {document[:60]!r}",
                remedy="report this text with the tokenizer; install the versions of gigatoken, tiktoken "
                "and tokenizers that lowtide asks for",
            )
    return sum(len(document) for document in documents)


def sample_documents(text: bytes, delimiter: bytes) -> list[bytes]:
    """Whole documents from the front of a block, about `SAMPLE_BYTES` of them, at least one."""
    *documents, rest = text.split(delimiter)
    if not documents:
        return [rest] if len(rest) <= 8 * SAMPLE_BYTES else []
    chosen: list[bytes] = []
    total = 0
    for document in documents:
        if chosen and total + len(document) > SAMPLE_BYTES:
            break
        chosen.append(document)
        total += len(document)
    return chosen if total <= 8 * SAMPLE_BYTES else []


def first_difference(left: np.ndarray, right: np.ndarray) -> int:
    """The first index at which two arrays differ, or where the shorter one ends."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter
