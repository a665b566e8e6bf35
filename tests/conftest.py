"""What several rooms' tests share."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from tests.tokenizer_json import tokenizer_json
from tests.vocabularies import rank_file

LONG = bool(os.environ.get("LOWTIDE_LONG"))
"""Whether properties are tried on more examples, and tests marked `long` run."""
settings.register_profile("short", max_examples=100 if LONG else 12)
settings.load_profile("short")

TOKENIZERS = ("gpt2", "cl100k_base", "o200k_base", "tokenizer.json")


_ONE_OF = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `many`, every third case runs; with LOWTIDE_LONG=1 all of them."""
    counted: dict[str, int] = {}
    for item in items:
        if item.get_closest_marker("many"):
            name = item.nodeid.partition("[")[0]
            counted[name] = counted.get(name, -1) + 1
            if counted[name] % _ONE_OF:
                item.add_marker("long")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What one test measures, no other knows of; and nothing is left in anybody's home."""
    if item.get_closest_marker("long") and not LONG:
        pytest.skip("long: runs with LOWTIDE_LONG=1")
    digest = hashlib.sha256(f"{os.getpid()} {item.nodeid}".encode()).hexdigest()[:16]
    os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"lowtide-tests-{digest}")


def pytest_runtest_teardown() -> None:
    shutil.rmtree(os.environ.get("XDG_CACHE_HOME", ""), ignore_errors=True)


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
