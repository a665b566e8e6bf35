"""The order is a bijection in every epoch, looks like chance, and is the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.dataset.order import WindowOrder, border_shifts, shuffled_reference
from tests.dataset.plain import Array

SEEDS = st.integers(-(2**63), 2**64)


def epoch_order(windows: int, *, seed: int = 0, epoch: int = 0) -> Array:
    indices = np.arange(windows, dtype=np.int64)
    return WindowOrder(windows=windows, seed=seed).shuffled(np.full_like(indices, epoch), indices)


def most_chance_allows(degrees: int) -> float:
    """Six standard deviations of chi-square and some, for the long tail of few degrees."""
    return degrees + 6 * float(np.sqrt(2 * degrees)) + 20


def chi_square(counts: Array) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@given(windows=st.integers(1, 5000), seed=SEEDS, epoch=st.integers(0, 2**40))
@example(windows=1, seed=0, epoch=0)
@example(windows=2, seed=0, epoch=1)
@example(windows=4096, seed=0, epoch=0)
@example(windows=4097, seed=0, epoch=0)
def test_every_window_comes_once_in_an_epoch(windows: int, seed: int, epoch: int) -> None:
    order = epoch_order(windows, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order), np.arange(windows))


def test_every_small_epoch_is_whole_too() -> None:
    for windows in range(1, 300):
        for epoch in range(3):
            assert np.array_equal(np.sort(epoch_order(windows, epoch=epoch)), np.arange(windows))


@pytest.mark.parametrize("windows", [2**20, 2**20 + 1, 1_234_567, 3_000_017])
def test_a_large_epoch_is_whole(windows: int) -> None:
    met = np.zeros(windows, dtype=np.bool_)
    met[epoch_order(windows, seed=5, epoch=9)] = True
    assert met.all()


@given(windows=st.integers(1, 2**44), seed=SEEDS, data=st.data())
def test_the_fast_order_is_the_plain_one(windows: int, seed: int, data: st.DataObject) -> None:
    """Also where no test could go through the whole epoch."""
    epochs = data.draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=8))
    indices = [data.draw(st.integers(0, windows - 1)) for _ in epochs]
    found = WindowOrder(windows=windows, seed=seed).shuffled(np.array(epochs), np.array(indices))
    wanted = [
        shuffled_reference(windows=windows, seed=seed, epoch=epoch, index=index)
        for epoch, index in zip(epochs, indices, strict=True)
    ]
    assert found.tolist() == wanted
    assert all(0 <= number < windows for number in wanted)


def test_the_order_is_what_it_was() -> None:
    """A run that is resumed with a newer lowtide must go on in the order it began with."""
    assert epoch_order(12, seed=0, epoch=0).tolist() == [5, 3, 8, 1, 2, 0, 4, 10, 9, 7, 6, 11]
    assert epoch_order(12, seed=1, epoch=3).tolist() == [2, 1, 6, 9, 7, 8, 4, 5, 0, 11, 10, 3]
    shifts = border_shifts(np.arange(6), context=1024, seed=0)
    assert shifts.tolist() == [431, 40, 673, 282, 915, 524]


@given(
    windows=st.integers(50, 5000),
    seed=st.integers(0, 2**32),
    other=st.integers(1, 2**32),
    epoch=st.integers(0, 10**6),
)
def test_another_epoch_or_seed_has_another_order(
    windows: int, seed: int, other: int, epoch: int
) -> None:
    order = epoch_order(windows, seed=seed, epoch=epoch)
    for another in (
        epoch_order(windows, seed=seed, epoch=epoch + 1),
        epoch_order(windows, seed=seed + other, epoch=epoch),
    ):
        # Two orders drawn by chance agree in one place on average, whatever their length.
        assert np.count_nonzero(order == another) < 20


@pytest.mark.slow
@pytest.mark.parametrize("windows", [2, 3, 5, 16, 17, 60, 100])
@pytest.mark.parametrize("index", ["first", "last"])
def test_an_index_goes_everywhere_equally_often(windows: int, index: str) -> None:
    """20,000 epochs, and as many seeds. Both are fixed, so the outcome is."""
    at = np.full(20_000, 0 if index == "first" else windows - 1, dtype=np.int64)
    over_epochs = WindowOrder(windows=windows, seed=3).shuffled(np.arange(20_000), at)
    over_seeds = np.concatenate(
        [
            WindowOrder(windows=windows, seed=seed).shuffled(np.zeros(1, dtype=np.int64), at[:1])
            for seed in range(5_000)
        ]
    )
    for places in (over_epochs, over_seeds):
        counts = np.bincount(places, minlength=windows)
        assert chi_square(counts) < most_chance_allows(windows - 1)


@pytest.mark.parametrize("windows", [7, 16, 24, 31])
def test_neighbours_part(windows: int) -> None:
    """Of two indices side by side, every pair of places is equally likely."""
    epochs = np.arange(40_000, dtype=np.int64)
    order = WindowOrder(windows=windows, seed=11)
    first = order.shuffled(epochs, np.full_like(epochs, 2))
    second = order.shuffled(epochs, np.full_like(epochs, 3))
    apart = np.bincount((second - first) % windows, minlength=windows)
    assert apart[0] == 0
    assert chi_square(apart[1:]) < most_chance_allows(windows - 2)
    pairs = np.bincount(first * windows + second, minlength=windows**2)
    possible = pairs[~np.eye(windows, dtype=np.bool_).reshape(-1)]
    assert chi_square(possible) < most_chance_allows(len(possible) - 1)


@pytest.mark.parametrize("windows", [10_000, 65_536, 250_000])
@pytest.mark.parametrize("lag", [1, 2, "row"])
def test_an_order_has_no_run_of_neighbours_in_it(windows: int, lag: int | str) -> None:
    """Correlation of what comes `lag` apart; `row` is the width of the table that orders are made by."""
    step = int(np.sqrt(windows)) if lag == "row" else int(lag)
    for epoch in range(3):
        order = epoch_order(windows, seed=2, epoch=epoch).astype(np.float64)
        assert abs(np.corrcoef(order[:-step], order[step:])[0, 1]) < 6 / np.sqrt(windows)
        assert abs(np.corrcoef(order, np.arange(windows))[0, 1]) < 6 / np.sqrt(windows)
        together = np.count_nonzero(np.abs(np.diff(order)) == 1)
        assert together < 20, "two of all, by chance"


@given(context=st.integers(1, 3000), seed=SEEDS, first=st.integers(0, 2**40))
def test_all_borders_come_before_one_comes_again(context: int, seed: int, first: int) -> None:
    shifts = border_shifts(np.arange(first, first + context + 1), context=context, seed=seed)
    assert np.array_equal(np.sort(shifts[:-1]), np.arange(context))
    assert shifts[-1] == shifts[0]
    if context > 1:
        assert (np.diff(shifts) != 0).all()


@pytest.mark.parametrize("context", [64, 1000, 1024, 4097])
def test_the_borders_of_a_few_epochs_lie_far_apart(context: int) -> None:
    shifts = np.sort(border_shifts(np.arange(4), context=context, seed=0))
    gaps = np.diff(np.append(shifts, shifts[0] + context))
    assert gaps.min() > context // 16
