"""A budget is as named or a quarter of the limit; needs fit or are refused with a remedy that works."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DoesNotFitError, UsageError
from lowtide.memory.budget import Budget, check_needs, choose_budget
from lowtide.memory.limits import LimitCandidate, MemoryLimit
from lowtide.units import GIB, MIB


def limit_of(total_bytes: int) -> MemoryLimit:
    candidate = LimitCandidate(source="available memory", total_bytes=total_bytes)
    return MemoryLimit(candidates=(candidate,))


def advised_budget(error: DoesNotFitError, limit: MemoryLimit) -> Budget:
    match = re.search(r"`--memory (\S+)`", error.remedy)
    assert match is not None, error.remedy
    return choose_budget(match[1], limit)


@pytest.mark.parametrize(
    ("text", "total_bytes"),
    [("1GiB", GIB), ("1GB", 10**9), ("50%", 4 * GIB), ("100%", 8 * GIB), (" 12.5 % ", GIB)],
)
def test_a_named_budget_is_taken_as_named(text: str, total_bytes: int) -> None:
    budget = choose_budget(text, limit_of(8 * GIB))
    assert (budget.total_bytes, budget.source) == (total_bytes, "named")


@pytest.mark.parametrize(
    ("limit_bytes", "total_bytes"),
    [
        (64 * GIB, 2 * GIB),
        (8 * GIB, 2 * GIB),
        (4 * GIB, GIB),
        (512 * MIB, 256 * MIB),
        (100 * MIB, 100 * MIB),
    ],
)
def test_by_default_a_quarter_of_the_limit_is_taken(limit_bytes: int, total_bytes: int) -> None:
    budget = choose_budget(None, limit_of(limit_bytes))
    assert (budget.total_bytes, budget.source) == (total_bytes, "default")


@given(st.integers(min_value=1, max_value=1 << 50))
def test_the_default_is_never_more_than_the_limit(limit_bytes: int) -> None:
    assert 0 < choose_budget(None, limit_of(limit_bytes)).total_bytes <= limit_bytes


@pytest.mark.parametrize("text", ["9GiB", "101%"])
def test_more_than_the_machine_allows_is_refused_and_the_advice_works(text: str) -> None:
    limit = limit_of(8 * GIB)
    with pytest.raises(DoesNotFitError, match="available memory") as caught:
        choose_budget(text, limit)
    assert advised_budget(caught.value, limit).total_bytes == 8 * GIB * 9 // 10


@pytest.mark.parametrize("text", ["0%", "0MiB", "much", "-5%", "%", "5"])
def test_an_invalid_budget_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError):
        choose_budget(text, limit_of(8 * GIB))


def test_a_budget_says_where_it_comes_from() -> None:
    named = choose_budget("1GiB", limit_of(8 * GIB))
    assert named.in_words == "1.0 GiB as named (available memory: 8.0 GiB)"
    assert "by default" in choose_budget(None, limit_of(8 * GIB)).in_words


def test_needs_that_fill_the_budget_exactly_fit() -> None:
    check_needs(choose_budget("300MiB", limit_of(GIB)), {"encoder": 200 * MIB, "blocks": 100 * MIB})


@given(
    needs=st.dictionaries(st.text(min_size=1), st.integers(1, 1 << 30), min_size=1, max_size=5),
    budget_bytes=st.integers(1, 1 << 30),
)
def test_needs_fit_or_the_advised_budget_is_the_smallest_that_works(
    needs: dict[str, int], budget_bytes: int
) -> None:
    limit = limit_of(1 << 40)
    budget = choose_budget(f"{budget_bytes}B", limit)
    if sum(needs.values()) <= budget_bytes:
        check_needs(budget, needs)
        return
    with pytest.raises(DoesNotFitError) as caught:
        check_needs(budget, needs)
    advised = advised_budget(caught.value, limit)
    check_needs(advised, needs)
    assert advised.total_bytes - sum(needs.values()) < MIB


def test_the_largest_part_is_named() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        check_needs(choose_budget("1MiB", limit_of(GIB)), {"blocks": MIB, "encoder": 160 * MIB})
    assert caught.value.problem == (
        "needs 161.0 MiB but the budget is 1.0 MiB as named; the largest part is encoder (160.0 MiB)"
    )
    assert caught.value.remedy == "pass `--memory 161MiB` or more"


def test_no_budget_is_advised_that_the_machine_would_refuse() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        check_needs(choose_budget("1GiB", limit_of(GIB)), {"encoder": 2 * GIB})
    assert caught.value.remedy.startswith("run where `--memory")
    assert "available memory allows 1.0 GiB here" in caught.value.remedy


def test_what_the_user_has_sized_already_leaves_a_quarter_free() -> None:
    """torch with CUDA alone takes 2 GiB: a quarter would stop every training run after a step."""
    assert choose_budget(None, limit_of(100 * GIB), generous=True).total_bytes == 75 * GIB
    assert choose_budget("1GiB", limit_of(100 * GIB), generous=True).total_bytes == GIB
    with pytest.raises(DoesNotFitError, match="leaves a quarter of the memory free"):
        check_needs(choose_budget(None, limit_of(4 * GIB), generous=True), {"torch": 4 * GIB})


@pytest.mark.parametrize(
    ("available", "installed", "group", "taken"),
    [
        (22, 24, None, 16),  # a quarter of what is installed stays, not of what is free
        (10, 24, None, 4),
        (5, 24, None, 0),
        (22, 24, 4, 3),
        (5, 24, 4, 0),
    ],
)
def test_a_quarter_of_the_machine_and_of_every_cgroup_stays_free(
    available: int, installed: int, group: int | None, taken: int
) -> None:
    machine = LimitCandidate(
        source="available memory", total_bytes=available * GIB, whole_bytes=installed * GIB
    )
    groups = () if group is None else (LimitCandidate(source="a cgroup", total_bytes=group * GIB),)
    limit = MemoryLimit(candidates=(*groups, machine))
    assert choose_budget(None, limit, generous=True).total_bytes == taken * GIB
