"""Tokens on disk are those of the reference encoder for each whole document, one end-of-text behind each."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowtide
from lowtide import TokenizeSettings
from lowtide.source.separators import default_delimiter
from lowtide.source.stream import Cursor, read_blocks
from lowtide.stages.encode_blocks import BlockEncoder
from lowtide.stages.prepare import Prepared, prepare
from lowtide.stages.settings import make_settings
from lowtide.tokenizer.encode import Encoder, EncodeSettings
from lowtide.tokenizer.reference import ReferenceEncoder
from lowtide.tokenizer.vocabulary import Vocabulary
from tests.conftest import TOKENIZERS
from tests.corpora import SEPARATOR, make_document, make_documents, write_inputs
from tests.vocabularies import rank_file

TINY_BLOCKS = (64, 1000, 70_000, 1 << 20)


@pytest.fixture(scope="session")
def tokenizer_sources(tokenizer_json_file: Path) -> dict[str, str]:
    return {
        "gpt2": "gpt2",
        "cl100k_base": str(rank_file("cl100k_base")),
        "o200k_base": str(rank_file("o200k_base")),
        "tokenizer.json": str(tokenizer_json_file),
    }


def expected_stream(
    vocabulary: Vocabulary, reference: ReferenceEncoder, documents: list[str]
) -> np.ndarray:
    parts = [np.append(reference.encode(d.encode()), vocabulary.end_of_text) for d in documents]
    return np.concatenate(parts)


def stream_in_blocks(prepared: Prepared, block_bytes: int, fast: Encoder) -> np.ndarray:
    """The token stream with blocks of any size, without the shards."""
    read = replace(prepared.read, block_bytes=block_bytes)
    encoder = BlockEncoder(prepared.recipe, replace(prepared.allowances, workers=1), fast)
    blocks = read_blocks(prepared.inputs, read, start=Cursor(file=0, position=0))
    runs = [encoded.arranged.tokens for encoded in encoder.encode_in_order(blocks, continues=False)]
    return np.concatenate(runs)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "parquet", "arrow"])
def test_shards_hold_the_reference_tokens_of_every_document(
    tmp_path: Path,
    vocabularies: dict[str, Vocabulary],
    references: dict[str, ReferenceEncoder],
    tokenizer_sources: dict[str, str],
    tokenizer: str,
    kind: str,
) -> None:
    documents = make_documents(7, count=60)
    path = write_inputs(tmp_path / "in", documents)[kind]
    settings = TokenizeSettings(
        tokenizer=tokenizer_sources[tokenizer], separator=SEPARATOR, val=0, shard_tokens=5000
    )
    lowtide.tokenize([path], tmp_path / "out", settings)
    split = lowtide.open_dataset(tmp_path / "out").splits["train"]
    expected = expected_stream(vocabularies[tokenizer], references[tokenizer], documents)
    assert np.array_equal(split.read(0, split.tokens), expected)
    assert split.document_count == len(documents)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("block_bytes", TINY_BLOCKS)
def test_the_size_of_blocks_never_changes_a_token(
    tmp_path: Path,
    vocabularies: dict[str, Vocabulary],
    references: dict[str, ReferenceEncoder],
    tokenizer_sources: dict[str, str],
    tokenizer: str,
    block_bytes: int,
) -> None:
    document = make_document(random.Random(3), 150_000)
    path = tmp_path / "one.txt"
    path.write_bytes(document.encode())
    prepared = prepare(
        [str(path)], TokenizeSettings(tokenizer=tokenizer_sources[tokenizer], val=0.0)
    )
    got = stream_in_blocks(prepared, block_bytes, Encoder(prepared.recipe.encode))
    assert np.array_equal(
        got, expected_stream(vocabularies[tokenizer], references[tokenizer], [document])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        " " * 1_200_000 + "x",
        "\n" * 1_200_000 + "x",
        "abcdefghijklmnopqrstuvwxyz" * 50_000,
        "0123456789" * 120_000,
        "x" + " \n" * 600_000,
        "你好世界" * 100_000,
    ],
    ids=["spaces", "newlines", "letters", "digits", "mixed blanks", "ideographs"],
)
@pytest.mark.parametrize("tokenizer", ["gpt2", "cl100k_base", "o200k_base"])
def test_megabytes_without_a_word_border_are_exact(
    tmp_path: Path,
    references: dict[str, ReferenceEncoder],
    tokenizer_sources: dict[str, str],
    tokenizer: str,
    text: str,
) -> None:
    path = tmp_path / "long.txt"
    path.write_text(text, newline="")
    prepared = prepare(
        [str(path)], TokenizeSettings(tokenizer=tokenizer_sources[tokenizer], val=0.0)
    )
    fast = Encoder(prepared.recipe.encode)
    whole = fast.encode(text.encode(), document_count=0).ids
    got = stream_in_blocks(prepared, 70_000, fast)
    assert np.array_equal(got[:-1], whole)
    if len(text) < 500_000 or "x" not in text:  # tiktoken needs minutes for the others
        assert np.array_equal(whole, references[tokenizer].encode(text.encode()))


@pytest.fixture(scope="module")
def gpt2_encoder(vocabularies: dict[str, Vocabulary]) -> Encoder:
    mark = default_delimiter("file")
    return Encoder(EncodeSettings(vocabulary=vocabularies["gpt2"], delimiter=mark))


@pytest.mark.parametrize("placement", ["end", "start", "none"])
@settings(suppress_health_check=list(HealthCheck))
@given(
    documents=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
        min_size=1,
        max_size=12,
    ),
    block_bytes=st.integers(16, 400),
)
def test_end_of_text_stands_where_it_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    vocabularies: dict[str, Vocabulary],
    gpt2_encoder: Encoder,
    references: dict[str, ReferenceEncoder],
    placement: str,
    documents: list[str],
    block_bytes: int,
) -> None:
    vocabulary = vocabularies["gpt2"]
    path = write_inputs(tmp_path_factory.mktemp("in"), documents)["jsonl"]
    prepared = prepare([str(path)], make_settings({"eot": placement}))
    expected: list[int] = []
    for document in documents:
        ids = references["gpt2"].encode(document.encode()).tolist()
        front = [vocabulary.end_of_text] if placement == "start" else []
        behind = [vocabulary.end_of_text] if placement == "end" else []
        expected += [*front, *ids, *behind]
    assert stream_in_blocks(prepared, block_bytes, gpt2_encoder).tolist() == expected
