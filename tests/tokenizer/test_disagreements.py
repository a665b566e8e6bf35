"""The listed code points, all of them and no others, are where gigatoken leaves the references."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from lowtide.settings import PatternName
from lowtide.tokenizer import disagreements
from lowtide.tokenizer.disagreements import DISAGREEMENTS, Reference, contains_disagreement
from lowtide.tokenizer.patterns import PATTERNS

REFERENCES: tuple[Reference, ...] = get_args(Reference)
NAMES: tuple[PatternName, ...] = get_args(PatternName)
EVERY_PAIR = pytest.mark.parametrize(("reference", "pattern"), [*product(REFERENCES, NAMES)])
ALIKE_BUT_UNLISTED = {
    "\xca": "\u0294",
    "\xe0": "\u0904",
    "\xe1": "\u10d0",
    "\xea": "\uac00",
    "\xf0": "\U0001d400",
}
"""By lead byte, a letter on which everyone agrees. The last one is not an emoji: it is looked up."""
SAME_BYTES_ELSEWHERE = "\u5c5c\u6c5c\u7c5c\u8c5c\u5cdc\u6cdc\u488f\u588f\u1ac0\ua7c0"
"""Agreed upon, although two of their bytes are those of a listed code point."""


@cache
def listed(reference: Reference, pattern: PatternName) -> frozenset[int]:
    ranges = DISAGREEMENTS[reference][pattern]
    return frozenset(point for first, last in ranges for point in range(first, last + 1))


def plainly_contains(text: bytes, reference: Reference, pattern: PatternName) -> bool:
    return any(ord(character) in listed(reference, pattern) for character in text.decode())


@cache
def campaign_module() -> ModuleType:
    """`bench/code_points.py`, which is a command and no package."""
    path = Path(__file__).parents[2] / "bench" / "code_points.py"
    spec = importlib.util.spec_from_file_location("code_points", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@EVERY_PAIR
def test_ranges_ascend_and_never_touch_a_surrogate(
    reference: Reference, pattern: PatternName
) -> None:
    ranges = DISAGREEMENTS[reference][pattern]
    assert all(first <= last for first, last in ranges)
    assert all(left[1] < right[0] for left, right in pairwise(ranges))
    assert not any(first <= 0xDFFF and last >= 0xD800 for first, last in ranges)


@EVERY_PAIR
def test_every_listed_code_point_is_found(reference: Reference, pattern: PatternName) -> None:
    for point in listed(reference, pattern):
        for text in (chr(point), f"word {chr(point)}", f"\u4e2d\u0416{chr(point)} end"):
            assert contains_disagreement(text.encode(), reference, pattern), hex(point)


@EVERY_PAIR
def test_no_other_code_point_is_found(reference: Reference, pattern: PatternName) -> None:
    unlisted = set(campaign_module().scalar_values()) - listed(reference, pattern)
    everything = "".join(map(chr, sorted(unlisted))).encode()
    assert not contains_disagreement(everything, reference, pattern)
    for first, last in DISAGREEMENTS[reference][pattern]:
        for point in {first - 1, last + 1} & unlisted:
            assert not contains_disagreement(chr(point).encode(), reference, pattern), hex(point)


@pytest.mark.parametrize("text", [b"a\xe1\xab\x8fb", b"A\xca\x95Bb"])
def test_marks_and_case_matter_to_o200k_alone(text: bytes) -> None:
    assert contains_disagreement(text, "tiktoken", "o200k")
    assert not contains_disagreement(text, "tiktoken", "gpt2")
    assert not contains_disagreement(text, "tiktoken", "cl100k")


@pytest.mark.parametrize(
    "listed_one", ["\u0295", "\u088f", "\u0c5c", "\u1aeb", "\ua7f1", "\U00033479"]
)
@pytest.mark.parametrize("distance", range(-5, 6))
def test_a_code_point_across_the_border_of_two_pieces_is_found(
    listed_one: str, distance: int
) -> None:
    decoy = ALIKE_BUT_UNLISTED[chr(listed_one.encode()[0])].encode()  # the first piece begins here
    gap = b"x" * (disagreements._PIECE_BYTES - len(decoy) + distance)
    assert contains_disagreement(decoy + gap + listed_one.encode(), "tiktoken", "o200k")
    assert not contains_disagreement(decoy + gap + decoy, "tiktoken", "o200k")


def near_the_listed() -> st.SearchStrategy[str]:
    """Text in which listed code points, their neighbours and their look-alikes are common."""
    ranges = DISAGREEMENTS["tiktoken"]["o200k"]
    borders = [chr(border + step) for r in ranges for border in r for step in (-1, 0, 1)]
    look_alikes = [*SAME_BYTES_ELSEWHERE, *ALIKE_BUT_UNLISTED.values(), "\U0001f600", "a", " "]
    return st.text(
        st.sampled_from(look_alikes) | st.characters(exclude_categories=["Cs"])
    ) | st.text(st.sampled_from(borders + look_alikes), max_size=4)


@given(near_the_listed(), st.sampled_from(REFERENCES), st.sampled_from(NAMES))
def test_the_answer_equals_a_plain_lookup(
    text: str, reference: Reference, pattern: PatternName
) -> None:
    encoded = text.encode()
    expected = plainly_contains(encoded, reference, pattern)
    assert contains_disagreement(encoded, reference, pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "one_of_each"),
    [("gpt2", "é٣\u3000☃"), ("cl100k", "é٣\u3000☃"), ("o200k", "Éé中\u0301٣\u3000☃")],
)
def test_the_sampled_context_tells_every_class_of_character_from_every_other(
    pattern: PatternName, one_of_each: str
) -> None:
    """With one class taken for another, some border moves: else a disagreement could hide."""
    template: str = campaign_module().SHORT
    borders = {
        tuple(match.end() for match in regex.finditer(PATTERNS[pattern], filled))
        for filled in (template.replace("{c}", character) for character in one_of_each)
    }
    assert len(borders) == len(one_of_each)


def sampled_code_points(*, one_in: int) -> list[int]:
    """All letters, numbers, marks and white space, but of the long runs of ideographs `one_in` so many.

    With them every border of a listed range, on both sides, and one in 61 of all scalar values.
    """
    campaign = campaign_module()
    everything = "".join(map(chr, campaign.scalar_values()))
    word_makers = regex.finditer(r"[\p{L}\p{N}\p{M}\s]", everything)
    chosen = {*range(0x250), *map(ord, everything[::61])}
    for first, last in campaign.to_ranges(ord(match.group()) for match in word_makers):
        chosen.update(range(first, last + 1, 1 if last - first < 2_000 else one_in))
    for first, last in DISAGREEMENTS["tiktoken"]["o200k"]:
        chosen.update((first - 1, first, last, last + 1))
    return sorted(chosen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference", "pattern"),
    list(product(REFERENCES, NAMES)),
)
def test_installed_encoders_differ_on_the_listed_code_points_and_nowhere_else(
    reference: Reference, pattern: PatternName
) -> None:
    """A sample; `python bench/code_points.py` looks at every scalar value."""
    campaign = campaign_module()
    sample = sampled_code_points(one_in={"tiktoken": 5, "tokenizers": 61}[reference])  # by speed
    rivals = campaign.Rivals(reference, pattern, campaign.made_vocabulary(right_first=True))
    found = set(campaign.find_differing(sample, campaign.SHORT, rivals))
    assert campaign.to_ranges(found) == campaign.to_ranges(listed(reference, pattern) & set(sample))
