"""A corpus and a dataset made of it, for the commands to work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide import TokenizeSettings, tokenize


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 4 MB of text in one file, a document a line: several blocks at any budget."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    lines = (f"Line {number} speaks of tides, moons and {number * 7919 % 9973} boats.\n" * 4
             for number in range(20_000))  # fmt: skip
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def dataset(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished dataset of `corpus`; read it, do not change it."""
    folder = tmp_path_factory.mktemp("dataset") / "tokens"
    tokenize([corpus], folder, TokenizeSettings(separator="line"))
    return folder
