"""A trained tokenizer is what `tokenizers` learns from the same text. `bench/trained_exact.py` takes 100 MB."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizerSettings
from lowtide.settings import PatternName, Ties
from lowtide.tokenizer.reference_train import train_reference
from lowtide.tokenizer.split_words import split_words_reference
from tests.corpora import SEPARATOR, make_documents, write_inputs
from tests.trained import read_trained, train_with_tokenizers

PATTERNS: tuple[PatternName, ...] = ("gpt2", "cl100k", "o200k")


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Several scripts, odd blanks, and source code: this very folder's."""
    code = [path.read_text() for path in sorted(Path(__file__).parent.parent.rglob("*.py"))]
    return make_documents(21, count=300, longest=6000) + code


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("special", [(), ("<|endoftext|>", "<|pad|>")])
def test_merges_and_vocabulary_equal_those_of_tokenizers(
    tmp_path: Path, documents: list[str], pattern: PatternName, special: tuple[str, ...]
) -> None:
    source = write_inputs(tmp_path / "in", documents)["jsonl"]
    settings = TokenizerSettings(vocab_size=(3000,), special_token=special, pattern=pattern)
    lowtide.train_tokenizer([source], tmp_path / "out", settings)
    assert read_trained(tmp_path / "out") == train_with_tokenizers(
        documents, vocab_size=3000, special_tokens=special, pattern=pattern
    )


@pytest.mark.parametrize("kind", ["ties", "runs", "long words"])
def test_ties_runs_and_long_words_are_learnt_alike(tmp_path: Path, kind: str) -> None:
    source = random.Random(kind)
    if kind == "ties":
        words = ["".join(source.choices("abcd", k=4)) for _ in range(4000)]
    elif kind == "runs":
        words = [source.choice("ab=-") * source.randint(1, 300) for _ in range(600)]
    else:  # in tokenizers every merge moves the rest of its word: 1 MB would take it many minutes
        words = ["a" * 30_000, "ab" * 15_001, "".join(source.choices("abc", k=30_000))]
    text = " ".join(words)
    path = tmp_path / "text.txt"
    path.write_text(text)
    settings = TokenizerSettings(vocab_size=(1500,))
    lowtide.train_tokenizer([path], tmp_path / "out", settings, memory="1GiB")
    assert read_trained(tmp_path / "out") == train_with_tokenizers(
        [text], vocab_size=1500, special_tokens=settings.special_token
    )


@pytest.mark.slow
def test_words_of_a_megabyte_are_learnt_as_the_plain_reference_learns_them(tmp_path: Path) -> None:
    source = random.Random(5)
    words = ["a" * 1_000_000, "ab" * 500_000, "".join(source.choices("abc", k=1_000_000))]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(words))
    settings = TokenizerSettings(vocab_size=(281,))
    lowtide.train_tokenizer([path], tmp_path / "out", settings)
    counts = {word.encode(): 1 for word in words} | {b"\n": 2}
    steps = train_reference(counts, vocabulary_size=281, special_count=1)
    merged = lowtide.Tokenizer.load(tmp_path / "out")
    found = [merged.vocabulary[step.made] for step in steps]
    assert len(steps) == 24
    assert found == [merged.vocabulary[step.left] + merged.vocabulary[step.right] for step in steps]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ties", ["huggingface", "greatest"])
def test_both_rules_of_ties_are_those_of_the_plain_reference(
    tmp_path: Path, documents: list[str], pattern: PatternName, ties: Ties
) -> None:
    few = documents[:60]
    source = write_inputs(tmp_path / "in", few)["parquet"]
    settings = TokenizerSettings(vocab_size=(700,), pattern=pattern, ties=ties, min_frequency=2)
    result = lowtide.train_tokenizer([source], tmp_path / "out", settings)
    counts: dict[bytes, int] = {}
    for document in few:
        for word in split_words_reference(document, pattern):
            counts[word.encode()] = counts.get(word.encode(), 0) + 1
    steps = train_reference(
        counts, vocabulary_size=700, special_count=1, min_frequency=2, ties=ties
    )
    assert result.learning is not None
    found = result.learning.steps
    assert [(step.left - 1, step.right - 1, step.count) for step in steps] == [
        tuple(step) for step in found[["left", "right", "count"]].tolist()
    ]


def test_a_special_token_is_never_merged_across_and_never_counted(tmp_path: Path) -> None:
    pieces = ["abab", "abba", "aabb", "x"] * 50
    path = tmp_path / "text.txt"
    path.write_text("<|cut|>".join(pieces) + SEPARATOR + "abab<|cut|>")
    settings = TokenizerSettings(
        vocab_size=(300,), special_token=("<|cut|>",), separator=SEPARATOR, min_frequency=2
    )
    lowtide.train_tokenizer([path], tmp_path / "out", settings)
    expected = train_with_tokenizers(
        [*pieces, "abab"], vocab_size=300, special_tokens=["<|cut|>"], min_frequency=2
    )
    assert read_trained(tmp_path / "out") == expected
    assert not any("<" in token for token in expected[0] if len(token) > 1 and token != "<|cut|>")


def test_of_special_tokens_that_begin_alike_the_longest_is_cut_out(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("cd<|a|>cd<|a|>bcd<|a|>" * 20)
    settings = TokenizerSettings(vocab_size=(300,), special_token=("<|a|>", "<|a|>b"))
    lowtide.train_tokenizer([path], tmp_path / "out", settings)
    vocabulary, merges = read_trained(tmp_path / "out")
    assert merges == [("c", "d")]
    assert vocabulary["<|a|>"] == 0
    assert vocabulary["<|a|>b"] == 1


def test_smaller_vocabularies_are_beginnings_of_larger_ones(
    tmp_path: Path, documents: list[str]
) -> None:
    source = write_inputs(tmp_path / "in", documents)["txt"]
    settings = TokenizerSettings(vocab_size=(300, 900, 2000), separator=SEPARATOR)
    lowtide.train_tokenizer([source], tmp_path / "all", settings)
    for size in settings.vocab_size:
        alone = TokenizerSettings(vocab_size=(size,), separator=SEPARATOR)
        lowtide.train_tokenizer([source], tmp_path / str(size), alone)
        for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.gpt2.tiktoken"):
            several = (tmp_path / "all" / str(size) / name).read_bytes()
            assert several == (tmp_path / str(size) / name).read_bytes()
