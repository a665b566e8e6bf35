"""Series of any length in few points: no peak is lost, none is made up."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lowtide.series import Series
from lowtide.show.page.facts import FirstAndLast

VALUES = st.floats(min_value=-1e9, max_value=1e9)
MOMENTS = st.lists(
    st.tuples(st.floats(min_value=0, max_value=1e5), VALUES), min_size=1, max_size=300
)


@given(MOMENTS, st.integers(min_value=1, max_value=40), st.integers(min_value=1, max_value=40))
def test_few_points_keep_extremes_sums_and_order(
    moments: list[tuple[float, float]], most: int, fewer: int
) -> None:
    moments = sorted(moments, key=lambda one: one[0])
    series = Series(most)
    for seconds, value in moments:
        series.add(seconds, value, session=0)
    values = [value for _, value in moments]
    for points in (series.points(), series.points(fewer)):
        assert min(point.low for point in points) == min(values)
        assert max(point.high for point in points) == max(values)
        assert sum(point.count for point in points) == len(values)
        assert abs(sum(point.total for point in points) - sum(values)) <= 1e-6 * sum(
            map(abs, values)
        )
        assert points[-1].last == values[-1]
        times = [time for point in points for time in (point.first_seconds, point.last_seconds)]
        assert times == sorted(times)
    assert len(series.points()) <= max(most, 2)
    assert len(series.points(fewer)) <= max(fewer, 2)


def test_a_short_series_stays_as_it_is() -> None:
    series = Series()
    for n in range(300):
        series.add(n * 0.9, float(n), session=0)
    assert [(point.seconds, point.mean) for point in series.points()] == [
        (n * 0.9, float(n)) for n in range(300)
    ]


def test_a_long_series_fills_at_least_a_quarter_of_its_points() -> None:
    series = Series(200)
    for n in range(50_000):
        series.add(n * 0.37, random.Random(n).random(), session=0)
    assert 50 <= len(series.points()) <= 200


def test_sessions_never_share_a_point() -> None:
    series = Series(8)
    for n in range(4000):
        series.add(n * 0.01, float(n // 1000), session=n // 1000)
    points = series.points()
    assert {point.session for point in points} == {0, 1, 2, 3}
    assert all(point.low == point.high == point.session for point in points)


def test_the_first_and_the_last_are_kept_and_the_rest_is_counted() -> None:
    kept: FirstAndLast[int] = FirstAndLast(2, 3)
    for n in range(10):
        kept.add(n)
    assert (list(kept), kept.count, kept.left_out) == ([0, 1, 7, 8, 9], 10, 5)


def test_a_lowest_and_a_highest_value_survive_every_merge() -> None:
    series = Series(16)
    values = [5.0] * 1000
    values[123], values[877] = -7.0, 99.0
    for n, value in enumerate(values):
        series.add(float(n), value, session=0)
    for most in (16, 5, 1):
        points = series.points(most)
        assert (min(point.low for point in points), max(point.high for point in points)) == (-7, 99)
