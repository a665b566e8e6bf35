"""The watch speaks when something is wrong, and is silent over curves as they naturally are."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.training.watch_loss import (
    LONGEST_SPIKE_STEPS,
    MOST_NOT_FINITE,
    MOST_SPIKES,
    NOT_FINITE_STEPS,
    LossWatch,
    Trouble,
    Verdict,
)

VOCABULARY = 50_257
GUESS = math.log(VOCABULARY)


def _watch(warmup_steps: int = 100) -> LossWatch:
    return LossWatch(vocabulary_size=VOCABULARY, warmup_steps=warmup_steps)


def _told(watch: LossWatch, losses: list[float], first: int = 1) -> list[Verdict]:
    return [
        verdict
        for step, loss in enumerate(losses, start=first)
        for verdict in watch.see(step, loss, 1.0)
    ]


def _troubles(verdicts: list[Verdict]) -> set[Trouble]:
    return {verdict.trouble for verdict in verdicts}


def _natural(seed: int, steps: int, *, noise: float, floor: float, power: float) -> list[float]:
    """A power law from ln(vocabulary) on, slow at first for the warm-up, with noise that has a tail upwards."""
    draw = random.Random(seed)
    height = GUESS - floor
    losses = []
    for step in range(1, steps + 1):
        seen = max(0.0, step - 50)  # the warm-up's small rates learn little
        loss = floor + height * (1 + seen / 20) ** -power
        tail = draw.expovariate(1.0) - 1.0
        losses.append(loss + noise * (0.8 * draw.gauss(0, 1) + 0.6 * tail))
    return losses


@pytest.mark.parametrize("seed", range(100))
def test_natural_curves_raise_no_alarm(seed: int) -> None:
    draw = random.Random(seed)
    curve = _natural(
        seed,
        draw.choice([800, 3000, 6000]),
        noise=draw.choice([0.02, 0.05, 0.2]),
        floor=draw.uniform(1.5, 3.2),
        power=draw.uniform(0.25, 0.5),
    )
    assert _told(_watch(), curve) == []


def test_a_long_run_that_slows_down_raises_no_alarm() -> None:
    for seed in range(2):
        curve = _natural(seed, 40_000, noise=0.04, floor=2.8, power=0.35)
        assert _told(_watch(), curve) == []


@given(seed=st.integers(0, 2**32), at=st.integers(1000, 1900), height=st.floats(1.0, 50.0))
def test_a_jump_is_told_once_at_its_step(seed: int, at: int, height: float) -> None:
    curve = _natural(seed, 2000, noise=0.03, floor=2.0, power=0.4)
    curve[at - 1] += height
    watch = _watch()
    (verdict,) = _told(watch, curve)
    assert (verdict.trouble, verdict.action, verdict.step) == (Trouble.SPIKE, "tell", at)
    assert f"at step {at}" in verdict.sentence
    assert watch.spike_count == 1


def test_one_spike_that_lasts_a_while_is_one_and_the_run_goes_on() -> None:
    curve = [3.0] * 300 + [5.0] * (LONGEST_SPIKE_STEPS - 1) + [3.0] * 100
    assert [one.step for one in _told(_watch(), curve)] == [301]


def test_too_many_spikes_end_the_run() -> None:
    curve = [3.0] * 300
    for spike in range(MOST_SPIKES):
        curve[150 + 10 * spike] = 6.0
    verdicts = _told(_watch(), curve)
    assert [one.trouble for one in verdicts] == [Trouble.SPIKE] * MOST_SPIKES + [
        Trouble.TOO_MANY_SPIKES
    ]
    assert (verdicts[-1].action, verdicts[-1].step) == ("end", 151 + 10 * (MOST_SPIKES - 1))


def test_as_many_spikes_further_apart_do_not() -> None:
    curve = [3.0] * 600
    for spike in range(2 * MOST_SPIKES):
        curve[150 + 23 * spike] = 6.0
    spikes = [one for one in _told(_watch(), curve) if one.trouble is Trouble.SPIKE]
    assert len(spikes) == 2 * MOST_SPIKES
    assert _troubles(_told(_watch(), curve)) == {Trouble.SPIKE}


def test_a_loss_that_rises_and_stays_has_diverged() -> None:
    curve = _natural(0, 1000, noise=0.03, floor=2.0, power=0.4)
    verdicts = _told(_watch(), curve + [7.0] * (LONGEST_SPIKE_STEPS + 1))
    assert [one.trouble for one in verdicts] == [Trouble.SPIKE, Trouble.DIVERGED]
    assert (verdicts[-1].action, verdicts[-1].step) == ("end", 1001 + LONGEST_SPIKE_STEPS)


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (3.0, math.nan), (3.0, -math.inf)]
)
def test_a_step_that_is_not_finite_is_skipped_from_the_first_on(loss: float, norm: float) -> None:
    watch = _watch()
    for step in range(1, MOST_NOT_FINITE):
        (verdict,) = watch.see(step, loss, norm)
        assert (verdict.trouble, verdict.action) == (Trouble.NOT_FINITE, "skip")
    skip, end = watch.see(MOST_NOT_FINITE, loss, norm)
    assert (skip.action, end.action) == ("skip", "end")
    assert end.trouble is Trouble.TOO_MANY_NOT_FINITE
    assert watch.not_finite_count == MOST_NOT_FINITE


def test_steps_that_are_not_finite_now_and_then_do_not_end_the_run() -> None:
    apart = NOT_FINITE_STEPS // MOST_NOT_FINITE + 1
    curve = [math.nan if step % apart == 0 else 3.0 for step in range(400)]
    assert {one.action for one in _told(_watch(), curve)} == {"skip"}


def test_skipped_steps_do_not_change_later_verdicts() -> None:
    curve = [3.0] * 100 + [math.nan] * 5 + [3.0] * 50
    assert _troubles(_told(_watch(), curve)) == {Trouble.NOT_FINITE}


@pytest.mark.parametrize("warmup_steps", [0, 50, 700])
def test_a_model_that_only_guesses_is_pointed_out_after_the_warm_up(warmup_steps: int) -> None:
    draw = random.Random(0)
    curve = [GUESS + draw.gauss(0, 0.05) for _ in range(2 * warmup_steps + 300)]
    verdicts = [
        one for one in _told(_watch(warmup_steps), curve) if one.trouble is Trouble.NOT_FALLING
    ]
    assert verdicts[0].step == warmup_steps + 200
    assert verdicts[0].action == "tell"
    assert "10.825" in verdicts[0].sentence
    assert len(verdicts) == 1


def test_a_flat_loss_is_a_plateau_and_is_told_once_an_octave() -> None:
    draw = random.Random(0)
    curve = _natural(0, 1500, noise=0.03, floor=2.0, power=0.4)
    level = curve[-1]
    curve += [level + draw.gauss(0, 0.03) for _ in range(14_500)]
    verdicts = _told(_watch(), curve)
    assert _troubles(verdicts) == {Trouble.PLATEAU}
    assert 2000 < verdicts[0].step < 6000
    steps = [one.step for one in verdicts]
    assert all(later >= 2 * earlier for earlier, later in pairwise(steps))


def test_a_long_warm_up_is_no_plateau() -> None:
    draw = random.Random(0)
    curve = [7.0 + draw.gauss(0, 0.03) for _ in range(3000)]
    assert _told(_watch(warmup_steps=3000), curve) == []


@given(
    losses=st.lists(
        st.one_of(st.floats(0, 12), st.just(3.0), st.just(math.nan), st.just(40.0)), max_size=60
    ),
    repeat=st.integers(1, 25),
    stop=st.floats(0, 1),
)
def test_a_resumed_run_judges_the_same(losses: list[float], repeat: int, stop: float) -> None:
    curve = losses * repeat
    whole = _watch(20)
    expected = _told(whole, curve)
    cut = round(stop * len(curve))
    first = _watch(20)
    before = _told(first, curve[:cut])
    record = json.loads(json.dumps(first.as_record(), allow_nan=False))
    resumed = LossWatch.from_record(record, vocabulary_size=VOCABULARY, warmup_steps=20)
    assert before + _told(resumed, curve[cut:], cut + 1) == expected
    assert resumed.as_record() == whole.as_record()


def test_the_state_stays_small() -> None:
    watch = _watch()
    curve = [math.nan if step % 9 == 0 else 3.0 + 5 * (step % 40 == 0) for step in range(20_000)]
    _told(watch, curve)
    assert len(json.dumps(watch.as_record())) < 4000
