"""Tokens into text while they come."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from lowtide.errors import UsageError
from lowtide.tokenizer.tokenizer import Tokenizer

_CONTEXT_TOKENS = 8
_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()


def decode_stream(tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[str]:
    """Text as soon as its last byte is known: a character may be spread over several tokens.

    An id that the tokenizer does not know, which a model may still predict, becomes `�`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    seen: list[int] = []
    for token in ids:
        text = decoder.decode(_bytes_after(tokenizer, seen, token))
        if text:
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _bytes_after(tokenizer: Tokenizer, seen: list[int], token: int) -> bytes:
    """What a token adds to those seen, the last few of which are kept.

    It is not decoded alone: in some tokenizers the first token of a text loses its blank.
    """
    before = tokenizer.decode_bytes(seen)
    try:
        after = tokenizer.decode_bytes([*seen, token])
    except UsageError:
        return _UNKNOWN
    seen[:] = [*seen[-_CONTEXT_TOKENS:], token]
    return after[len(before) :]
