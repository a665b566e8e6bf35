"""What does not fit is refused before anything starts, and the advice works."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import DoesNotFitError, UsageError
from lowtide.memory.limits import LimitCandidate, MemoryLimit
from lowtide.model.shape import find_shape
from lowtide.plan.machine import choose_machine
from lowtide.settings import Recipe, TrainRequest
from lowtide.stages.resolve_run import check_fit, resolve_run
from lowtide.training.settings import TrainSettings
from lowtide.training.time_steps import time_steps
from lowtide.units import GIB, parse_bytes
from tests.commands import call
from tests.training.small_runs import make_settings, make_tokens, write_plan

SMALL_CARD = choose_machine(gpu="RTX 4070")


def wanted(model: str, micro_batch: int, recipe: Recipe = "fast") -> TrainSettings:
    shape = find_shape(model)
    return TrainSettings(
        model=model,
        shape=shape,
        data="somewhere",
        batch_tokens=micro_batch * shape.context,
        micro_batch=micro_batch,
        steps=10,
        learning_rate=1e-4,
        final_learning_rate=1e-5,
        warmup_steps=1,
        recipe=recipe,
    )


def follow(advice: str, settings: TrainSettings) -> TrainSettings | None:
    """The settings with what a remedy asks for; None where it names no flag."""
    flags = dict(re.findall(r"--([a-z-]+) (\w+)", advice))
    if not flags:
        return None
    recipe = flags.get("recipe", settings.recipe)
    return replace(settings, micro_batch=int(flags["micro-batch"]), recipe=recipe)  # type: ignore[arg-type]


def test_a_recipe_that_cannot_run_is_not_advised() -> None:
    settings = wanted("gpt2-large", 4, "lean")
    with pytest.raises(DoesNotFitError) as refused:
        check_fit(settings, replace(SMALL_CARD, has_torchao=False))
    assert follow(refused.value.remedy, settings) is None


@pytest.mark.parametrize(
    ("model", "micro_batch", "recipe"),
    [
        ("gpt2", 40, "fast"),
        ("gpt2-medium", 8, "fast"),
        ("gpt2-large", 4, "fast"),
        ("gpt2-large", 4, "lean"),
        ("gpt2-large", 400, "leanest"),
    ],
)
def test_advice_that_is_followed_once_is_enough(
    model: str, micro_batch: int, recipe: Recipe
) -> None:
    settings = wanted(model, micro_batch, recipe)
    with pytest.raises(DoesNotFitError) as refused:
        check_fit(settings, SMALL_CARD)
    then = follow(refused.value.remedy, settings)
    assert then is not None, refused.value.remedy
    assert check_fit(then, SMALL_CARD) <= SMALL_CARD.budget_bytes


def test_a_recipe_that_was_chosen_is_kept_where_it_fits() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        check_fit(wanted("gpt2", 300, "lean"), SMALL_CARD)
    assert "`--micro-batch 133`" in refused.value.remedy


def test_where_no_recipe_helps_none_is_advised() -> None:
    settings = wanted("gpt2-xl", 1, "leanest")
    with pytest.raises(DoesNotFitError) as refused:
        check_fit(settings, SMALL_CARD)
    assert follow(refused.value.remedy, settings) is None
    assert "smaller model" in refused.value.remedy


def test_tokens_of_a_step_are_rounded_as_in_a_plan(tmp_path: Path) -> None:
    data = make_tokens(tmp_path / "tokens")
    plan = write_plan(tmp_path / "plan.toml", make_settings(data))
    asked = TrainRequest(plan=plan, batch_tokens=70)
    chosen = resolve_run(data, tmp_path / "run", asked, restart=False, environment={})
    assert chosen.settings.batch_tokens == 64


@pytest.mark.parametrize("longer", [{"steps": 51}, {"epochs": 2.5}])
def test_a_longer_run_is_evaluated_as_rarely_as_one_that_was_planned(
    longer: dict[str, int], tmp_path: Path
) -> None:
    data = make_tokens(tmp_path / "tokens")
    planned = make_settings(
        data, steps=9, evaluate_every=1, checkpoint_every=4, sample_every=1, warmup_steps=0
    )
    asked = TrainRequest(plan=write_plan(tmp_path / "plan.toml", planned), **longer)  # type: ignore[arg-type]
    found = resolve_run(data, tmp_path / "run", asked, restart=False, environment={}).settings
    assert found.steps > 50
    assert (found.evaluate_every, found.sample_every) == (6, 6)
    assert found.checkpoint_every == 4  # a person chose it


@pytest.mark.parametrize("asked", [TrainRequest(context=8), TrainRequest(model="gpt2")])
def test_who_has_other_windows_or_another_model_is_named(
    asked: TrainRequest, tmp_path: Path
) -> None:
    data = make_tokens(tmp_path / "tokens")
    plan = write_plan(tmp_path / "plan.toml", make_settings(data))
    with pytest.raises(UsageError) as refused:
        resolve_run(
            data, tmp_path / "run", replace(asked, plan=plan), restart=False, environment={}
        )
    assert str(plan) in refused.value.problem
    assert "lowtide plan" in refused.value.remedy


def test_a_budget_too_small_for_the_model_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = make_tokens(tmp_path / "tokens")
    words = ("--model", "gpt2", "--context", "16", "--steps", "2", "--device", "cpu")
    refused = call(capsys, "train", data, "--out", tmp_path / "run", *words, "--memory", "400MiB")
    assert refused.code == 3, refused.err
    assert "needs" in refused.problem
    assert "--memory" in refused.hint
    assert not (tmp_path / "run").exists()


def test_on_a_cpu_a_smaller_micro_batch_is_advised_and_fits(
    capsys: pytest.CaptureFixture[str], large: Path, tmp_path: Path
) -> None:
    words = ("--model", "gpt2-pico", "--context", "64", "--steps", "2", "--device", "cpu")
    words += ("--memory", "600MiB", "--batch-tokens", "4096")
    refused = call(capsys, "train", large, "--out", tmp_path / "run", *words, "--micro-batch", "64")
    assert refused.code == 3, refused.err
    smaller = re.findall(r"--micro-batch (\d+)", refused.hint)[0]
    enough, recipe = re.findall(r"--memory (\w+)` or more with `--recipe (\w+)", refused.hint)[0]
    for micro_batch, memory, taken in ((int(smaller), "600MiB", None), (64, enough, recipe)):
        asked = TrainRequest(
            model="gpt2-pico",
            context=64,
            steps=2,
            batch_tokens=4096,
            device="cpu",
            micro_batch=micro_batch,
            memory=memory,
            recipe=taken,
        )
        chosen = resolve_run(large, tmp_path / "run", asked, restart=False, environment={})
        assert chosen.settings.micro_batch == micro_batch


GPT2_TOKENS = 20_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens enough for an hour, of GPT-2's vocabulary; nothing reads them."""
    path = tmp_path_factory.mktemp("large") / "train.bin"
    with path.open("wb") as file:
        file.truncate(2 * GPT2_TOKENS)
    return path.parent


