"""Stages follow from a reading and the lines alone, and each is told once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.guard.reading import Reading
from lowtide.guard.stages import Lines, Pace, Response, Steps, judge_reading
from lowtide.units import GIB, MIB

CALM = Reading(
    at=0.0,
    private_bytes=0,
    shared_bytes=0,
    mapped_bytes=0,
    swapped_bytes=0,
    process_count=1,
    available_bytes=100 * GIB,
    swapped_in_bytes=0.0,
    stalled_percent=None,
    cgroup_bytes=None,
    cgroup_limit_bytes=None,
)
LINES = Lines(limit_bytes=10 * GIB, floor_bytes=2 * GIB, most=Response.END)


@pytest.mark.parametrize(
    ("changed", "stage"),
    [
        ({"private_bytes": 7 * GIB}, Response.CALM),
        ({"private_bytes": 8 * GIB}, Response.NOTE),
        ({"private_bytes": 9 * GIB}, Response.ASK),
        ({"private_bytes": 10 * GIB}, Response.END),
        ({"private_bytes": 5 * GIB, "swapped_bytes": 4 * GIB}, Response.ASK),
        ({"mapped_bytes": 90 * GIB}, Response.CALM),
        ({"available_bytes": 3 * GIB - 1}, Response.NOTE),
        ({"available_bytes": 2 * GIB - 1, "private_bytes": 1}, Response.ASK),
        ({"available_bytes": GIB - 1, "private_bytes": 2 * GIB}, Response.END),
        (
            {"available_bytes": GIB - 1, "private_bytes": GIB // 2},
            Response.NOTE,
        ),  # it is not the culprit
        ({"available_bytes": GIB - 1, "private_bytes": 8 * GIB}, Response.END),
    ],
)
def test_use_and_room_are_judged_and_page_cache_is_not(
    changed: dict[str, int], stage: Response
) -> None:
    reading = replace(CALM, **changed)  # type: ignore[arg-type]
    found, reason = judge_reading(reading, LINES)
    assert found is stage
    assert bool(reason) == (stage is not Response.CALM)


@pytest.mark.parametrize("most", [Response.NOTE, Response.ASK, Response.END])
def test_no_stage_goes_further_than_the_user_allows(most: Response) -> None:
    reading = replace(CALM, private_bytes=20 * GIB)
    assert judge_reading(reading, replace(LINES, most=most))[0] is most


def test_a_job_that_hovers_around_a_line_is_told_once() -> None:
    steps = Steps(LINES)
    told = [
        steps.see(replace(CALM, private_bytes=8 * GIB + 50 * MIB * (-1) ** number))
        for number in range(100)
    ]
    assert [alert.stage for alert in told if alert] == [Response.NOTE]


@pytest.mark.parametrize("most", [Response.NOTE, Response.ASK])
def test_past_its_limit_a_job_that_may_go_on_is_told_of_at_each_doubling(most: Response) -> None:
    steps = Steps(replace(LINES, most=most))
    sizes = [9, 9.9, 10, 15, 19, 20, 21, 39, 100, 90, 70, 81, 9.6, 10, 7, 10]
    told = []
    for size in sizes:
        reading = replace(CALM, private_bytes=round(size * GIB))
        would_rise = steps.would_rise(reading)
        told.append(steps.see(reading))
        assert would_rise == (told[-1] is not None)
    heard = [size for size, alert in zip(sizes, told, strict=True) if alert]
    assert heard == [9, 10, 20, 100, 81, 10]  # 9.6 is near enough to be the same time at 10
    assert {alert.stage for alert in told if alert} == {most}


def test_after_it_was_calm_it_is_told_again() -> None:
    steps = Steps(LINES)
    sizes = [8 * GIB, 7 * GIB, 8 * GIB, 9 * GIB, 8 * GIB, 9 * GIB]
    told = [steps.see(replace(CALM, private_bytes=size)) for size in sizes]
    stages = [alert.stage if alert else None for alert in told]
    assert stages == [Response.NOTE, None, Response.NOTE, Response.ASK, None, Response.ASK]


@given(rate=st.floats(2e8, 2e9), usual=st.floats(0.2, 5.0))
def test_no_line_is_passed_by_more_than_a_fifth_of_a_second(rate: float, usual: float) -> None:
    pace, at, late = Pace(LINES, usual), 0.0, []
    line = 0.9 * 10 * GIB
    while rate * at < line:
        reading = replace(CALM, at=at, private_bytes=int(rate * at))
        at += pace.wait_seconds(reading)
        late.append(rate * at - line)
    assert late[-1] <= max(0.2 * rate, rate * usual if len(late) < 3 else 0)
