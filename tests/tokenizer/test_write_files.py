"""The files are those that other tools would write, and other tools read them and give the same ids."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tiktoken
from gigatoken.gigatoken_rs import load_hf_json
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from lowtide.errors import UsageError
from lowtide.settings import PatternName
from lowtide.tokenizer.byte_pair_files import (
    first_disagreement,
    may_be_spelled_alike,
    rank_file_name,
    read_byte_pairs,
    recover_merges,
    refuse_spelled_alike,
    tokenizer_files,
    tokenizer_json,
)
from lowtide.tokenizer.byte_pairs import BytePairs, bytes_in_order
from lowtide.tokenizer.disagreements import contains_disagreement
from lowtide.tokenizer.encode import encode_fast
from lowtide.tokenizer.patterns import PLAIN_PATTERNS, recognise
from lowtide.tokenizer.reference_encode import encode_plainly, encode_with_special_tokens
from lowtide.tokenizer.vocabulary import from_json, parse_ranks
from tests.corpora import make_documents
from tests.learnt import END_OF_TEXT, learn, learnt
from tests.tokenizer.test_encode import STRANGE
from tests.tokenizer.test_reference_encode import ANY_TEXT, EVERY_PATTERN

SPECIAL = (END_OF_TEXT, "<| two words |>", "<|日本|>")
PUBLISHED = {
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "tokenizer.gpt2.tiktoken": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
}
"""The sha256 that tiktoken pins of GPT-2's vocab.bpe, encoder.json and ranks."""


def ranks_of(pairs: BytePairs) -> dict[bytes, int]:
    content = tokenizer_files(pairs)[rank_file_name(pairs.pattern)]
    return parse_ranks(content, name="ranks")


@cache
def peers(pattern: PatternName) -> dict[str, Callable[[str], list[int]]]:
    """The other libraries' encoders, made from the files; special tokens are found by all of them."""
    pairs = learnt(pattern, SPECIAL)
    content = tokenizer_files(pairs)["tokenizer.json"]
    library = Library.from_str(content.decode())
    ranks = tiktoken.Encoding(
        "mine",
        pat_str=PLAIN_PATTERNS[pattern],
        mergeable_ranks=ranks_of(pairs),
        special_tokens=pairs.special_tokens,
    )
    fast = load_hf_json(content)
    return {
        "tokenizers": lambda text: library.encode(text).ids,
        "tiktoken": lambda text: ranks.encode(text, allowed_special="all"),
        "gigatoken": lambda text: encode_fast(fast, text.encode()).tolist(),
    }


def expect_one_answer(text: str, pattern: PatternName) -> None:
    expected = encode_with_special_tokens(text, learnt(pattern, SPECIAL))
    for name, encode in peers(pattern).items():
        newer = name == "gigatoken" and contains_disagreement(text.encode(), "tokenizers", pattern)
        assert newer or encode(text) == expected, name


@EVERY_PATTERN
@given(parts=st.lists(ANY_TEXT | st.sampled_from(SPECIAL), max_size=4))
def test_every_peer_gives_the_same_ids_on_any_text(pattern: PatternName, parts: list[str]) -> None:
    expect_one_answer("".join(parts), pattern)


@EVERY_PATTERN
def test_every_peer_gives_the_same_ids_on_documents(pattern: PatternName) -> None:
    for text in (*make_documents(8, count=30), *(text[:3000] for text in STRANGE.values())):
        expect_one_answer(text, pattern)


@EVERY_PATTERN
def test_tokenizers_would_save_the_same_bytes(pattern: PatternName) -> None:
    content = tokenizer_json(learnt(pattern, SPECIAL)).decode()
    assert Library.from_str(content).to_str(pretty=True) == content


def test_gpt2_is_written_byte_for_byte_as_it_was_published() -> None:
    files = tokenizer_files(read_byte_pairs("gpt2"))
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in PUBLISHED}
    assert digests == PUBLISHED


@EVERY_PATTERN
def test_our_own_loader_knows_the_pattern_and_may_use_the_fast_encoder(
    pattern: PatternName,
) -> None:
    pairs = learnt(pattern, SPECIAL)
    found = from_json(tokenizer_json(pairs), name="mine")
    assert (found.pattern, found.plain, found.size) == (pattern, True, pairs.size)
    assert (found.special_tokens, found.end_of_text) == (pairs.special_tokens, 0)
    assert recognise(PLAIN_PATTERNS[pattern]) == pattern


def test_the_order_in_which_tokens_were_held_changes_no_byte() -> None:
    pairs = learnt("cl100k", SPECIAL)
    shuffled = list(pairs.tokens.items())
    random.Random(1).shuffle(shuffled)
    other = BytePairs(
        pattern=pairs.pattern,
        special_tokens=dict(reversed(pairs.special_tokens.items())),
        tokens=dict(shuffled),
        merges=pairs.merges,
    )
    assert tokenizer_files(other) == tokenizer_files(pairs)


def test_a_rank_file_holds_all_but_the_special_tokens() -> None:
    pairs = learnt("o200k", SPECIAL)
    assert ranks_of(pairs) == pairs.tokens
    assert min(pairs.tokens.values()) == len(SPECIAL)


def test_tokenizer_json_comes_last_so_that_it_seals_the_folder() -> None:
    assert list(tokenizer_files(learnt("gpt2")))[-1] == "tokenizer.json"


