"""Bad input to `train` gets two lines, nothing is started or lost, and the advice works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lowtide.stages import open_run
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.run_folder import RUN_NAME
from tests.commands import Outcome, call
from tests.training.small_runs import (
    STEPS,
    VOCABULARY,
    DiskUsage,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
    told_of,
    write_plan,
)


class Desk:
    """A person before the command line: data, a plan, and a place for runs."""

    def __init__(self, folder: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.data, self.run = folder, data, folder / "run"
        self.settings = make_settings(data, checkpoint_every=8, evaluate_every=0)
        self.plan = write_plan(folder / "plan.toml", self.settings)
        self._capsys = capsys

    def train(self, *more: str | Path, data: Path | None = None, plan: bool = True) -> Outcome:
        words = ["--plan", self.plan] if plan else []
        return call(
            self._capsys, "train", data or self.data, "--out", self.run, "--quiet", *words, *more
        )

    def refused(self, *more: str | Path, code: int = 2, **changed: object) -> Outcome:
        outcome = self.train(*more, **changed)  # type: ignore[arg-type]
        assert outcome.code == code, outcome.err
        assert outcome.problem
        assert outcome.hint
        assert outcome.err.count("\n") == 2, outcome.err
        assert "fault of lowtide" not in outcome.err
        assert outcome.out == ""
        return outcome


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("bad") / "tokens")


@pytest.fixture
def desk(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, data, capsys)


@pytest.mark.parametrize("plan", [True, False], ids=["with a plan", "without"])
def test_no_data_and_text_instead_of_tokens_are_told(desk: Desk, plan: bool) -> None:
    nowhere = desk.folder / "nowhere"
    assert "nowhere" in desk.refused(data=nowhere, plan=plan).problem
    text = desk.folder / "book.txt"
    text.write_text("A tide is not a token.\n" * 100)
    refused = desk.refused(data=text, plan=plan)
    assert "lowtide tokenize" in refused.hint
    assert not desk.run.exists()


def test_data_of_a_larger_vocabulary_is_refused_and_planning_again_works(desk: Desk) -> None:
    wide = make_tokens(desk.folder / "wide", vocabulary_size=300)
    refused = desk.refused(data=wide)
    assert "300 tokens, and the model knows 131" in refused.problem
    assert "vocabulary_size = 300" in refused.hint
    assert not desk.run.exists()
    text = desk.plan.read_text()
    desk.plan.write_text(text.replace(f"vocabulary_size = {VOCABULARY}", "vocabulary_size = 300"))
    assert desk.train(data=wide).code == 0


@pytest.mark.parametrize("where", ["train", "val"])
def test_a_peers_tokens_beyond_the_vocabulary_are_named(desk: Desk, where: str) -> None:
    peer = desk.folder / "peer"
    peer.mkdir()
    ids = np.arange(4000, dtype=np.uint16) % VOCABULARY
    for name in ("train", "val"):
        ids[50:750] = 999 if name == where else 5
        ids.tofile(peer / f"{name}.bin")
    desk.plan.write_text(desk.plan.read_text().replace("evaluate_every = 0", "evaluate_every = 1"))
    refused = desk.refused(data=peer, code=1)
    assert f"token 999, and the model knows {VOCABULARY}" in refused.problem
    assert "--tokenizer" in refused.hint


def test_other_settings_on_going_on_are_listed_and_each_advice_works(desk: Desk) -> None:
    assert desk.train().code == 0
    before = tensors_of(desk.run)
    refused = desk.refused("--seed", "7", "--steps", "99")
    assert "seed was 0 and is 7" in refused.problem
    assert f"steps was {STEPS} and is 99" in refused.problem
    assert tensors_of(desk.run) == before
    assert desk.train().code == 0
    assert desk.train("--seed", "7", "--steps", "9", "--restart").code == 0
    assert len(told_of(desk.run)) == 9


def test_other_data_on_going_on_is_told(desk: Desk) -> None:
    assert desk.train().code == 0
    other = make_tokens(desk.folder / "other", seed=9)
    assert "training data is another" in desk.refused(data=other).problem
    moved = desk.folder / "moved"
    shutil.copytree(desk.data, moved)
    assert desk.train(data=moved).code == 0


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--steps", "0"), "steps cannot be 0"),
        (("--batch-tokens", "0"), "batch_tokens cannot be 0"),
        (("--micro-batch", "0"), "micro_batch cannot be 0"),
        (("--model", "gpt9"), "gpt9"),
        (("--context", "8"), "windows of 16 tokens, not of 8"),
        (("--recipe", "fat"), "'fat' is not one of"),
        (("--memory", "some"), "some"),
    ],
)
def test_wishes_that_cannot_be_are_refused_before_anything_is_written(
    desk: Desk, more: tuple[str, ...], problem: str
) -> None:
    assert problem in desk.refused(*more).problem
    assert find_checkpoints(desk.run) == []


def test_an_unknown_model_gets_the_known_ones(desk: Desk) -> None:
    refused = desk.refused("--model", "gpt9", plan=False)
    assert "gpt2-nano" in refused.hint
    assert not desk.run.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no plan"),
        ("steps = [", "cannot be read as TOML"),
        ("", "is missing"),
        ("stepz = 3", "no setting `stepz`"),
    ],
    ids=["missing", "broken", "empty", "misspelt"],
)
def test_a_plan_that_is_none_is_told(desk: Desk, text: str | None, problem: str) -> None:
    desk.plan.unlink()
    if text is not None:
        desk.plan.write_text(text)
    assert problem in desk.refused().problem
    assert not desk.run.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("plan", [True, False], ids=["with a plan", "without"])
def test_no_gpu_where_one_is_asked_for(desk: Desk, plan: bool) -> None:
    refused = desk.refused("--device", "cuda", "--no-smoke", plan=plan)
    assert "torch finds none" in refused.problem
    assert "--device cpu" in refused.hint
    assert not desk.run.exists()
    assert desk.train("--device", "cpu").code == 0


def test_a_disk_too_small_is_told_before_the_first_step(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(open_run.shutil, "disk_usage", lambda _: DiskUsage(10**9, 10**9, 1_000_000))
        refused = desk.refused(code=3)
    assert "checkpoints need" in refused.problem
    assert "976.6 KiB" in refused.problem
    assert not desk.run.exists()
    assert desk.train().code == 0


def test_a_place_that_takes_no_checkpoints_is_told_before_the_first_step(desk: Desk) -> None:
    (desk.run / ".lowtide").mkdir(parents=True)
    (desk.run / "checkpoints").write_text("a file, not a folder")
    refused = desk.refused(code=1)
    assert str(desk.run / "checkpoints") in refused.problem
    assert not (desk.run / "log.jsonl").exists()
    (desk.run / "checkpoints").unlink()
    assert desk.train().code == 0


def test_a_name_too_long_for_the_disk_is_told(desk: Desk) -> None:
    desk.run = desk.folder / ("r" * 300)
    assert "too long" in desk.refused().err


def test_a_folder_of_other_things_is_left_alone(desk: Desk) -> None:
    desk.run.mkdir()
    (desk.run / "thesis.tex").write_text("mine")
    assert "thesis.tex" in desk.refused().problem
    assert [path.name for path in desk.run.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_checkpoint_is_named_and_following_the_hint_loses_nothing(
    desk: Desk, name: str, damage: str
) -> None:
    run_heard(desk.run, desk.settings)
    before, told = tensors_of(desk.run), told_of(desk.run)
    newest = find_checkpoints(desk.run)[-1]
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 4
    (newest / name).unlink()
    if damage != "gone":
        (newest / name).write_bytes(content if damage == "flipped" else content[:-20])
    refused = desk.refused(code=4)
    assert str(newest / name) in refused.problem
    advised = re.search(r"remove (\S+) to go on from (step-\d+)", refused.hint)
    assert advised, refused.hint
    assert advised[2] == "step-00000016"
    shutil.rmtree(advised[1])
    assert desk.train().code == 0
    assert (tensors_of(desk.run), told_of(desk.run)) == (before, told)


def test_a_damaged_record_of_the_run_is_told_and_the_advice_works(desk: Desk) -> None:
    run_heard(desk.run, desk.settings)
    (desk.run / RUN_NAME).write_text("{}")
    refused = desk.refused(code=4)
    assert RUN_NAME in refused.problem
    assert "--restart" in refused.hint
    assert desk.train("--restart").code == 0
