"""A leak is foreseen, however it is dressed; what does not grow is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lowtide.guard.forecast import Forecast, forecast
from lowtide.series import Series

GB = 10**9
LIMIT, BASE = 60 * GB, 4 * GB
DAY = 86_400.0
WHOLE = 8 * DAY
RATE = (LIMIT - BASE) / WHOLE
Curve = Callable[[float, random.Random], float]


def seen(curve: Curve, seconds: float, *, seed: int, readings: int = 3000) -> Series:
    history, chance = Series(512), random.Random(seed)
    for number in range(readings):
        at = seconds * number / readings
        history.add(at, max(0, int(curve(at, chance))))
    return history


def noisy(share: float) -> Curve:
    return lambda at, chance: BASE + RATE * at + chance.gauss(0, share * LIMIT)


def saw_tooth(period: float, height: float, rate: float = RATE) -> Curve:
    return lambda at, chance: BASE + rate * at + height * (at % period) / period


def stairs(count: int) -> Curve:
    return lambda at, chance: BASE + (LIMIT - BASE) / count * int(at / WHOLE * count)


def one_step(at_share: float, height: float) -> Curve:
    rate = (LIMIT - BASE - height) / WHOLE
    return lambda at, chance: (
        BASE + rate * at + (height if at > at_share * WHOLE else 0) + chance.gauss(0, 3e7)
    )


LEAKS: dict[str, tuple[Curve, float]] = {
    "plain": (lambda at, chance: BASE + RATE * at, 0),
    "a little noise": (noisy(0.003), 0),
    "much noise": (noisy(0.01), 0),
    "teeth of 10 s": (saw_tooth(10, 2 * GB), 2 * GB),
    "teeth of 10 min": (saw_tooth(600, 2 * GB), 2 * GB),
    "teeth of 2 h": (saw_tooth(7200, 2 * GB), 2 * GB),
    "50 steps": (stairs(50), 0),
    "300 steps": (stairs(300), 0),
    "a model loaded at first": (one_step(0.001, 10 * GB), 0),
    "a step on the way": (one_step(0.05, 8 * GB), 0),
    "a step just now": (one_step(0.09, 8 * GB), 0),
}


@pytest.mark.parametrize("name", LEAKS)
def test_after_a_tenth_of_the_way_the_time_is_right_within_a_fifth(name: str) -> None:
    curve, above = LEAKS[name]
    true_seconds = WHOLE * (LIMIT - above - BASE) / (LIMIT - BASE) - 0.1 * WHOLE
    for seed in range(5):
        found = forecast(seen(curve, 0.1 * WHOLE, seed=seed), LIMIT)
        assert found is not None, seed
        assert found.seconds == pytest.approx(true_seconds, rel=0.2)
        assert found.reaches_bytes == LIMIT


HARMLESS: dict[str, Curve] = {
    "flat": lambda at, chance: BASE + chance.gauss(0, 2e7),
    "flat saw-tooth": saw_tooth(600, 2 * GB, rate=0),
    "long flat saw-tooth": saw_tooth(9000, 2 * GB, rate=0),
    "random": lambda at, chance: BASE + 2 * GB * chance.random(),
    "one step, then flat": lambda at, chance: BASE * (3 if at > 8000 else 1) + chance.gauss(0, 1e7),
    "two steps": lambda at, chance: (
        BASE + GB * (at > 8000) + 3 * GB * (at > 30_000) + chance.gauss(0, 1e7)
    ),
    "a cache that fills up": lambda at, chance: BASE + 5 * GB * (1 - 2.7 ** (-at / 5000)),
    "falling": lambda at, chance: BASE - RATE * at / 20 + chance.gauss(0, 1e7),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_grow_raises_no_alarm(name: str) -> None:
    for seed in range(10):
        assert forecast(seen(HARMLESS[name], 0.1 * WHOLE, seed=seed), LIMIT) is None, seed


def test_a_fast_leak_is_seen_within_half_a_minute() -> None:
    found = forecast(seen(lambda at, chance: 5e7 * at, 30.0, seed=0, readings=30), 10 * GB)
    assert found is not None
    assert found.seconds == pytest.approx(170, rel=0.1)


def test_nothing_is_said_after_a_few_readings_or_beyond_the_limit() -> None:
    def leak(at: float, chance: random.Random) -> float:
        return 1e9 * at

    assert forecast(seen(leak, 5.0, seed=0), LIMIT) is None
    assert forecast(seen(leak, 100.0, seed=0), LIMIT) is None
    assert forecast(Series(512), LIMIT) is None


def test_in_words_it_names_rate_limit_and_time() -> None:
    told = Forecast(seconds=31 * 3600, reaches_bytes=61 * GB, bytes_per_second=2**30 / 3600)
    assert told.in_words == "at this rate (1.0 GiB an hour) 56.8 GiB is reached in 31h 00m"
