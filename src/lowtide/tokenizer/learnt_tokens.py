"""Make a block's loss mask: which tokens are learnt, given the spans of its bytes that are.

A token is learnt if it shares a byte with such a span. The places of tokens in the text follow from their
lengths alone, as long as their bytes laid end to end are the text:

    text     U s e r : _ h i \n A : _ y o      learnt: the bytes of "yo"
    tokens   |------|-|----|--|-|-|----|        the last one, " yo", has its space from the template

A tokenizer that changes the text (by a normalizer, or a space put in front) is refused beforehand.
"""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt

from lowtide.errors import SharedFaultError, UsageError
from lowtide.tokenizer import hugging_face
from lowtide.tokenizer.encode import EncodedBlock, EncodeSettings
from lowtide.tokenizer.vocabulary import Vocabulary

Lengths = npt.NDArray[np.uint32]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
PEAK_BYTES_PER_EXAMPLE_BYTE = 28
"""Held while a block's loss mask is made, at worst with a token a byte: the text and its ids (1 + 4), their
lengths (4) and ends (8), steps and their sum (4 + 4), and flags."""


def lengths_bytes(vocabulary: Vocabulary) -> int:
    """Memory of a table of token lengths."""
    return 4 * (vocabulary.size + 1)


def measure_tokens(settings: EncodeSettings) -> Lengths:
    """The number of bytes that each id stands for in a block; for a mark and the delimiter, of its spelling.

    UsageError for a tokenizer whose tokens do not add up to a text's bytes.
    """
    vocabulary = settings.vocabulary
    lengths = np.zeros(vocabulary.size + 1, dtype=np.uint32)
    if vocabulary.kind == "ranks":
        for line in io.BytesIO(vocabulary.content):  # one at a time: a list of them all is 10 MB
            if line.strip():
                token, rank = line.split()
                lengths[int(rank)] = len(base64.b64decode(token))
    else:
        file = hugging_face.read_file(vocabulary.content, name=vocabulary.name)
        if not hugging_face.keeps_bytes(file) or not isinstance(file.model.vocab, dict):
            raise UsageError(
                f"the tokenizer {vocabulary.name} changes text before it cuts it, so the text does not show "
                "which tokens belong to an answer",
                remedy="take a tokenizer without a normalizer, such as gpt2, or learn everything",
                setting="learn",
                value="all",
            )
        for text, number in file.model.vocab.items():
            lengths[number] = len(text)  # a letter stands for a byte
        for added in file.added_tokens:
            lengths[added.id] = len(added.content.encode())
    for mark, number in settings.marks.items():
        lengths[number] = len(mark.encode())
    lengths[settings.delimiter_id] = len(settings.delimiter)
    return lengths


def find_learnt(
    encoded: EncodedBlock, spans: npt.NDArray[np.int64], *, lengths: Lengths, text_bytes: int
) -> Flags:
    """The loss mask of a block of `text_bytes`: a flag for each id. Delimiters are never learnt."""
    token_ends = np.cumsum(
        lengths.take(encoded.ids, mode="clip"),  # clipped ids would not add up
        dtype=np.int32 if text_bytes < 1 << 31 else np.int64,
    )
    if (token_ends[-1] if len(token_ends) else 0) != text_bytes:
        raise SharedFaultError(
            "the bytes of the tokens do not add up to the text: this tokenizer leaves some out",
            remedy="take a tokenizer that knows every byte, or learn everything",
            setting="learn",
            value="all",
        )
    spans = spans[spans[:, 0] < spans[:, 1]]
    borders = np.empty(2 * len(spans) + 2, dtype=np.int64)
    borders[0], borders[-1] = 0, len(token_ends)
    borders[1:-1:2] = np.searchsorted(token_ends, spans[:, 0], side="right")
    borders[2:-1:2] = np.searchsorted(token_ends, spans[:, 1], side="left") + 1
    np.maximum.accumulate(borders, out=borders)  # a token may belong to two spans
    learnt: Flags = np.repeat(np.arange(len(borders) - 1) % 2 == 1, np.diff(borders))
    learnt[encoded.ends] = False
    return learnt
