"""Two sizes give a line, and the line goes on; what did not grow stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.tools.compare.growth import fit_growth
from lowtide.tools.compare.run_boxed import Boxed, Ending

sizes = st.integers(min_value=1, max_value=10**12)


def measured(
    text_bytes: int, peak_bytes: int, seconds: float = 1.0, ending: Ending = "finished"
) -> Boxed:
    return Boxed(
        ending=ending,
        text_bytes=text_bytes,
        seconds=seconds,
        peak_private_bytes=peak_bytes,
        peak_charged_bytes=None,
        share=None,
        stage="",
        tokens=None,
        points=(),
        complaint="",
    )


@given(start=sizes, slope=st.integers(min_value=0, max_value=100), size=sizes)
def test_a_line_is_found_again(start: int, slope: int, size: int) -> None:
    runs = [measured(at, start + slope * at, slope * at) for at in (size, 4 * size)]
    growth = fit_growth(runs)
    assert growth is not None
    assert growth.bytes_per_byte == pytest.approx(slope)
    assert growth.peak_at(50 * size) == pytest.approx(start + slope * 50 * size)
    assert growth.seconds_at(50 * size) == pytest.approx(slope * 50 * size)


@given(size=sizes, one=sizes, other=sizes, full=sizes)
def test_a_prediction_is_never_below_what_was_measured(
    size: int, one: int, other: int, full: int
) -> None:
    growth = fit_growth([measured(4 * size, one), measured(size, other)])
    assert growth is not None
    assert growth.peak_at(full) >= one
    assert growth.bytes_per_byte >= 0


def test_one_size_gives_no_line() -> None:
    assert fit_growth([]) is None
    assert fit_growth([measured(10, 10)]) is None
    assert fit_growth([measured(10, 10), measured(10, 20)]) is None


def test_what_did_not_finish_is_not_on_the_line() -> None:
    assert fit_growth([measured(40, 90, ending="died"), measured(10, 20)]) is None
