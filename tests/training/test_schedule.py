"""The learning rate rises in a line, falls in half a cosine, and needs nothing but the step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.training.schedule import learning_rate_at
from tests.training.small_runs import make_settings

SETTINGS = make_settings(
    Path("somewhere"),
    steps=110,
    warmup_steps=10,
    learning_rate=1.0,
    final_learning_rate=0.1,
)


def test_known_places() -> None:
    assert learning_rate_at(0, SETTINGS) == pytest.approx(1 / 11)
    assert learning_rate_at(9, SETTINGS) == pytest.approx(10 / 11)
    assert learning_rate_at(10, SETTINGS) == 1.0
    assert learning_rate_at(60, SETTINGS) == pytest.approx(0.55)
    assert learning_rate_at(110, SETTINGS) == pytest.approx(0.1)
    assert learning_rate_at(35, SETTINGS) == pytest.approx(0.1 + 0.45 * (1 + math.sqrt(0.5)))


@given(steps=st.integers(1, 300), warmup=st.integers(0, 400))
def test_it_rises_once_and_falls_once_and_is_never_zero(steps: int, warmup: int) -> None:
    settings = replace(SETTINGS, steps=steps, warmup_steps=warmup)
    rates = [learning_rate_at(step, settings) for step in range(steps + 5)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert all(0 < rate <= 1.0 for rate in rates)


def test_a_constant_one_rises_and_stays_however_many_steps_there_are() -> None:
    flat = replace(SETTINGS, schedule="constant")
    assert [learning_rate_at(step, flat) for step in range(10)] == [
        learning_rate_at(step, SETTINGS) for step in range(10)
    ]
    assert {learning_rate_at(step, flat) for step in (10, 60, 109, 110, 10**9)} == {1.0}