def timed(monkeypatch: pytest.MonkeyPatch, rate: float) -> list[str]:
    """Every model has this much arithmetic a second; which ones were timed."""
    asked = []

    def time_steps(settings: TrainSettings, **_: object) -> float:
        asked.append(settings.model)
        return rate / settings.shape.flops_per_token

    monkeypatch.setattr("lowtide.training.time_steps.time_steps", time_steps)
    return asked


@pytest.mark.parametrize("flops", [2e9, 2e10, 2e11, 2e12])
def test_on_a_cpu_a_run_that_nobody_sized_ends_within_the_hour(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flops: float
) -> None:
    asked = timed(monkeypatch, flops)
    speeds = tmp_path / "speeds.json"
    chosen = resolve_run(
        large,
        tmp_path / "run",
        TrainRequest(device="cpu"),
        restart=False,
        environment={},
        speeds=speeds,
    )
    assert chosen.settings.model in asked
    assert chosen.speed is not None
    rate = flops / chosen.settings.shape.flops_per_token
    assert chosen.speed.tokens_per_second == pytest.approx(rate)
    assert chosen.hours is not None
    assert 0.2 < chosen.hours < 0.65  # evaluations, too; the hour is for a machine half as fast
    timed_first = asked[:]
    again = resolve_run(
        large,
        tmp_path / "run",
        TrainRequest(device="cpu"),
        restart=False,
        environment={},
        speeds=speeds,
    )
    assert again == chosen
    assert asked == timed_first


