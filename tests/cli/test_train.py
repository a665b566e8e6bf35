"""`lowtide train` as a person uses it: it trains, goes on, begins again and says what it came to."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from lowtide.errors import StoppedError
from lowtide.stages.train import train
from lowtide.training.checkpoint import find_checkpoints
from tests.commands import Outcome, call
from tests.training.small_runs import (
    SHAPE,
    Heard,
    losses_told,
    make_settings,
    make_tokens,
    tensors_of,
    told_of,
    write_plan,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("cli") / "tokens")


@pytest.fixture
def plan(data: Path, tmp_path: Path) -> Path:
    return write_plan(tmp_path / "plan.toml", make_settings(data, steps=10))


@pytest.fixture
def trained(
    data: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, Outcome]:
    run = tmp_path / "run"
    return run, call(capsys, "train", data, "--plan", plan, "--out", run)


def test_a_run_says_what_it_came_to_and_what_comes_next(trained: tuple[Path, Outcome]) -> None:
    run, done = trained
    assert done.code == 0, done.err
    rows = dict(line.split(maxsplit=1) for line in done.out.splitlines() if "  " in line)
    assert rows["run"] == str(run)
    assert rows["steps"] == "10, 1280 tokens"
    assert "next" not in rows  # the tokenizer of these tokens is nowhere to be had
    assert "val loss" in done.out
    assert "step 10 of 10" in done.err
    assert len(losses_told(run)) == 10
    assert list(run.glob("events.out.tfevents.*"))


def test_the_same_command_again_finds_it_done(
    trained: tuple[Path, Outcome], data: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    before = tensors_of(run)
    again = call(capsys, "train", data, "--plan", plan, "--out", run, "--json", "--quiet")
    assert (again.code, again.err) == (0, "")
    assert again.json["already_done"] is True
    assert again.json["step"] == 10
    assert call(capsys, "train", data, "--out", run).err == ""  # no plan for what is done
    without_plan = call(capsys, "train", data, "--out", run, "--json")
    assert without_plan.json["already_done"] is True
    assert tensors_of(run) == before


def test_restart_begins_again_and_removes_only_what_a_run_leaves(
    trained: tuple[Path, Outcome], data: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    (run / "notes.txt").write_text("mine")
    words = ("train", data, "--plan", plan, "--out", run, "--quiet")
    again = call(capsys, *words, "--seed", "1", "--restart")
    assert again.code == 0, again.err
    assert [record["step"] for record in told_of(run, "start")] == [0]
    assert len(losses_told(run)) == 10
    assert (run / "notes.txt").read_text() == "mine"
    assert len(list(run.glob("events.out.tfevents.*"))) == 1


def test_wishes_beside_the_plan_are_heard(
    data: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--steps", "6", "--batch-tokens", str(4 * SHAPE.context), "--micro-batch", "2")
    run = tmp_path / "run"
    done = call(capsys, "train", data, "--plan", plan, "--out", run, "--recipe", "lean", *words)
    assert done.code == 0, done.err
    told = told_of(run)
    assert (len(told), told[-1]["tokens"]) == (6, 6 * 4 * SHAPE.context)
    settings = told_of(run, "start")[0]["settings"]
    assert isinstance(settings, dict)
    assert (settings["recipe"], settings["micro_batch"]) == ("lean", 2)


def test_without_a_plan_one_is_made_for_the_data(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ("--model", "gpt2-nano", "--context", "16", "--steps", "2", "--batch-tokens", "32")
    more = ("--device", "cpu", "--micro-batch", "2")
    done = call(capsys, "train", data, "--out", run, *words, *more)
    assert done.code == 0, done.err
    assert "gpt2-nano" in done.out
    assert find_checkpoints(run)[-1].name == "step-00000002"


def test_what_is_about_to_happen_is_said_first(
    data: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = call(capsys, "train", data, "--plan", plan, "--out", tmp_path / "run").err.splitlines()
    assert said[0].startswith("note: custom, 8944 parameters, windows of 16 tokens")
    assert "on the CPU with" in said[0]
    assert "10 steps of 128 tokens" in said[1]
    assert "in all (assumed: 35%" in said[1]
    assert "Ctrl-C" in said[2]


@pytest.mark.parametrize("command", ["inspect", "verify", "plan"])
def test_a_run_is_not_taken_for_data(
    trained: tuple[Path, Outcome], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    refused = call(capsys, command, trained[0])
    assert refused.code == 2
    assert "holds a training run and no tokens" in refused.problem
    assert "lowtide sample" in refused.hint


@pytest.mark.parametrize(
    "words",
    [
        ("train", "tokens", "--out", "run"),
        ("sample", "run", "--prompt", "x"),
        ("export", "run", "--to", "huggingface", "--out", "m"),
    ],
)
def test_without_torch_it_is_told_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "torch" else find(name, *more),
    )
    refused = call(capsys, *words)
    assert refused.code == 2
    assert "torch is not installed" in refused.problem
    assert "lowtide[train]" in refused.hint


def test_a_tokenizer_that_did_not_make_the_data_is_refused(
    data: Path, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", data, "--plan", plan, "--out", tmp_path / "run", "--tokenizer", "gpt2")
    refused = call(capsys, *words)
    assert refused.code == 2
    assert "not by gpt2" in refused.problem


@pytest.mark.parametrize("seed", ["9" * 30, "1.5", "x"])
def test_a_seed_that_is_none_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: str
) -> None:
    assert call(capsys, "train", data, "--out", tmp_path / "run", "--seed", seed).code == 2


def test_a_plan_knows_how_fast_a_run_was_here(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", "gpt2-nano", "--context", "16", "--batch-tokens", "16", "--device", "cpu")
    before = call(capsys, "plan", data, "--model", "gpt2-nano", "--context", "16", "--json").json
    for steps, known in (("9", False), ("50", True)):
        run = ("train", data, "--out", tmp_path / steps, *words, "--steps", steps, "--quiet")
        assert call(capsys, *run).code == 0
        again = call(capsys, "plan", data, "--model", "gpt2-nano", "--context", "16").out
        assert ("measured here" in again) == known
    after = call(capsys, "plan", data, "--model", "gpt2-nano", "--context", "16")
    assert "(measured here)" in after.out
    assert "assumed" in str(before)


def test_a_run_counts_the_steps_of_each_call(data: Path, tmp_path: Path) -> None:
    """A call that takes one step, which compiles, must not be remembered as the speed of the machine."""
    settings, heard = make_settings(data, steps=9), Heard()
    with pytest.raises(StoppedError):
        train(
            tmp_path / "run",
            settings,
            listen=heard,
            should_stop=lambda: "terminated" if len(heard.losses) >= 8 else None,
        )
    assert train(tmp_path / "run", settings).steps == 1
    assert train(tmp_path / "run", settings).steps == 0


@pytest.mark.slow
def test_a_smoke_test_tells_and_leaves_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = write_plan(tmp_path / "plan.toml", make_settings(data, steps=5000, learning_rate=0.01))
    before = sorted(path for path in tmp_path.rglob("*"))
    words = ("train", data, "--plan", plan, "--out", tmp_path / "run", "--smoke")
    tried = call(capsys, *words, "--json")
    assert tried.code == 0, tried.err
    report = tried.json["smoke"]
    assert isinstance(report, dict)
    assert report["problems"] == []
    assert report["first_loss"] == pytest.approx(4.87, abs=0.1)
    assert report["hours"] > 0
    assert "trying ten steps" in tried.err
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("chosen", "then"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "x"}, {"PYTORCH_ALLOC_CONF": "x"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "x"}, {"PYTORCH_CUDA_ALLOC_CONF": "x"}),
    ],
)
def test_the_allocator_lets_segments_grow_unless_it_was_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    chosen: dict[str, str],
    then: dict[str, str],
) -> None:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    for name in names:
        monkeypatch.setenv(name, "before")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert call(capsys, "train", tmp_path / "none", "--out", tmp_path / "run").code == 2
    assert {name: os.environ[name] for name in names if name in os.environ} == then


@pytest.mark.parametrize(
    ("chosen", "then"),
    [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"), ({"GOMP_SPINCOUNT": "9"}, None)],
)
def test_waiting_threads_sleep_unless_they_were_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    chosen: dict[str, str],
    then: str | None,
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "before")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert call(capsys, "train", tmp_path / "none", "--out", tmp_path / "run").code == 2
    assert os.environ.get("OMP_WAIT_POLICY") == then


def test_weights_and_biases_is_asked_for_and_missing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("it is installed here")
    words = ("--model", "gpt2-nano", "--context", "16", "--steps", "2", "--batch-tokens", "32")
    done = call(
        capsys, "train", data, "--out", tmp_path / "run", "--device", "cpu", "--wandb", "x", *words
    )
    assert done.code == 2
    assert "lowtide[wandb]" in done.err
