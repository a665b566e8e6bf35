"""A tokenizer is found by name, file or folder; anything else is refused with a remedy."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.tokenizer.byte_pair_files import rank_file_name, tokenizer_files
from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks
from tests.learnt import END_OF_TEXT, learnt
from tests.tokenizer_json import tokenizer_json
from tests.vocabularies import rank_file

ALL_BYTES = b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256))


@pytest.mark.parametrize(
    ("source", "size", "end_of_text"),
    [("gpt2", 50257, 50256), ("cl100k_base", 100277, 100257), ("o200k_base", 200019, 199999)],
)
def test_published_encodings_have_their_known_sizes(
    source: str, size: int, end_of_text: int
) -> None:
    found = load_vocabulary(source if source == "gpt2" else str(rank_file(source)))
    ranks = parse_ranks(found.content, name=source)
    assert (found.size, found.end_of_text, found.name) == (size, end_of_text, source)
    assert max(ranks.values()) < min(found.special_tokens.values())


def test_a_rank_file_of_ones_own_names_its_pattern(tmp_path: Path) -> None:
    lines = load_vocabulary("gpt2").content.splitlines(keepends=True)[:400]
    named = tmp_path / "mine.cl100k.tiktoken"
    named.write_bytes(b"".join(lines))
    found = load_vocabulary(str(named))
    assert (found.pattern, found.size, found.end_of_text) == ("cl100k", 401, 400)
    nameless = named.rename(tmp_path / "mine.tiktoken")
    with pytest.raises(UsageError, match="which pattern") as error:
        load_vocabulary(str(nameless))
    assert "mine.gpt2.tiktoken" in error.value.remedy


def test_special_tokens_before_all_others_are_known_by_the_tokenizer_json_beside(
    tmp_path: Path,
) -> None:
    pairs = learnt("cl100k", (END_OF_TEXT, "<|pad|>"))
    for name, content in tokenizer_files(pairs).items():
        (tmp_path / name).write_bytes(content)
    ranks = tmp_path / rank_file_name("cl100k")
    beside = load_vocabulary(str(ranks))
    assert (beside.special_tokens, beside.end_of_text) == (pairs.special_tokens, 0)
    assert beside == load_vocabulary(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    alone = load_vocabulary(str(ranks))
    assert (alone.special_tokens, alone.end_of_text, alone.size) == ({}, None, pairs.size)


@pytest.mark.parametrize("other", ["other tokens", "other pattern"])
def test_a_tokenizer_json_of_another_tokenizer_is_not_used(tmp_path: Path, other: str) -> None:
    name, pairs = rank_file_name("gpt2"), learnt("gpt2", ("<|pad|>", "<|more|>"))
    if other == "other pattern":
        pairs = replace(learnt("gpt2"), pattern="o200k")
    (tmp_path / name).write_bytes(tokenizer_files(learnt("gpt2"))[name])
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_files(pairs)["tokenizer.json"])
    assert load_vocabulary(str(tmp_path / name)).special_tokens == {}


def test_a_published_rank_file_stays_what_it_is_beside_any_tokenizer_json(tmp_path: Path) -> None:
    published = load_vocabulary("gpt2")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (tmp_path / "r50k_base.tiktoken").write_bytes(published.content)
    assert load_vocabulary(str(tmp_path / "r50k_base.tiktoken")) == published


def test_a_folder_with_a_tokenizer_json_is_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    found = load_vocabulary(str(tmp_path))
    assert (found.kind, found.pattern, found.size, found.end_of_text) == (
        "json",
        "gpt2",
        50257,
        50256,
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b'{"model": 3}'),
        ("x.gpt2.tiktoken", b"not base64 at all"),
        ("x.gpt2.tiktoken", b"IQ== 0\n"),
        ("x.gpt2.tiktoken", ALL_BYTES + b"YWI= 255\n"),
        ("x.gpt2.tiktoken", ALL_BYTES + b"YWI= 256\nYWI= 257\n"),
        ("x.gpt2.tiktoken", ALL_BYTES + b"YWI= -1\n"),
        ("x.gpt2.tiktoken", ALL_BYTES + b"YWI= 4294967295\n"),
    ],
)
def test_a_file_that_is_not_a_tokenizer_is_refused_with_a_remedy(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        load_vocabulary(str(path))
    assert error.value.remedy


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(UsageError) as error:
        load_vocabulary("gpt5")
    assert "cl100k_base" in error.value.remedy


def test_a_folder_of_several_tokenizers_lists_them(tmp_path: Path) -> None:
    for size in ("8000", "16000"):
        (tmp_path / size).mkdir()
        (tmp_path / size / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    with pytest.raises(UsageError) as error:
        load_vocabulary(str(tmp_path))
    assert str(tmp_path / "8000") in error.value.remedy
    assert load_vocabulary(str(tmp_path / "8000")).size == 50257


def test_a_published_encoding_without_cache_and_network_says_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(UsageError, match="neither in tiktoken's cache") as error:
        load_vocabulary("cl100k_base")
    assert "TIKTOKEN_CACHE_DIR" in error.value.remedy


def test_the_same_ids_have_the_same_fingerprint_and_others_another(tmp_path: Path) -> None:
    first, second = load_vocabulary("gpt2"), load_vocabulary("gpt2")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != load_vocabulary(str(tmp_path)).fingerprint
