"""Numbers have a unit, and errors a remedy."""

from __future__ import annotations

import inspect
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import errors, units
from lowtide.errors import LowtideError, UsageError
from lowtide.units import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_count,
    round_up_to_mib,
)


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("6GiB", 6 * GIB),
        ("6GB", 6_000_000_000),
        ("512MiB", 512 * MIB),
        ("1.5GB", 1_500_000_000),
        ("64 kib", 64 * KIB),
        (" 2TiB ", 2 << 40),
        ("17b", 17),
        (".5KiB", 512),
    ],
)
def test_a_size_is_decimal_or_binary_as_its_unit_says(text: str, expected_bytes: int) -> None:
    assert parse_bytes(text) == expected_bytes


@pytest.mark.parametrize("text", ["", "GiB", "12", "1.2.3MB", "-1GiB", "1 Gi B", "6GiB\n1", "10XB"])
def test_what_is_not_a_size_is_refused_with_advice_that_works(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    for advised in ("512MiB", "6GiB", "1.5GB"):
        assert advised in caught.value.remedy
        assert parse_bytes(advised) > 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("250000", 250_000),
        ("10k", 10_000),
        ("100M", 100_000_000),
        ("1.5B", 1_500_000_000),
        ("1e6", 1_000_000),
        ("2.5E+3", 2500),
    ],
)
def test_a_count_is_decimal(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_a_count_may_be_grouped() -> None:
    assert parse_count("1_000_000") == parse_count("1,000,000") == parse_count("1M")


@pytest.mark.parametrize("text", ["", "many", "3GiB", "-4", "1e", "e6", "1e400", "1e-3"])
def test_what_is_not_a_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_count(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (268_435_456, "256.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_a_size_is_shown_in_binary_units(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_that_was_shown_reads_back_within_its_decimal(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.06)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_rounding_up_to_mib_gives_the_smallest_flag_that_holds_the_size(size_bytes: int) -> None:
    held_bytes = parse_bytes(round_up_to_mib(size_bytes))
    assert size_bytes <= held_bytes < size_bytes + MIB


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9_999, "9999"), (10_000, "10.0k"), (21_800_000, "21.8M"), (3 * 10**12, "3.0T")],
)
def test_a_count_is_shown_short(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4s"), (12.3, "12s"), (59.6, "1m 00s"), (200, "3m 20s"), (18_120, "5h 02m")],
)
def test_a_time_is_shown_in_two_figures(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def _all_errors() -> list[type[LowtideError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [kind for kind in found if issubclass(kind, LowtideError)]


@pytest.mark.parametrize("kind", _all_errors())
def test_every_error_needs_a_remedy_and_keeps_it(kind: type[LowtideError]) -> None:
    error = kind("the disk is full", remedy="free space")
    assert (str(error), error.problem, error.remedy) == (
        "the disk is full",
        "the disk is full",
        "free space",
    )
    with pytest.raises(TypeError):
        kind("the disk is full")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", _all_errors())
def test_the_tree_drawn_in_the_docstring_is_the_tree(kind: type[LowtideError]) -> None:
    drawn = [line.split() for line in (errors.__doc__ or "").splitlines()]
    codes = {
        word: int(number)
        for words in drawn
        for word, number in itertools.pairwise(words)
        if number.isdigit()
    }
    assert codes[kind.__name__] == kind.exit_code


def test_units_imports_nothing_of_lowtide_but_errors() -> None:
    imports = [line for line in inspect.getsource(units).splitlines() if "lowtide." in line]
    assert imports == ["from lowtide.errors import UsageError"]


@pytest.mark.parametrize("text", ["1.5", "65432.9", "0.5", "1e-1", "1.0005k"])
def test_a_count_that_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_count(text)


@pytest.mark.parametrize(("text", "count"), [("1.005k", 1005), ("1.1M", 1_100_000), ("0.5k", 500)])
def test_a_count_may_be_written_with_a_fraction_of_its_unit(text: str, count: int) -> None:
    assert parse_count(text) == count
