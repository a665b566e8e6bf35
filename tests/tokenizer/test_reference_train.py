"""The plain trainer takes the steps of `tokenizers`, and those of Stanford's CS336 under its rule of ties."""

from __future__ import annotations

import doctest
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from random import Random
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lowtide.settings import Ties
from lowtide.tokenizer import reference_train
from lowtide.tokenizer.byte_pairs import bytes_in_order, spell, unspell
from lowtide.tokenizer.reference_train import Step, train_reference
from tests.tokenizer.training_corpora import (
    HARD_TABLES,
    HUGE_COUNTS,
    WordCounts,
    few_letter_words,
    small_texts,
    utf8_words,
    word_counts,
)

RULES: tuple[Ties, ...] = get_args(Ties)
SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|user|>")
MERGES_ASKED_FOR = st.integers(0, 40) | st.just(100)
MIN_FREQUENCIES = st.sampled_from([0, 1, 2, 5])
BOTH_RULES = pytest.mark.parametrize("ties", RULES)
EVERY_HARD_TABLE = pytest.mark.parametrize("table", HARD_TABLES.values(), ids=HARD_TABLES.keys())
many_examples = settings(suppress_health_check=[*HealthCheck])

Merge = tuple[bytes, bytes]


def token_bytes(steps: list[Step], *, special_count: int) -> dict[int, bytes]:
    """The bytes of every id that is not a special token."""
    tokens = {special_count + rank: bytes([byte]) for rank, byte in enumerate(bytes_in_order())}
    for step in steps:
        tokens[step.made] = tokens[step.left] + tokens[step.right]
    return tokens


def merges_of(steps: list[Step]) -> list[Merge]:
    tokens = token_bytes(steps, special_count=0)
    return [(tokens[step.left], tokens[step.right]) for step in steps]


def in_json(steps: list[Step], special_tokens: tuple[str, ...]) -> dict[str, object]:
    """Vocabulary and merges as a tokenizer.json has them."""
    tokens = token_bytes(steps, special_count=len(special_tokens))
    vocabulary = {token: number for number, token in enumerate(special_tokens)}
    vocabulary |= {spell(token): number for number, token in tokens.items()}
    merges = [[spell(tokens[step.left]), spell(tokens[step.right])] for step in steps]
    return {"vocab": vocabulary, "merges": merges}


def learn_with_tokenizers(
    texts: Iterator[str],
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    *,
    vocabulary_size: int,
    special_tokens: tuple[str, ...] = (),
    min_frequency: int = 1,
) -> dict[str, object]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}


def spelled_lines(table: Mapping[bytes, int]) -> Iterator[str]:
    """Every word as often as it is counted, in stand-in letters: there is no newline among them."""
    return ("\n".join([spell(word)] * count) for word, count in table.items())


def assert_equals_tokenizers(
    table: WordCounts,
    *,
    merges_asked_for: int,
    special_tokens: tuple[str, ...] = (),
    min_frequency: int = 1,
) -> None:
    vocabulary_size = len(special_tokens) + 256 + merges_asked_for
    steps = train_reference(
        table,
        vocabulary_size=vocabulary_size,
        special_count=len(special_tokens),
        min_frequency=min_frequency,
    )
    assert in_json(steps, special_tokens) == learn_with_tokenizers(
        spelled_lines(table),
        pre_tokenizers.Split("\n", "removed"),
        vocabulary_size=vocabulary_size,
        special_tokens=special_tokens,
        min_frequency=min_frequency,
    )


def cs336_merges(table: Mapping[bytes, int], *, count: int, min_frequency: int) -> list[Merge]:
    """As in the assignment's text: tuples of bytes, everything counted anew for every merge."""
    words = {word: [word[i : i + 1] for i in range(len(word))] for word in table}
    merges: list[Merge] = []
    for _ in range(count):
        pairs: Counter[Merge] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += table[word]
        often, best = max(((n, pair) for pair, n in pairs.items()), default=(0, (b"", b"")))
        if often < max(1, min_frequency):
            break
        merges.append(best)
        for parts in words.values():
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                i += 1
    return merges


def train(table: Mapping[bytes, int], ties: Ties, *, merges_asked_for: int = 100) -> list[Step]:
    size = 256 + merges_asked_for
    return train_reference(table, vocabulary_size=size, special_count=0, ties=ties)


@many_examples
@given(
    table=word_counts(),
    merges_asked_for=MERGES_ASKED_FOR,
    special_count=st.integers(0, 3),
    min_frequency=MIN_FREQUENCIES,
)
def test_merges_and_vocabulary_are_those_of_tokenizers(
    table: WordCounts, merges_asked_for: int, special_count: int, min_frequency: int
) -> None:
    assert_equals_tokenizers(
        table,
        merges_asked_for=merges_asked_for,
        special_tokens=SPECIAL_TOKENS[:special_count],
        min_frequency=min_frequency,
    )


@EVERY_HARD_TABLE
@pytest.mark.parametrize("merges_asked_for", [1, 10, 600])
def test_hard_tables_give_the_merges_of_tokenizers(
    table: WordCounts, merges_asked_for: int
) -> None:
    assert_equals_tokenizers(table, merges_asked_for=merges_asked_for)


