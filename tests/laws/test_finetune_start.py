"""`train --init` begins where another training ended: with its loss, its shape, and small steps from there."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lowtide import TokenDataset
from lowtide.errors import DataError, UsageError
from lowtide.model.gpt import GPT
from lowtide.settings import TrainRequest
from lowtide.stages.initial_weights import find_initial_weights
from lowtide.stages.resolve_run import resolve_run
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.run_folder import read_run_record
from lowtide.training.settings import TrainSettings, steps_for
from tests.laws.finetuning import examples_of, save_theirs, their_loss, tune
from tests.training.small_examples import PACKED, make_example_tokens
from tests.training.small_runs import (
    SHAPE,
    losses_told,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
    told_of,
    write_plan,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples, text, a model of theirs, and a run of ours."""
    folder = tmp_path_factory.mktemp("finetune")
    make_example_tokens(folder / "examples")
    make_tokens(folder / "text")
    save_theirs(folder / "theirs")
    run_heard(folder / "ours", make_settings(folder / "text", steps=6))
    return folder


def asked_run(place: Path, data: str = "examples", **asked: object) -> TrainSettings:
    given = TrainRequest(**{"device": "cpu", **asked})  # type: ignore[arg-type]
    return resolve_run(place / data, place / "new", given, restart=False, environment={}).settings


def refused(place: Path, data: str = "examples", **asked: object) -> UsageError:
    with pytest.raises(UsageError) as found:
        asked_run(place, data, **asked)
    return found.value


def test_the_first_loss_is_transformers_own_and_it_falls(place: Path, tmp_path: Path) -> None:
    """By the command, with no setting but the start."""
    run = tmp_path / "run"
    ended = tune(place / "examples", run, "--init", place / "theirs", "--epochs", "70").end()
    assert ended.code == 0, ended.err
    settings = read_run_record(run).settings
    dataset = TokenDataset(place / "examples", context=SHAPE.context, seed=settings.seed)
    assert dataset.padding_share < 0.2
    wanted = their_loss(place / "theirs", *examples_of(dataset, 0, settings.windows_per_step))
    losses = losses_told(run)
    assert losses[0] == pytest.approx(wanted, rel=1e-4)
    assert sum(losses[-5:]) / 5 < losses[0] - 0.05
    assert len(losses) == steps_for(70, window_count=dataset.window_count, windows_per_step=32)
    assert f"from the weights of {place / 'theirs'}: learning rate 0.00035 after" in ended.err
    assert "falling to 0; weight decay 0.01; 70 epochs" in ended.err


def test_settings_that_nobody_asked_for(place: Path) -> None:
    settings = asked_run(place, init=str(place / "theirs"))
    windows = TokenDataset(place / "examples", context=SHAPE.context).window_count
    assert settings.shape == SHAPE
    assert settings.model == "custom"
    assert (settings.windows, settings.attention) == ("document", "document")
    assert settings.windows_per_step == 32
    assert settings.epochs == 3
    assert settings.steps == math.ceil(3 * windows / 32)
    assert settings.learning_rate == pytest.approx(3.5e-4)
    assert settings.final_learning_rate == 0
    assert settings.weight_decay == 0.01
    assert settings.warmup_steps == int(0.03 * settings.steps)
    over_text = asked_run(place, "text", init=str(place / "theirs"), steps=200)
    assert (over_text.windows, over_text.attention) == ("contiguous", "window")
    assert (over_text.epochs, over_text.steps, over_text.warmup_steps) == (None, 200, 6)


def test_examples_without_a_start_are_packed_too_and_epochs_are_counted(place: Path) -> None:
    settings = asked_run(place, model="gpt2-nano", context=16, epochs=2.5)
    assert (settings.windows, settings.attention, settings.init) == ("document", "document", None)
    windows = TokenDataset(place / "examples", context=16).window_count
    per_step = settings.windows_per_step
    assert settings.steps == steps_for(2.5, window_count=windows, windows_per_step=per_step)
    assert settings.epochs == 2.5
    over_text = asked_run(place, "text", model="gpt2-nano", context=16, epochs=2)
    windows = TokenDataset(place / "text", context=16).window_count
    assert over_text.steps == math.ceil(2 * windows / over_text.windows_per_step)


def test_a_run_and_each_of_its_checkpoints_can_be_started_from(place: Path) -> None:
    newest = find_checkpoints(place / "ours")[-1]
    models = []
    for init in (place / "ours", newest):
        model = GPT(find_initial_weights(init).shape_for(context=None, vocabulary_size=None))
        find_initial_weights(init).load(model)
        models.append(dict(model.named_parameters()))
    older = find_initial_weights(find_checkpoints(place / "ours")[0])
    assert older.digest() != find_initial_weights(newest).digest()
    assert find_initial_weights(place / "ours").digest() == find_initial_weights(newest).digest()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_shorter_context_takes_the_first_positions(place: Path) -> None:
    for init in (place / "ours", place / "theirs"):
        whole, cut = (
            GPT(find_initial_weights(init).shape_for(context=context, vocabulary_size=None))
            for context in (None, 9)
        )
        find_initial_weights(init).load(whole)
        find_initial_weights(init).load(cut)
        kept = whole.position_embedding.weight[:9]
        assert torch.equal(cut.position_embedding.weight, kept)
        tokens = torch.randint(100, (3, 9))
        assert torch.equal(cut.features(tokens), whole.features(tokens))
    assert asked_run(place, init=str(place / "theirs"), context=9).shape.context == 9


