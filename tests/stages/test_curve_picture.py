"""The picture of bytes per token: read back through its own axes, it says what was counted."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.stages.curve_picture import CURVE_SIZES, draw_curve, measure_curve
from lowtide.stages.learn_run import Learning
from tests.stages.learnings import make_learning

SVG = "{http://www.w3.org/2000/svg}"
FIRST = 257
"""The 256 bytes and the end of text."""
LETTER_WIDTH, LETTER_HEIGHT = 7, 11
ASKED = (260, 1000, 8000, 16_000, 32_000)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What an eye takes from it."""

    root: ElementTree.Element
    curve: list[Point]
    marks: dict[str, Point]
    """By their titles."""
    texts: dict[str, Point]
    values: dict[str, Point]
    """Labels of marks, with the place where each begins."""


def look_at(learning: Learning) -> Picture:
    root = ElementTree.fromstring(draw_curve(learning))
    line = root.find(f"{SVG}polyline")
    assert line is not None
    points = [point.split(",") for point in line.attrib["points"].split()]
    texts = list(root.iter(f"{SVG}text"))
    return Picture(
        root=root,
        curve=[(float(x), float(y)) for x, y in points],
        marks={
            str(mark.findtext(f"{SVG}title")): (float(mark.attrib["cx"]), float(mark.attrib["cy"]))
            for mark in root.iter(f"{SVG}circle")
        },
        texts={str(text.text): place_of(text) for text in texts},
        values={str(text.text): place_of(text) for text in texts if text.get("class") == "value"},
    )


def place_of(text: ElementTree.Element) -> Point:
    width = len(text.text or "") * LETTER_WIDTH if text.get("text-anchor") == "end" else 0
    return float(text.attrib["x"]) - width, float(text.attrib["y"])


def halving_learning(merges: int, sizes: Sequence[int]) -> Learning:
    """A gigabyte in which each merge saves a little less than the one before."""
    joined = [int(0.7e9 / (20 + step) / math.log(1 + merges / 20)) for step in range(merges)]
    return make_learning(joined, text_bytes=10**9, sizes=sizes)


def figures(root: ElementTree.Element, anchor: str) -> list[float]:
    """The figures of the axis whose labels are anchored so, in order."""
    texts = [
        str(text.text) for text in root.iter(f"{SVG}text") if text.get("text-anchor") == anchor
    ]
    return [float(text.replace(",", "")) for text in texts if re.fullmatch(r"[\d,.]+", text)]


def line_places(root: ElementTree.Element, along: str, across: str) -> list[float]:
    """Where the lines stand that run in one direction."""
    lines = [line.attrib for line in root.iter(f"{SVG}line")]
    return [float(at[f"{along}1"]) for at in lines if at[f"{across}1"] != at[f"{across}2"]]


def test_the_curve_read_back_through_its_axes_is_what_was_counted() -> None:
    learning = halving_learning(31_743, ASKED)
    picture = look_at(learning)
    rates, y = figures(picture.root, "end"), line_places(picture.root, "y", "x")
    sizes, x = figures(picture.root, "middle"), line_places(picture.root, "x", "y")
    assert (len(rates), len(sizes)) == (len(y), len(x)), "a line for every figure"
    tokens = 10**9
    counted = [1.0]
    for saved in learning.steps["joined"].tolist():
        tokens -= saved
        counted.append(10**9 / tokens)
    assert CURVE_SIZES // 2 < len(picture.curve) <= CURVE_SIZES + len(ASKED)
    for at_x, at_y in picture.curve:
        rate = rates[-1] * (y[0] - at_y) / (y[0] - y[-1])
        size = sizes[0] * (sizes[-1] / sizes[0]) ** ((at_x - x[0]) / (x[-1] - x[0]))
        merges = min(max(0, round(size) - FIRST), len(counted) - 1)
        assert rate == pytest.approx(counted[merges], abs=0.01), size


def test_every_point_is_exact() -> None:
    learning = halving_learning(5000, (3000, 5257))
    curve = measure_curve(learning)
    assert curve == [(size, learning.bytes_per_token(size - FIRST)) for size, _ in curve]
    assert curve[0] == (FIRST, 1.0)
    assert curve[-1][0] == 5257
    assert make_and_measure([20, 30, 25], text_bytes=100) == [
        (257, 1.0),
        (258, 100 / 80),
        (259, 100 / 50),
        (260, 100 / 25),
    ]


def make_and_measure(joined: list[int], *, text_bytes: int) -> list[tuple[int, float]]:
    return measure_curve(make_learning(joined, text_bytes=text_bytes, sizes=(FIRST + len(joined),)))


def test_every_size_asked_for_is_marked_on_the_curve_with_its_value() -> None:
    learning = halving_learning(31_743, ASKED)
    picture = look_at(learning)
    rates = [learning.bytes_per_token(size - FIRST) for size in ASKED]
    told = {f"{size:,}: {rate:.2f}" for size, rate in zip(ASKED, rates, strict=True)}
    assert set(picture.marks) == set(picture.values) == told
    assert set(picture.marks.values()) <= set(picture.curve)