@given(st.lists(utf8_words(longest=40) | few_letter_words(longest=20), max_size=20))
def test_stand_in_letters_are_the_ones_that_tokenizers_gives_to_bytes(words: list[bytes]) -> None:
    """The same words, but as plain text that tokenizers spells for itself."""
    kept_whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = train_reference(Counter(words), vocabulary_size=290, special_count=0)
    texts = (word.decode() for word in words)
    assert in_json(steps, ()) == learn_with_tokenizers(texts, kept_whole, vocabulary_size=290)


@given(st.lists(small_texts(), max_size=4))
def test_texts_cut_by_gpt2s_pattern_give_the_merges_of_tokenizers(texts: list[str]) -> None:
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    pieces = (piece for text in texts for piece, _ in cutter.pre_tokenize_str(text))
    table = Counter(word for piece in pieces if (word := unspell(piece)))
    steps = train_reference(table, vocabulary_size=330, special_count=0)
    assert in_json(steps, ()) == learn_with_tokenizers(iter(texts), cutter, vocabulary_size=330)


@many_examples
@given(
    table=word_counts(longest=60),
    merges_asked_for=MERGES_ASKED_FOR,
    min_frequency=MIN_FREQUENCIES,
)
def test_the_greatest_pair_wins_a_tie_as_in_cs336(
    table: WordCounts, merges_asked_for: int, min_frequency: int
) -> None:
    steps = train_reference(
        table,
        vocabulary_size=256 + merges_asked_for,
        special_count=0,
        min_frequency=min_frequency,
        ties="greatest",
    )
    expected = cs336_merges(table, count=merges_asked_for, min_frequency=min_frequency)
    assert merges_of(steps) == expected


@EVERY_HARD_TABLE
def test_hard_tables_give_the_merges_of_cs336(table: WordCounts) -> None:
    assert merges_of(train(table, "greatest")) == cs336_merges(table, count=100, min_frequency=1)


@BOTH_RULES
@many_examples
@given(table=word_counts())
def test_no_token_is_made_twice_and_no_pair_is_merged_twice(table: WordCounts, ties: Ties) -> None:
    """Why a trainer needs one queue entry for each pair and no look for a token of the same bytes."""
    steps = train(table, ties)
    tokens = token_bytes(steps, special_count=0)
    assert len(set(tokens.values())) == len(tokens) == 256 + len(steps)
    assert len({(step.left, step.right) for step in steps}) == len(steps)


@BOTH_RULES
@many_examples
@given(table=word_counts(counts=HUGE_COUNTS))
def test_counts_never_rise_from_step_to_step(table: WordCounts, ties: Ties) -> None:
    counts = [step.count for step in train(table, ties)]
    assert counts == sorted(counts, reverse=True)


@BOTH_RULES
@many_examples
@given(table=word_counts(), times=st.sampled_from([2, 2**33, 2**70 + 1]))
def test_counts_of_any_size_give_the_merges_of_small_ones(
    table: WordCounts, times: int, ties: Ties
) -> None:
    scaled = {word: count * times for word, count in table.items()}
    expected = [step._replace(count=step.count * times) for step in train(table, ties)]
    assert train(scaled, ties) == expected


@BOTH_RULES
@many_examples
@given(table=word_counts(), fewer=st.integers(0, 30))
def test_a_smaller_vocabulary_is_a_prefix_of_a_larger_one(
    table: WordCounts, fewer: int, ties: Ties
) -> None:
    assert train(table, ties, merges_asked_for=fewer) == train(table, ties)[:fewer]


@BOTH_RULES
@many_examples
@given(table=word_counts(longest=60), special_count=st.integers(0, 3), order=st.randoms())
def test_neither_the_order_of_words_nor_special_tokens_change_the_merges(
    table: WordCounts, special_count: int, order: Random, ties: Ties
) -> None:
    shuffled = list(table.items())
    order.shuffle(shuffled)
    steps = train_reference(
        dict(shuffled),
        vocabulary_size=356 + special_count,
        special_count=special_count,
        ties=ties,
    )
    assert [
        Step(left - special_count, right - special_count, made - special_count, count)
        for left, right, made, count in steps
    ] == train(table, ties)


@BOTH_RULES
def test_training_ends_where_no_pair_is_common_enough(ties: Ties) -> None:
    table = {b"abab": 3, b"ab": 2, b"cd": 4}
    counts = [step.count for step in train(table, ties)]
    assert counts == [8, 4, 3]
    for least in range(10):
        steps = train_reference(
            table, vocabulary_size=400, special_count=0, min_frequency=least, ties=ties
        )
        assert [step.count for step in steps] == [count for count in counts if count >= least]


@BOTH_RULES
@pytest.mark.parametrize("vocabulary_size", [0, 255, 257, 258])
def test_a_vocabulary_that_is_full_takes_no_step(vocabulary_size: int, ties: Ties) -> None:
    steps = train_reference(
        {b"abc": 1}, vocabulary_size=vocabulary_size, special_count=2, ties=ties
    )
    assert steps == []


def test_the_worked_examples_are_true() -> None:
    outcome = doctest.testmod(reference_train)
    assert outcome.attempted > 0
    assert outcome.failed == 0
