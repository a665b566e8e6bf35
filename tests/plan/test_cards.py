"""Cards are found by whatever people and drivers call them, and no other card is taken for them."""

from __future__ import annotations

import pytest

from lowtide.errors import UsageError
from lowtide.plan.cards import CARDS, find_card, match_card
from lowtide.units import GIB, MIB


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_is_found_by_its_own_name(card: object) -> None:
    assert find_card(card.name) is card  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("4070", "RTX 4070"),
        ("rtx 4070", "RTX 4070"),
        ("RTX4070", "RTX 4070"),
        ("NVIDIA GeForce RTX 4070", "RTX 4070"),
        ("nvidia geforce rtx 4070 ti", "RTX 4070 Ti"),
        ("4070Ti", "RTX 4070 Ti"),
        ("GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti Super"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("a6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("Tesla V100-PCIE-32GB", "V100 32GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3060", "RTX 3060"),
    ],
)
def test_a_card_is_found_by_what_people_and_drivers_call_it(told: str, name: str) -> None:
    assert find_card(told).name == name


@pytest.mark.parametrize(
    "told",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4070 Max-Q", "GTX 1080", "", "card", "A1000"],
)
def test_another_card_is_not_taken_for_one(told: str) -> None:
    assert match_card(told) is None


@pytest.mark.parametrize(
    ("told", "mib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100 80GB"),
        ("NVIDIA GeForce RTX 3060", 12288, "RTX 3060"),
    ],
)
def test_a_card_that_the_driver_names_with_its_memory_is_that_card(
    told: str, mib: int, name: str
) -> None:
    found = match_card(told, memory_bytes=mib * MIB)
    assert found is not None
    assert found.name == name


def test_of_two_cards_with_one_name_the_memory_decides() -> None:
    for size, name in ((8 * GIB, "RTX 4060 Ti"), (16 * GIB, "RTX 4060 Ti 16GB")):
        found = match_card("NVIDIA GeForce RTX 4060 Ti", memory_bytes=size)
        assert found is not None
        assert found.name == name


def test_an_unknown_card_is_answered_with_names_like_it() -> None:
    with pytest.raises(UsageError, match="RTX 4070") as told:
        find_card("RTX 4071")
    assert "--vram" in told.value.remedy


def test_every_figure_is_of_its_kind() -> None:
    for card in CARDS:
        assert 6 * GIB <= card.memory_bytes <= 200 * GIB, card
        assert 5e12 < card.peak_flops < 3e15, card
    assert len({card.name for card in CARDS}) == len(CARDS)
