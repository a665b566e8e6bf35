"""Rows reach the process that renders them as they are, and none of them becomes an object of its choice."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.source.examples.render_protocol import decode_batch, encode_batch

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20)
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
)


@given(messages=st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=4))
def test_rows_arrive_as_they_were_sent(messages: list[dict[str, object]]) -> None:
    assert decode_batch(encode_batch(("assistant", [messages]))) == ("assistant", [messages])


@pytest.mark.parametrize(
    "value",
    [2**100, date(2026, 1, 2), time(3, 4), timedelta(days=-1), Decimal("1.50"), b"\0\xff",
     datetime(2026, 1, 2, tzinfo=UTC)],
    ids=repr,
)  # fmt: skip
def test_a_value_keeps_its_kind(value: object) -> None:
    _, [[message]] = decode_batch(encode_batch(("all", [[{"x": value}]])))
    assert type(message["x"]) is type(value)
    assert str(message["x"]) == str(value)


@pytest.mark.parametrize("kind", ["datetime", "dict", "tuple", "Decimal", "bytes", "other", ""])
@pytest.mark.parametrize("rest", [{"text": "no such thing"}, {"items": [1]}, {}])
def test_a_row_that_looks_like_a_tag_stays_a_row(kind: str, rest: dict[str, object]) -> None:
    row = {"\0kind": kind, **rest}
    _, [[found]] = decode_batch(encode_batch(("all", [[{"x": [row]}]])))
    assert found == {"x": [row]}
