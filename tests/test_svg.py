"""What all charts share: round ticks, axes, and text that cannot act."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.svg import (
    Axis,
    draw_cross,
    draw_dot,
    draw_line,
    draw_polyline,
    draw_svg,
    draw_text,
    round_step,
    time_step,
    time_words,
)


@given(st.floats(1e-9, 1e12))
def test_a_step_is_round_and_the_smallest_that_is_enough(least: float) -> None:
    step = round_step(least)
    digit = float(f"{step:.9e}".partition("e")[0])
    assert any(digit == pytest.approx(round_digit) for round_digit in (1, 2, 5))
    assert least * (1 - 1e-6) <= step <= 2.5 * least * (1 + 1e-6)


@given(st.floats(1e-3, 1e9), st.floats(3, 12))
def test_a_time_axis_has_no_more_ticks_than_fit(seconds: float, most: float) -> None:
    assert seconds / time_step(seconds, most) <= most * (1 + 1e-6)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0"), (0.25, "0.25s"), (40, "40s"), (300, "5m"), (5400, "1h 30m"), (216_000, "2d 12h")],
)
def test_times_are_as_short_as_an_axis_needs(seconds: float, words: str) -> None:
    assert time_words(seconds) == words


def test_an_axis_leads_from_its_start_to_its_end() -> None:
    axis = Axis(low=2, high=6, start=100, end=0)
    assert [axis.place(value) for value in (2, 3, 6)] == [100, 75, 0]
    assert Axis(low=2, high=2, start=7, end=9).place(2) == 7


@given(st.text())
def test_no_text_acts_in_a_picture(text: str) -> None:
    parts = [
        draw_text(1, 2, text),
        draw_dot(1, 2, 3, "dot", text),
        draw_polyline([(0, 0), (1, 1)], "curve", text),
        draw_line(0, 0, 1, 1, "axis"),
        draw_cross(1, 2, 3, "cross"),
    ]
    root = ElementTree.fromstring(draw_svg(10, 10, parts))
    tags = [one.tag.rpartition("}")[2] for one in root.iter()]
    shown = [tag for tag in tags if tag != "title"]
    assert shown == ["svg", "text", "circle", "polyline", "line", "path"]
