"""`--eot-token`: the end-of-text token of a tokenizer that calls it by an unusual name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from lowtide import Tokenizer
from lowtide.shards.manifest import read_manifest
from tests.commands import bytes_of, lowtide
from tests.learnt import END_OF_TEXT, learnt

STOP = "<|stop|>"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps({"text": f"tide {i}"}) + "\n" for i in "ab"))
    Tokenizer.from_byte_pairs(learnt("gpt2", (STOP,))).save("unusual")
    Tokenizer.from_byte_pairs(learnt("gpt2", (STOP, END_OF_TEXT))).save("both")
    return tmp_path


def make(tokenizer: str, out: str, *flags: str) -> tuple[str, ...]:
    flags = ("--tokenizer", tokenizer, "--val", "0", "--out", out, *flags)
    return ("tokenize", "rows.jsonl", *flags)


def test_a_token_without_a_usual_name_is_asked_for_and_the_hint_works(here: Path) -> None:
    refused = lowtide(*make("unusual", "out"))
    assert refused.code == 2
    flags = shlex.split(" ".join(refused.advice))
    assert flags == ["--eot-token", STOP]
    assert lowtide(*make("unusual", "out", *flags)).code == 0
    manifest = read_manifest(here / "out")
    stop = Tokenizer.load("unusual").special_tokens[STOP]
    assert manifest.tokenizer.end_of_text == stop
    assert manifest.settings["eot_token"] == STOP
    (shard,) = manifest.splits["train"].shards
    ids = np.load(here / "out" / shard.name)
    assert ids[-1] == stop
    assert np.count_nonzero(ids == stop) == 2
    assert lowtide("verify", "out").code == 0


def test_it_wins_over_a_usual_name_and_changes_nothing_but_that_token(here: Path) -> None:
    assert lowtide(*make("both", "usual")).code == 0
    assert lowtide(*make("both", "named", "--eot-token", END_OF_TEXT)).code == 0
    assert lowtide(*make("both", "other", "--eot-token", STOP)).code == 0
    usual, named, other = (bytes_of(here / name) for name in ("usual", "named", "other"))
    (shard,) = (name for name in usual if name.startswith("train"))
    assert usual[shard] == named[shard] != other[shard]
    assert "eot_token" not in read_manifest(here / "usual").settings
    special = Tokenizer.load("both").special_tokens
    ids, others = np.load(here / "usual" / shard), np.load(here / "other" / shard)
    assert np.array_equal(np.where(ids == special[END_OF_TEXT], special[STOP], ids), others)


@pytest.mark.parametrize(
    "flags", [("--eot-token", "tide"), ("--eot-token", STOP, "--eot", "none")], ids=" ".join
)
def test_a_name_that_means_nothing_is_refused(here: Path, flags: tuple[str, ...]) -> None:
    assert lowtide(*make("unusual", "out", *flags)).code == 2
    assert not (here / "out").exists()


def test_a_dataset_is_not_resumed_with_another_token(here: Path) -> None:
    assert lowtide(*make("both", "out", "--eot-token", STOP)).code == 0
    before = bytes_of(here / "out")
    refused = lowtide(*make("both", "out"))
    assert refused.code == 2
    assert "eot" in refused.problem
    assert bytes_of(here / "out") == before