@pytest.mark.parametrize("place", [None, "a file/speeds.json"])
def test_speeds_that_cannot_be_remembered_are_used_all_the_same(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    asked = timed(monkeypatch, 2e10)
    (tmp_path / "a file").touch()
    speeds = None if place is None else tmp_path / place
    chosen = resolve_run(
        large,
        tmp_path / "run",
        TrainRequest(device="cpu"),
        restart=False,
        environment={},
        speeds=speeds,
    )
    assert chosen.settings.model in asked
    assert len(asked) == len(set(asked))
    assert chosen.speed is not None
    rate = 2e10 / chosen.settings.shape.flops_per_token
    assert chosen.speed.tokens_per_second == pytest.approx(rate)
    assert chosen.hours is not None
    assert 0.2 < chosen.hours < 1.0


def test_on_a_cpu_no_more_windows_at_a_time_are_taken_than_make_it_faster(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 1e11)
    asked = TrainRequest(device="cpu", model="gpt2", context=256)
    chosen = resolve_run(
        large,
        tmp_path / "run",
        asked,
        restart=False,
        environment={},
        speeds=tmp_path / "speeds.json",
    )
    assert chosen.settings.micro_batch * 256 <= 1024
    assert chosen.settings.recipe == "fast"


@pytest.mark.parametrize("torchao", [None, "found"])
@pytest.mark.parametrize(("model", "memory"), [("gpt2-mini", "1GiB"), ("gpt2", "2GiB")])
def test_the_budget_decides_what_fits_on_a_cpu_and_the_advice_works(
    large: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    memory: str,
    torchao: str | None,
) -> None:
    timed(monkeypatch, 1e11)
    monkeypatch.setattr("lowtide.plan.machine.find_spec", lambda _: torchao)
    asked = TrainRequest(device="cpu", model=model, memory=memory, steps=5)
    with pytest.raises(DoesNotFitError) as refused:
        resolve_run(large, tmp_path / "run", asked, restart=False, environment={})
    advised = re.search(r"`--memory (\S+)`", refused.value.remedy)
    assert advised
    asked = replace(asked, memory=advised[1])
    chosen = resolve_run(large, tmp_path / "run", asked, restart=False, environment={})
    assert sum(chosen.ram_needs.values()) <= parse_bytes(advised[1])


def have_little_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """A machine of 24 GiB; by default a run leaves 6 GiB of them free."""
    free = LimitCandidate(source="this test", total_bytes=free_bytes, whole_bytes=24 * GIB)
    limit = MemoryLimit(candidates=(free,))
    monkeypatch.setattr("lowtide.plan.machine.machine_limit", lambda **_: limit)


@pytest.mark.parametrize("planned", [True, False])
def test_where_the_default_leaves_nothing_it_is_named_and_the_advice_works(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool
) -> None:
    timed(monkeypatch, 1e11)
    have_little_free(monkeypatch, 5 * GIB)
    if planned:
        data = make_tokens(tmp_path / "tokens")
        asked = TrainRequest(plan=write_plan(tmp_path / "plan.toml", make_settings(data)))
    else:
        data, asked = large, TrainRequest(device="cpu", model="gpt2-mini", steps=5)
    with pytest.raises(DoesNotFitError) as refused:
        resolve_run(data, tmp_path / "run", asked, restart=False, environment={})
    assert "a quarter of the memory free" in refused.value.problem
    advised = re.search(r"^pass `--memory (\S+)`", refused.value.remedy)
    assert advised
    asked = replace(asked, memory=advised[1])
    chosen = resolve_run(data, tmp_path / "run", asked, restart=False, environment={})
    assert sum(chosen.ram_needs.values()) <= parse_bytes(advised[1])


def test_more_memory_than_is_free_is_not_advised(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_little_free(monkeypatch, GIB)
    asked = TrainRequest(device="cpu", model="gpt2", steps=5)
    with pytest.raises(DoesNotFitError) as refused:
        resolve_run(large, tmp_path / "run", asked, restart=False, environment={})
    assert refused.value.remedy.startswith("run where `--memory")


def test_without_torchao_the_leanest_recipe_is_not_planned(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 1e11)
    asked = TrainRequest(device="cpu", model="gpt2", memory="2400MiB", steps=5)
    monkeypatch.setattr("lowtide.plan.machine.find_spec", lambda _: None)
    with pytest.raises(DoesNotFitError):
        resolve_run(large, tmp_path / "run", asked, restart=False, environment={})
    monkeypatch.setattr("lowtide.plan.machine.find_spec", lambda _: "found")
    chosen = resolve_run(large, tmp_path / "run", asked, restart=False, environment={})
    assert chosen.settings.recipe == "leanest"


def test_more_than_a_week_is_refused_unless_it_is_accepted(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(monkeypatch, 1e6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    started: list[str] = []

    def smoke(*_: object, **__: object) -> None:
        started.append("tried")
        raise UsageError("enough", remedy="none")

    monkeypatch.setattr("lowtide.stages.train.smoke", smoke)
    words = ("train", large, "--out", tmp_path / "run", "--device", "cpu", "--model", "gpt2-pico")
    assert call(capsys, *words).code == 3
    assert started == []
    assert call(capsys, *words, "--yes").code == 2
    assert started == ["tried"]


def test_steps_are_timed_by_taking_some() -> None:
    settings = make_settings(Path("nowhere"))
    assert 1 < time_steps(settings) < 1e8
