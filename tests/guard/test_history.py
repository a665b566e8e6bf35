"""A history holds a fixed number of cells, and loses neither peaks nor lows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lowtide.guard.forecast import History


@given(values=st.lists(st.integers(0, 10**12), min_size=1, max_size=500), most=st.integers(2, 40))
def test_no_extreme_is_lost_and_no_cell_too_many_is_kept(values: list[int], most: int) -> None:
    history = History(most_cells=most)
    for number, value in enumerate(values):
        history.add(float(number), value)
    cells = history.cells
    assert len(cells) <= most
    assert sum(cell.count for cell in cells) == len(values)
    assert min(cell.low for cell in cells) == min(values)
    assert max(cell.high for cell in cells) == max(values)
    assert [cell.at for cell in cells] == sorted(cell.at for cell in cells)
    assert max(history.last_of(10)) == max(values)
    assert len(list(history.last_of(10))) == min(10, len(cells))