def test_what_a_start_cannot_be_is_refused(place: Path, tmp_path: Path) -> None:
    theirs = str(place / "theirs")
    assert "longer than the 16 positions" in refused(place, init=theirs, context=32).problem
    assert "--context 16" in refused(place, init=theirs, context=32).remedy
    small = save_theirs(tmp_path / "small", replace(SHAPE, vocabulary_size=100))
    too_few = refused(place, init=str(small))
    assert "a vocabulary of 131" in too_few.problem
    assert "--tokenizer" in too_few.remedy
    assert "not gpt2" in refused(place, init=theirs, model="gpt2").problem
    assert "both say where" in refused(place, init=theirs, steps=5, epochs=2).problem
    assert "does not exist" in refused(place, init=str(tmp_path / "nowhere")).problem
    assert "neither a run nor a model" in refused(place, init=str(place / "text")).problem
    assert "cannot be run" in refused(place, init=theirs, epochs=-1).problem
    empty = tmp_path / "empty"
    shutil.copytree(place / "ours", empty)
    shutil.rmtree(empty / "checkpoints")
    assert "no checkpoint to start from" in refused(place, init=str(empty)).problem


def test_who_names_another_start_is_told(place: Path, tmp_path: Path) -> None:
    settings = asked_run(place, init=str(place / "theirs"), epochs=0.5)
    run_heard(tmp_path / "run", settings)
    assert (
        read_run_record(tmp_path / "run").start == find_initial_weights(place / "theirs").digest()
    )

    def again(init: Path) -> TrainSettings:
        asked = TrainRequest(device="cpu", init=str(init), epochs=0.5)
        found = resolve_run(
            place / "examples", tmp_path / "run", asked, restart=False, environment={}
        )
        return found.settings

    assert again(place / "theirs") == replace(settings, data=again(place / "theirs").data)
    with pytest.raises(UsageError, match=r"started from the weights of .*theirs, not from"):
        again(place / "ours")


def test_with_a_plan_the_start_is_compared_too_and_may_be_gone(place: Path, tmp_path: Path) -> None:
    init = shutil.copytree(place / "theirs", tmp_path / "start")
    settings = asked_run(place, init=str(init), epochs=0.5)
    run_heard(tmp_path / "run", settings)
    plan = write_plan(tmp_path / "plan.toml", settings)
    shutil.rmtree(init)

    def again(init: Path) -> TrainSettings:
        asked = TrainRequest(device="cpu", plan=plan, init=str(init))
        found = resolve_run(
            place / "examples", tmp_path / "run", asked, restart=False, environment={}
        )
        return found.settings

    assert again(init).init == str(init)
    with pytest.raises(UsageError, match="not from"):
        again(place / "ours")


def test_every_example_is_seen_exactly_so_many_times(place: Path, tmp_path: Path) -> None:
    """The last step is short: nothing comes a third time to fill it."""
    windows = TokenDataset(place / "examples", context=SHAPE.context).window_count
    assert (2 * windows) % 8
    steps = steps_for(2, window_count=windows, windows_per_step=8)
    settings = make_settings(place / "examples", **PACKED, steps=steps, epochs=2)
    result, _ = run_heard(tmp_path / "run", settings)
    assert result.state.step == steps == math.ceil(2 * windows / 8)
    assert result.state.loader["position"] == 2 * windows
    with pytest.raises(UsageError, match="windows are") as found:
        run_heard(tmp_path / "other", replace(settings, steps=steps + 1))
    assert f"steps = {steps}" in found.value.remedy


def test_resuming_needs_the_start_no_more(place: Path, tmp_path: Path) -> None:
    """Killed in the middle, its start gone: the weights of a run that never was disturbed, byte for byte."""
    init = shutil.copytree(place / "theirs", tmp_path / "start")
    settings = replace(
        asked_run(place, init=str(init), epochs=20), checkpoint_every=7, sample_every=0
    )
    run_heard(tmp_path / "undisturbed", settings)
    plan = tmp_path / "plan.toml"
    write_plan(plan, settings)
    run = tmp_path / "run"
    for at in (9, 23):
        command = tune(place / "examples", run, "--plan", plan)
        command.wait_for_step(run, at)
        command.send(9)
        assert command.end().code == -9
        shutil.rmtree(init, ignore_errors=True)
    command = tune(place / "examples", run)  # what stands in the folder is enough
    ended = command.end()
    assert ended.code == 0, ended.err
    assert tensors_of(run) == tensors_of(tmp_path / "undisturbed")
    assert told_of(run) == told_of(tmp_path / "undisturbed")


def test_weights_that_cannot_be_meant_are_refused(place: Path, tmp_path: Path) -> None:
    deeper = save_theirs(tmp_path / "deeper", replace(SHAPE, layers=SHAPE.layers + 1))
    shutil.copy(place / "theirs" / "config.json", deeper / "config.json")
    model = GPT(find_initial_weights(deeper).shape_for(context=None, vocabulary_size=None))
    with pytest.raises(DataError, match=rf"have {SHAPE.layers + 1} layers"):
        find_initial_weights(deeper).load(model)
    broken = shutil.copytree(place / "theirs", tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["transformer.ln_f.bias"][3] = math.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="not finite"):
        find_initial_weights(broken).load(model)
