"""`--eot-token`: the end-of-text token of a tokenizer that calls it by an unusual name."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide import Tokenizer
from lowtide.errors import UsageError
from lowtide.shards.manifest import read_manifest
from tests.commands import bytes_of, lowtide
from tests.learnt import END_OF_TEXT, learnt
from tests.training.small_runs import SHAPE, make_settings, run_heard

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


@pytest.mark.parametrize("tokenizer", ["unusual", "both"])
def test_a_trained_and_an_exported_model_end_at_it(here: Path, tokenizer: str) -> None:
    assert lowtide(*make(tokenizer, "tokens", "--eot-token", STOP)).code == 0
    ids = Tokenizer.load(tokenizer).special_tokens
    shape = replace(SHAPE, context=2, vocabulary_size=Tokenizer.load(tokenizer).size)
    small = {"shape": shape, "batch_tokens": 2, "micro_batch": 1, "steps": 2, "warmup_steps": 0}
    run_heard(here / "run", make_settings(here / "tokens", evaluate_every=0, **small))
    assert lowtide("export", "run", "--to", "huggingface", "--out", "exported").code == 0
    for folder in (here / "run" / "tokenizer", here / "exported"):
        assert Tokenizer.load(folder).end_of_text == ids[STOP]
        assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == STOP
    for name in ("config.json", "generation_config.json"):
        config = json.loads((here / "exported" / name).read_text())
        assert (config["bos_token_id"], config["eos_token_id"]) == (ids[STOP], ids[STOP])


@pytest.mark.parametrize(
    ("eos_token", "found"),
    [
        (STOP, STOP),
        ({"content": STOP, "special": True}, STOP),
        ("tide", END_OF_TEXT),
        (None, END_OF_TEXT),
    ],
    ids=str,
)
def test_an_end_that_the_config_names_comes_before_a_usual_name(
    here: Path, eos_token: object, found: str
) -> None:
    (here / "both" / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
    tokenizer = Tokenizer.load("both")
    assert tokenizer.end_of_text == tokenizer.special_tokens[found]


def test_a_damaged_config_is_refused(here: Path) -> None:
    (here / "both" / "tokenizer_config.json").write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json"):
        Tokenizer.load("both")
