"""What several rooms' tests share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from tests.tokenizer_json import tokenizer_json
from tests.vocabularies import rank_file

TOKENIZERS = ("gpt2", "cl100k_base", "o200k_base", "tokenizer.json")


@pytest.fixture(scope="session")
def tokenizer_json_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of GPT-2's vocabulary with cl100k's pattern: neither of the published ones."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(pattern=PATTERNS["cl100k"])))
    return path


@pytest.fixture(scope="session")
def vocabularies(tokenizer_json_file: Path) -> dict[str, Vocabulary]:
    """Every kind of tokenizer that the issue of exactness is asked for."""
    return {
        "gpt2": load_vocabulary("gpt2"),
        "cl100k_base": load_vocabulary(str(rank_file("cl100k_base"))),
        "o200k_base": load_vocabulary(str(rank_file("o200k_base"))),
        "tokenizer.json": from_json(tokenizer_json_file.read_bytes(), name="mine"),
    }
