"""Byte-pair encoding in plain Python: what the fast encoder does, in dictionaries and lists.

    "low lower"  ->  "low", " lower"                   the pattern cuts words
    "lower"      ->  l o w e r                         a word begins as single bytes
                 ->  lo w e r -> low e r -> low er     the pair that was learnt first is merged first
                 ->  ids of "low" and "er"

It is slow (a word costs the square of its length) and trusted: tests compare every other encoder with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from lowtide.tokenizer.byte_pairs import BytePairs
from lowtide.tokenizer.split_words import split_words_reference

Pair = tuple[bytes, bytes]


def encode_plainly(text: str, pairs: BytePairs) -> list[int]:
    """The ids of a text in which the names of special tokens are ordinary text."""
    ranks = {pair: rank for rank, pair in enumerate(pairs.merges)}
    return [
        pairs.tokens[token]
        for word in split_words_reference(text, pairs.pattern)
        for token in merge_word(word.encode(), ranks)
    ]


def encode_with_special_tokens(text: str, pairs: BytePairs) -> list[int]:
    """The ids of a text in which every special token, the longest first, becomes its own id."""
    if not pairs.special_tokens:
        return encode_plainly(text, pairs)
    longest_first = sorted(pairs.special_tokens, key=len, reverse=True)
    special = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
    ids: list[int] = []
    for number, part in enumerate(special.split(text)):  # text, special token, text, …
        ids += [pairs.special_tokens[part]] if number % 2 else encode_plainly(part, pairs)
    return ids


def merge_word(word: bytes, ranks: Mapping[Pair, int]) -> list[bytes]:
    """The tokens of a word: of all neighbours, the pair with the lowest rank is merged, the leftmost first.

    >>> merge_word(b"aaab", {(b"a", b"a"): 0, (b"a", b"b"): 1})
    [b'aa', b'ab']
    """
    parts = [word[place : place + 1] for place in range(len(word))]
    while True:
        known = [
            (ranks[pair], place) for place, pair in enumerate(pairwise(parts)) if pair in ranks
        ]
        if not known:
            return parts
        _rank, place = min(known)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
