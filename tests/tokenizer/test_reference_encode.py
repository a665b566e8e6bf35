"""The plain encoder cuts words as the patterns say and merges them as tokenizers does."""

from __future__ import annotations

import doctest
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from lowtide.settings import PatternName
from lowtide.tokenizer import byte_pair_files, reference_encode, text_pieces
from lowtide.tokenizer.byte_pair_files import tokenizer_json
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.reference_encode import (
    encode_plainly,
    encode_with_special_tokens,
    merge_word,
)
from tests.learnt import learn, learnt

ANY_TEXT = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \t\r\n'’sStTlLrevE1a.!/-_é中\u0301\u00a0\u088f\u0295👍<|>"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)
SPECIAL = ("<|>", "<|>é")
EVERY_PATTERN = pytest.mark.parametrize("pattern", PATTERNS)


@pytest.mark.parametrize("module", [reference_encode, byte_pair_files, text_pieces])
def test_the_worked_examples_are_true(module: object) -> None:
    outcome = doctest.testmod(module)  # type: ignore[arg-type]
    assert outcome.attempted
    assert not outcome.failed


@cache
def library_of(pattern: PatternName) -> Library:
    return Library.from_str(tokenizer_json(learnt(pattern, SPECIAL)).decode())


@EVERY_PATTERN
@given(text=ANY_TEXT)
def test_ids_are_those_of_the_library(pattern: PatternName, text: str) -> None:
    pairs, library = learnt(pattern, SPECIAL), library_of(pattern)
    library.encode_special_tokens = False
    assert encode_with_special_tokens(text, pairs) == library.encode(text).ids
    library.encode_special_tokens = True
    assert encode_plainly(text, pairs) == library.encode(text).ids


def test_the_lowest_rank_is_merged_first_and_of_equals_the_leftmost() -> None:
    ranks = {(b"b", b"c"): 0, (b"a", b"b"): 1, (b"c", b"c"): 2}
    assert merge_word(b"abc", ranks) == [b"a", b"bc"]
    assert merge_word(b"ccc", ranks) == [b"cc", b"c"]


def test_the_longest_of_two_special_tokens_is_taken() -> None:
    pairs = learn(["x"], merge_count=0, special_tokens=["<|a|>", "<|a|><|b|>"])
    x = pairs.tokens[b"x"]
    assert encode_with_special_tokens("x<|a|><|b|>x<|a|>", pairs) == [x, 1, x, 0]
