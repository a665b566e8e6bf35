"""Settings survive being stored, refuse what cannot be, and name what a resumed run may not change."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.training.settings import FIXED_ON_RESUME, differences, settings_of, steps_for
from tests.training.small_runs import SHAPE, make_settings

SETTINGS = make_settings(Path("somewhere"))


def test_what_was_stored_reads_back_the_same() -> None:
    stored = json.loads(json.dumps(SETTINGS.as_record()))
    assert settings_of(stored) == SETTINGS
    assert settings_of({**stored, "val_fraction": 0.1}) == replace(SETTINGS, val_fraction=0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("micro_batch", 0),
        ("batch_tokens", 0),
        ("batch_tokens", 17),
        ("evaluate_windows", 0),
        ("warmup_steps", -1),
        ("checkpoint_every", -1),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("final_learning_rate", -1e-9),
        ("clip", 0.0),
        ("weight_decay", -0.1),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("epochs", 0.0),
        ("epochs", math.nan),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(name: str, value: float) -> None:
    with pytest.raises(UsageError) as refused:
        replace(SETTINGS, **{name: value})  # type: ignore[arg-type]
    assert str(value) in refused.value.problem
    assert name in refused.value.problem or name == "batch_tokens"
    assert "pass" in refused.value.remedy


def test_tokens_that_are_no_whole_windows_get_the_nearest_that_are() -> None:
    with pytest.raises(UsageError) as refused:
        replace(SETTINGS, batch_tokens=7 * SHAPE.context + 3)
    assert f"batch_tokens = {7 * SHAPE.context}" in refused.value.remedy


def test_a_setting_of_another_kind_is_an_error_of_ours() -> None:
    with pytest.raises(UsageError, match="not valid"):
        settings_of({**SETTINGS.as_record(), "steps": "many"})


def test_only_what_decides_the_weights_must_stay() -> None:
    other = replace(SETTINGS, micro_batch=1, recipe="lean", evaluate_every=1, data="elsewhere")
    assert differences(SETTINGS, other) == []
    changed = replace(SETTINGS, steps=99, seed=7)
    assert sorted(differences(SETTINGS, changed)) == [
        "seed was 0 and is 7",
        "steps was 24 and is 99",
    ]


def test_states_in_eight_bits_are_another_run() -> None:
    assert differences(SETTINGS, replace(SETTINGS, recipe="leanest")) == [
        "recipe was fast and is leanest"
    ]


def test_every_name_that_must_stay_is_a_setting() -> None:
    assert set(FIXED_ON_RESUME) <= SETTINGS.as_record().keys()


def test_a_record_from_before_fine_tuning_reads_as_it_was_meant() -> None:
    stored = json.loads(json.dumps(SETTINGS.as_record()))
    old = {
        name: value
        for name, value in stored.items()
        if name not in ("attention", "schedule", "init", "epochs")
    }
    found = settings_of(old)
    assert (found.attention, found.schedule) == ("window", "cosine")
    assert (found.init, found.epochs) == (None, None)
    assert differences(found, SETTINGS) == []


def test_where_a_run_began_may_be_forgotten_and_what_it_learns_from_may_not() -> None:
    assert differences(SETTINGS, replace(SETTINGS, init="elsewhere")) == []
    other = replace(SETTINGS, attention="document", schedule="constant", epochs=2.0)
    assert differences(SETTINGS, other) == [
        "attention was window and is document",
        "schedule was cosine and is constant",
        "epochs was None and is 2.0",
    ]


def test_steps_see_every_window_so_many_times() -> None:
    assert steps_for(1, window_count=16, windows_per_step=8) == 2
    assert steps_for(1, window_count=17, windows_per_step=8) == 3
    assert steps_for(2.5, window_count=17, windows_per_step=8) == 6
    assert steps_for(0.001, window_count=17, windows_per_step=8) == 1
