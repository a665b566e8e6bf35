"""Small vocabularies that were really learnt, for tests that need one of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

from lowtide.settings import PatternName, Ties
from lowtide.tokenizer.byte_pairs import BytePairs, bytes_in_order
from lowtide.tokenizer.reference_train import train_reference
from lowtide.tokenizer.split_words import split_words_reference
from tests.corpora import make_documents

END_OF_TEXT = "<|endoftext|>"


def learn(
    texts: Sequence[str],
    *,
    pattern: PatternName = "gpt2",
    merge_count: int = 300,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    ties: Ties = "huggingface",
) -> BytePairs:
    """Byte pairs learnt from texts by the plain trainer; ids as it gives them."""
    parts = [part for text in texts for part in _without(text, special_tokens)]
    words = Counter(
        word.encode() for part in parts for word in split_words_reference(part, pattern)
    )
    special = {name: number for number, name in enumerate(special_tokens)}
    tokens = {bytes([byte]): len(special) + rank for rank, byte in enumerate(bytes_in_order())}
    merges: list[tuple[bytes, bytes]] = []
    size = len(special) + 256 + merge_count
    steps = train_reference(words, vocabulary_size=size, special_count=len(special), ties=ties)
    by_id = {number: token for token, number in tokens.items()}
    for step in steps:
        pair = (by_id[step.left], by_id[step.right])
        by_id[step.made] = pair[0] + pair[1]
        merges.append(pair)
    return BytePairs(
        pattern=pattern,
        special_tokens=special,
        tokens={token: number for number, token in sorted(by_id.items())},
        merges=tuple(merges),
    )


@cache
def learnt(pattern: PatternName, special_tokens: tuple[str, ...] = (END_OF_TEXT,)) -> BytePairs:
    """400 merges from documents in many scripts; the same values for every caller."""
    documents = make_documents(3, count=12)
    return learn(documents, pattern=pattern, merge_count=400, special_tokens=special_tokens)


def _without(text: str, special_tokens: Sequence[str]) -> list[str]:
    """What lies between special tokens: they are never learnt from."""
    longest_first = sorted(special_tokens, key=len, reverse=True)
    return re.split("|".join(map(re.escape, longest_first)), text) if special_tokens else [text]