def test_the_picture_says_what_it_shows_in_which_units_and_how_exact_it_is() -> None:
    texts = " | ".join(look_at(make_learning([3], text_bytes=2048, sizes=(258,))).texts)
    assert "Bytes per token of the training text, by vocabulary size" in texts
    assert "Exact: counted over all 2.0 KiB" in texts
    assert "| bytes per token |" in texts
    assert "vocabulary size in tokens; the curve begins with the 256 bytes and 1 special" in texts


@pytest.mark.parametrize(
    ("specials", "said"), [((), "bytes"), (("<a>", "<b>"), "2 special tokens")]
)
def test_the_curve_begins_with_bytes_and_special_tokens(
    specials: tuple[str, ...], said: str
) -> None:
    learning = make_learning([3], text_bytes=99, sizes=(300,), special_tokens=specials)
    assert measure_curve(learning)[0][0] == 256 + len(specials)
    assert any(text.endswith(said) for text in look_at(learning).texts)


def test_without_merges_there_is_one_mark_and_no_curve() -> None:
    picture = look_at(make_learning([], text_bytes=70, sizes=(FIRST,)))
    assert list(picture.marks) == ["257: 1.00"]
    assert picture.curve == [picture.marks["257: 1.00"]]


def test_a_corpus_without_words_has_a_picture_too() -> None:
    assert list(look_at(make_learning([], text_bytes=0, sizes=(300,))).marks) == ["257: 0.00"]


def test_one_merge_is_a_line_from_the_bytes_to_it() -> None:
    picture = look_at(make_learning([35], text_bytes=70, sizes=(FIRST + 1,)))
    assert list(picture.marks) == ["258: 2.00"]
    assert len(picture.curve) == 2


def test_sizes_that_were_not_reached_share_the_mark_of_what_was_learnt() -> None:
    picture = look_at(make_learning([10] * 5, text_bytes=100, sizes=(258, 16_000, 32_000)))
    assert set(picture.marks) == {"258: 1.11", "262: 2.00"}
    assert any(text.startswith("262 of 32,000 tokens were learnt") for text in picture.texts)
    full = look_at(make_learning([10] * 5, text_bytes=100, sizes=(258, 262)))
    assert not any("were learnt" in text for text in full.texts)


def test_names_of_tokens_cannot_break_the_picture() -> None:
    pictures = {
        draw_curve(make_learning([5], text_bytes=50, sizes=(258,), special_tokens=[name]))
        for name in ("plain", "<script>&\"'", "]]>\x00\x1b[2J")
    }
    assert len(pictures) == 1
    assert "gpt2" not in pictures.pop()


@pytest.mark.parametrize("sizes", [(32_000,), tuple(range(257, 32_000, 7))], ids=["one", "4535"])
def test_the_picture_stays_small_and_its_labels_apart(sizes: tuple[int, ...]) -> None:
    learning = halving_learning(max(sizes) - FIRST, sizes)
    assert len(draw_curve(learning).encode()) < 20_000
    picture = look_at(learning)
    assert len(picture.values) == 1 if len(sizes) == 1 else len(picture.values) > 5
    for (one, (x1, y1)), (other, (x2, y2)) in itertools.combinations(picture.values.items(), 2):
        apart = x1 + len(one) * LETTER_WIDTH < x2 or x2 + len(other) * LETTER_WIDTH < x1
        assert apart or abs(y1 - y2) > LETTER_HEIGHT, (one, other)
    rates = {f"{max(sizes):,}: {learning.bytes_per_token(max(sizes) - FIRST):.2f}"}
    assert rates <= set(picture.values), "the largest size is always labelled"


@given(
    shares=st.lists(st.integers(1, 1000), max_size=40),
    text_bytes=st.integers(1, 10**15),
    beyond=st.lists(st.integers(0, 100), min_size=1, max_size=5),
)
def test_any_learning_gives_a_picture_with_everything_inside_it(
    shares: list[int], text_bytes: int, beyond: list[int]
) -> None:
    joined = [share * (text_bytes - 1) // max(1, sum(shares)) for share in shares]
    learning = make_learning(joined, text_bytes=text_bytes, sizes=[FIRST + more for more in beyond])
    picture = look_at(learning)
    _, _, width, height = map(float, picture.root.attrib["viewBox"].split())
    places = [*picture.curve, *picture.marks.values()]
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert picture.curve == sorted(picture.curve, key=lambda point: (point[0], -point[1]))
    rates = figures(picture.root, "end")
    assert 2 <= len(rates) <= 8
    assert rates == pytest.approx([number * rates[1] for number in range(len(rates))])
    assert 2 <= len(figures(picture.root, "middle")) <= 8


@pytest.mark.parametrize("background", ["#ffffff", "#0d1117"], ids=["light", "dark"])
def test_text_and_curve_can_be_read_on_light_and_dark(background: str) -> None:
    style = look_at(make_learning([5], text_bytes=50, sizes=(258,))).root.findtext(f"{SVG}style")
    colours = set(re.findall(r"(?:fill|stroke): (#\w{6}) ?[;}](?! stroke-opacity)", str(style)))
    assert len(colours) > 1
    for colour in colours:
        assert contrast(colour, background) > 3, colour


def contrast(one: str, other: str) -> float:
    """As the web's accessibility guidelines define it; 3 is asked of large text and graphics."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
