"""A tokenizer is found by name, file or folder, and what is none is refused with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks
from tests.tokenizer_json import tokenizer_json
from tests.vocabularies import rank_file


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
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_a_remedy(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        load_vocabulary(str(path))
    assert error.value.remedy


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UsageError) as error:
        load_vocabulary("gpt5")
    assert "cl100k_base" in error.value.remedy


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