@EVERY_PATTERN
def test_transformers_opens_the_folder_and_gives_the_same_ids(
    pattern: PatternName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pairs = learnt(pattern, SPECIAL)
    for name, content in tokenizer_files(pairs).items():
        (tmp_path / name).write_bytes(content)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    for text in (*make_documents(5, count=8), *SPECIAL, f"one{END_OF_TEXT} two", " ,. n't"):
        ids = opened(text)["input_ids"]
        assert ids == encode_with_special_tokens(text, pairs)
        assert opened.decode(ids) == text
    assert (opened.eos_token, opened.eos_token_id, opened.bos_token_id) == (END_OF_TEXT, 0, 0)
    assert len(opened) == pairs.size
    assert not opened.clean_up_tokenization_spaces


def test_without_an_end_of_text_transformers_gets_none() -> None:
    pairs = learnt("gpt2", ("<|other|>",))
    assert "eos_token" not in json.loads(tokenizer_files(pairs)["tokenizer_config.json"])


@pytest.mark.parametrize("name", ["a", "é", "Ġ", "Ġthe"])
def test_a_special_token_spelled_like_another_is_refused(name: str) -> None:
    assert may_be_spelled_alike(name)
    pairs = learn([" the the the"], merge_count=3, special_tokens=[name])
    assert b" the" in pairs.tokens
    with pytest.raises(UsageError, match="spelled like") as error:
        tokenizer_files(pairs)
    assert END_OF_TEXT in error.value.remedy


@pytest.mark.parametrize("name", [END_OF_TEXT, "the", "<|日本|>", "two words", "\x00"])
def test_other_names_differ_from_every_learnt_token(name: str) -> None:
    assert not may_be_spelled_alike(name)
    refuse_spelled_alike(learnt("gpt2", (name,)))


def some_merges(*, learnable: bool) -> st.SearchStrategy[BytePairs]:
    """Learnt from words full of ties and repeated letters, or made of any tokens in any order."""
    words = st.lists(st.text("aab", min_size=1, max_size=16), min_size=1, max_size=8)
    if learnable:
        ties = st.sampled_from(["huggingface", "greatest"])
        return st.builds(
            lambda texts, tie: learn(texts, merge_count=30, special_tokens=(), ties=tie),
            words,
            ties,
        )
    return st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1).map(put_together)


def put_together(choices: list[tuple[int, int]]) -> BytePairs:
    tokens = {bytes([byte]): number for number, byte in enumerate(bytes_in_order())}
    pool, merges = [b"a", b"b", b"c"], []
    for left, right in choices:
        pair = (pool[left % len(pool)], pool[right % len(pool)])
        if pair in merges or len(pair[0] + pair[1]) > 8:
            continue
        merges.append(pair)
        if pair[0] + pair[1] not in tokens:
            pool.append(pair[0] + pair[1])
            tokens[pool[-1]] = len(tokens)
    return BytePairs(pattern="gpt2", special_tokens={}, tokens=tokens, merges=tuple(merges))


@given(pairs=some_merges(learnable=True))
def test_ranks_describe_a_learnt_vocabulary(pairs: BytePairs) -> None:
    assert first_disagreement(pairs) is None
    assert recover_merges(ranks_of(pairs), name="learnt") == pairs.merges


@settings(max_examples=400)
@given(pairs=some_merges(learnable=False))
def test_the_check_says_whether_ranks_alone_lead_to_the_same_merges(pairs: BytePairs) -> None:
    try:
        recovered = recover_merges(pairs.tokens, name="made up")
    except UsageError:
        recovered = ()
    assert (first_disagreement(pairs) is None) == (recovered == pairs.merges)


@given(
    pairs=some_merges(learnable=False),
    texts=st.lists(st.text("abc", min_size=1, max_size=24), min_size=8, max_size=8),
)
def test_gigatoken_always_follows_tokenizers_and_tiktoken_where_the_check_says_so(
    pairs: BytePairs, texts: list[str]
) -> None:
    content = tokenizer_json(pairs)
    library, fast = Library.from_str(content.decode()), load_hf_json(content)
    ranks = tiktoken.Encoding(
        "x", pat_str=PLAIN_PATTERNS["gpt2"], mergeable_ranks=pairs.tokens, special_tokens={}
    )
    for text in texts:
        expected = library.encode(text).ids
        assert encode_plainly(text, pairs) == expected
        assert encode_fast(fast, text.encode()).tolist() == expected
        if first_disagreement(pairs) is None:
            assert ranks.encode_ordinary(text) == expected


def test_ids_that_do_not_follow_the_merges_are_noticed() -> None:
    learnt_first = learn(["bc", "bc", "ab"], merge_count=2, special_tokens=())
    assert learnt_first.merges == ((b"b", b"c"), (b"a", b"b"))
    swapped = replace(learnt_first, tokens=learnt_first.tokens | {b"bc": 257, b"ab": 256})
    assert first_disagreement(learnt_first) is None
    assert first_disagreement(swapped) == b"ab"
    ranks = tiktoken.Encoding(
        "x", pat_str=PLAIN_PATTERNS["gpt2"], mergeable_ranks=swapped.tokens, special_tokens={}
    )
    assert ranks.encode_ordinary("abc") != encode_plainly("abc", swapped)


def test_a_vocabulary_that_ranks_cannot_describe_has_no_rank_file() -> None:
    pairs = put_together([(0, 1), (0, 1), (1, 2), (0, 4), (3, 2)])  # ab, then bc, then a+bc
    assert pairs.merges == ((b"a", b"b"), (b"b", b"c"), (b"a", b"bc"), (b"ab", b"c"))
    assert first_disagreement(pairs) == b"abc"
    assert rank_file_name("gpt2") not in tokenizer_files(pairs)
    assert rank_file_name("gpt2") in tokenizer_files(learnt("gpt2"))
