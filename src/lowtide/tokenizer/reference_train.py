"""The plain trainer, which defines the right merges.

    count every pair of neighbours │ merge the one that is most common, everywhere │ repeat

It is slow (200 KB of text take some seconds) and small. The fast trainer must take the same steps.

`tokenizers` keeps one queue entry and one set of words for each pair, never lowers the count of a pair by
its own merge, and looks for a token of the same bytes before it makes one. None of this can be seen in
its result, because **no token is made twice**. Let one place in the text become the token `s` in some
step, and another place with the same bytes in a later one. Borders between tokens vanish and never come
back, so both places had the borders around them from the start, and no merge ever reached across. Between
them the same merges happened at the same time: repeats of one token are paired from the left, and a border that
stays always lies between two pairs. So the other place became `s` in that same step, too. It follows:

- Each merge makes a new token, and all places of a pair come into being in one step, the one that
  makes the later of its halves. No pair is merged twice.
- From then on the count of a pair only falls. Counts of the steps taken never rise.
- No two pairs rank alike under either rule of ties, so the steps are determined.

One case is left out: a special token spelled like a byte or a learnt token. `tokenizers` gives both one id;
here special tokens only take up ids.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from lowtide.settings import Ties
from lowtide.tokenizer.byte_pairs import bytes_in_order

Pair = tuple[int, int]


class Step(NamedTuple):
    """One merge: every `left` before a `right` was replaced, with it, by `made`."""

    left: int
    right: int
    made: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, of which a step has no use
    """How often the pair occurred in all words; in `aaa` it counts twice and is merged once."""


def train_reference(
    word_counts: Mapping[bytes, int],
    *,
    vocabulary_size: int,
    special_count: int,
    min_frequency: int = 1,
    ties: Ties = "huggingface",
) -> list[Step]:
    """The merges by rank, until the vocabulary is full or no pair is as common as `min_frequency`.

    Ids are those of `byte_pairs`: special tokens, the 256 bytes (`e` is 68, `s` 82, `t` 83), merges.
    Here `es` and `st` are equally common, and the rule of ties decides:

    >>> words = {b"low": 5, b"lower": 2, b"widest": 3, b"newest": 6}
    >>> train_reference(words, vocabulary_size=257, special_count=0)
    [Step(left=68, right=82, made=256, count=9)]
    >>> train_reference(words, vocabulary_size=257, special_count=0, ties="greatest")
    [Step(left=82, right=83, made=256, count=9)]

    A step costs a look at every distinct pair and at every word that holds the chosen one.
    """
    tokens = {special_count + rank: bytes([byte]) for rank, byte in enumerate(bytes_in_order())}
    words = _Words(word_counts, id_of={token[0]: number for number, token in tokens.items()})
    steps: list[Step] = []
    for made in range(special_count + 256, vocabulary_size):
        count = max(words.pair_counts.values(), default=0)
        if count < max(1, min_frequency):
            break
        equals = [pair for pair, often in words.pair_counts.items() if often == count]
        left, right = _choose(equals, tokens, ties)
        tokens[made] = tokens[left] + tokens[right]
        words.merge((left, right), made)
        steps.append(Step(left, right, made, count))
    return steps


def merge_pair(word: Sequence[int], pair: Pair, made: int) -> list[int]:
    """The word with the pair replaced from left to right: three equal tokens are one pair and a rest.

    >>> merge_pair([7, 7, 7, 8, 7, 7], (7, 7), 9)
    [9, 7, 8, 9]
    """
    merged: list[int] = []
    position = 0
    while position < len(word):
        if tuple(word[position : position + 2]) == pair:
            merged.append(made)
            position += 2
        else:
            merged.append(word[position])
            position += 1
    return merged


def _choose(pairs: Iterable[Pair], tokens: Mapping[int, bytes], ties: Ties) -> Pair:
    if ties == "huggingface":
        return min(pairs)
    return max(pairs, key=lambda pair: (tokens[pair[0]], tokens[pair[1]]))


class _Words:
    """The distinct words as ids, with the counts of all pairs in them kept up to date."""

    def __init__(self, word_counts: Mapping[bytes, int], *, id_of: Mapping[int, int]) -> None:
        self._words = [[id_of[byte] for byte in word] for word in word_counts]
        self._times = list(word_counts.values())
        self._homes: defaultdict[Pair, set[int]] = defaultdict(set)
        self.pair_counts: Counter[Pair] = Counter()
        for number in range(len(self._words)):
            self._add_pairs(number)

    def merge(self, pair: Pair, made: int) -> None:
        """Replace the pair in every word; only words that hold it are touched."""
        for number in self._homes.pop(pair):
            self._remove_pairs(number)
            self._words[number] = merge_pair(self._words[number], pair, made)
            self._add_pairs(number)

    def _add_pairs(self, number: int) -> None:
        for pair in pairwise(self._words[number]):
            self.pair_counts[pair] += self._times[number]
            self._homes[pair].add(number)

    def _remove_pairs(self, number: int) -> None:
        for pair in pairwise(self._words[number]):
            self.pair_counts[pair] -= self._times[number]
            if not self.pair_counts[pair]:
                del self.pair_counts[pair]  # or every later step would look at it for nothing
