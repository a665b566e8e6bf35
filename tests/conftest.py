"""What several packages' tests share."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from lowtide.stages import watch_run
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.reference import ReferenceEncoder, make_reference
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from tests.tokenizer_json import tokenizer_json
from tests.vocabularies import rank_file

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("slow", max_examples=200, deadline=None)

TOKENIZERS = ("gpt2", "cl100k_base", "o200k_base", "tokenizer.json")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("slow" if is_slow_tier(config) else "quick")
    # a shell that starts the tests in the background, or nohup, ignores these, and children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _stops_wait_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is asked to stop at once gets as far on a slow machine as on a fast one."""
    monkeypatch.setattr(watch_run, "_DEAF_SECONDS", math.inf)


def is_slow_tier(config: pytest.Config) -> bool:
    """Whether this is `pytest -m slow`."""
    return config.getoption("markexpr") == "slow"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Properties belong to both tiers: the slow one tries them on more examples."""
    if is_slow_tier(config):
        for item in items:
            if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
                item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Everything is imported: a collection of garbage need not look at torch's objects every time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What one test measures is unknown to the others, and nothing is left in anybody's home."""
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
    """Every kind of tokenizer that must be encoded exactly."""
    return {
        "gpt2": load_vocabulary("gpt2"),
        "cl100k_base": load_vocabulary(str(rank_file("cl100k_base"))),
        "o200k_base": load_vocabulary(str(rank_file("o200k_base"))),
        "tokenizer.json": from_json(tokenizer_json_file.read_bytes(), name="mine"),
    }


@pytest.fixture(scope="session")
def references(vocabularies: dict[str, Vocabulary]) -> dict[str, ReferenceEncoder]:
    """What each of them is compared with. Made once: the large ones take a second each."""
    return {name: make_reference(found, "text") for name, found in vocabularies.items()}
