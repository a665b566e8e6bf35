"""What does not fit is refused before anything starts, and the advice works."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import DoesNotFitError
from lowtide.model.needs import Recipe
from lowtide.model.shape import find_shape
from lowtide.pipeline.choose_run import Asked, check_fit, choose_run
from lowtide.plan.machine import choose_machine
from lowtide.training.settings import RunSettings
from tests.commands import call
from tests.training.small_runs import make_settings, make_tokens, write_plan

SMALL_CARD = choose_machine(gpu="RTX 4070")


def wanted(model: str, micro_batch: int, recipe: Recipe = "fast") -> RunSettings:
    shape = find_shape(model)
    return RunSettings(
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


def follow(advice: str, settings: RunSettings) -> RunSettings | None:
    """The settings with what a remedy asks for; None where it names no flag."""
    flags = dict(re.findall(r"--([a-z-]+) (\w+)", advice))
    if not flags:
        return None
    recipe = flags.get("recipe", settings.recipe)
    return replace(settings, micro_batch=int(flags["micro-batch"]), recipe=recipe)  # type: ignore[arg-type]


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
    asked = Asked(plan=plan, batch_tokens=70)
    chosen = choose_run(data, tmp_path / "run", asked, restart=False, slurm={})
    assert chosen.settings.batch_tokens == 64


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
