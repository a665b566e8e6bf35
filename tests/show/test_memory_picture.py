"""The picture needs no script and no network, shows the limit and every death, and escapes every string."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.show.comparison import lay_out, show_comparison, show_passing_lines
from lowtide.show.memory_picture import (
    check_picture_file,
    draw_memory,
    make_page,
    show_picture,
)
from lowtide.svg import MemoryCurve
from lowtide.units import GIB, MIB

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title><script>alert('\"&')</script>\u202eabc"
RISING = [(number / 10, number * 5 * MIB) for number in range(1, 200)]


def curve(name: str = "a program", *, died: bool = False, ours: bool = False) -> MemoryCurve:
    return MemoryCurve(panel="tokenize", name=name, points=RISING, died=died, ours=ours)


def elements(svg: str, kind: str, name: str = "") -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}{kind}")
    return [one for one in found if name in one.get("class", "").split(" ") or not name]


@pytest.mark.parametrize("width", [380, 640, 820])
def test_each_program_has_a_line_a_name_and_a_cross_where_it_died(width: int) -> None:
    svg = draw_memory(
        [curve("one", died=True), curve("two"), curve("ours", ours=True)], GIB, width=width
    )
    assert len(elements(svg, "polyline")) == 3
    assert len(elements(svg, "path", "cross")) == 2  # at its end, and beside its name
    assert len(elements(svg, "circle")) == 4
    texts = [one.text for one in elements(svg, "text")]
    assert {"one", "two", "ours"} <= set(texts)
    assert [one.get("class") for one in elements(svg, "polyline")][-1] == "curve c0"  # ours on top


def test_the_limit_is_a_dashed_line_at_its_height() -> None:
    svg = draw_memory([curve()], GIB, width=640)
    limit, _ = elements(svg, "line", "limit")  # the other one is beside its name
    ticks = {one.text: float(one.get("y", "0")) for one in elements(svg, "text")}
    assert float(limit.get("y1", "0")) == pytest.approx(ticks["1 GiB"] - 5)
    assert ticks["0 B"] - ticks["512 MiB"] == pytest.approx(
        ticks["512 MiB"] - ticks["1 GiB"], abs=0.2
    )
    assert "stroke-dasharray" in svg


def test_every_string_is_escaped_in_picture_and_page() -> None:
    bad = MemoryCurve(panel=HOSTILE, name=HOSTILE, points=RISING, died=True, note=HOSTILE)
    svg = draw_memory([bad], GIB, width=640)
    visible = HOSTILE.replace("\u202e", "\\u202e")  # it turns no text around
    assert any(visible in (one.text or "") for one in elements(svg, "text"))
    page = make_page(
        [bad], GIB, [(HOSTILE, HOSTILE)], [(HOSTILE, [HOSTILE], [[HOSTILE]])], [HOSTILE]
    )
    for text in (svg, page):
        assert "<script" not in text
        assert "alert('" not in text


def test_what_is_quoted_is_code_everywhere_on_the_page() -> None:
    quoted, table = "pass `--memory 1GiB`: so", ("t", ["a"], [["pass `--memory 2GiB`: so"]])
    page = make_page([curve()], GIB, [("a", "`x` and `y`")], [table], [quoted])
    assert "pass <code>--memory 1GiB</code>: so" in page
    assert "pass <code>--memory 2GiB</code>: so" in page
    assert "`" not in page


def test_the_page_allows_its_own_style_alone_and_fetches_nothing() -> None:
    page = make_page([curve()], GIB, [("a", "b")], [("t", ["x"], [["y"]])], ["said"])
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    assert not re.search(r"(?:src|href)=|url\(|@import| style=", page)
    assert page.count("<svg ") == 2
    assert len(page) < 300_000


def test_light_and_dark_have_their_colours() -> None:
    svg = draw_memory([curve()], GIB, width=640)
    light, _, dark = svg.partition("@media (prefers-color-scheme:dark)")
    for number in range(7):
        assert f".c{number}{{stroke:" in light
        assert f".c{number}{{stroke:" in dark


def test_nothing_measured_is_still_a_picture() -> None:
    empty = MemoryCurve(panel="tokenize", name="none", points=[])
    assert not elements(draw_memory([empty], GIB, width=640), "polyline")
    short = MemoryCurve(panel="tokenize", name="short", points=[(0.0, MIB)])
    assert elements(draw_memory([short], GIB, width=640), "polyline")


CHARACTER, RISE, FALL = 8.0, 11.0, 3.0
"""Pixels of a character: its width in a wide font, and how far it reaches above and below its line."""


def words_boxes(svg: str) -> list[tuple[str, float, float, float, float]]:
    """Every text with the left, upper, right and lower end of its place."""
    found = []
    for one in elements(svg, "text"):
        words, x, y = one.text or "", float(one.get("x", "0")), float(one.get("y", "0"))
        width = CHARACTER * len(words)
        x -= {"start": 0.0, "middle": width / 2, "end": width}[one.get("text-anchor", "start")]
        found.append((words, x, y - RISE, x + width, y + FALL))
    return found


def drawn_points(svg: str) -> list[tuple[float, float]]:
    """Points along every curve and straight line, at most half a pixel from each other."""
    ends = [
        [tuple(map(float, place.split(","))) for place in one.get("points", "").split()]
        for one in elements(svg, "polyline")
    ]
    for line in elements(svg, "line"):
        x1, y1, x2, y2 = (float(line.get(name, "0")) for name in ("x1", "y1", "x2", "y2"))
        ends.append([(x1, y1), (x2, y2)])
    found = []
    for places in ends:
        for (x1, y1), (x2, y2) in pairwise(places):
            steps = 1 + int(2 * max(abs(x2 - x1), abs(y2 - y1)))
            found += [
                (x1 + (x2 - x1) * step / steps, y1 + (y2 - y1) * step / steps)
                for step in range(steps + 1)
            ]
    return found


def assert_legible(svg: str) -> None:
    boxes, points = words_boxes(svg), drawn_points(svg)
    for words, left, upper, right, lower in boxes:
        crossed = [(x, y) for x, y in points if left < x < right and upper < y < lower]
        assert not crossed, f"a line crosses {words!r} at {crossed[0]}"
    for (one, *a), (other, *b) in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"{one!r} and {other!r} overlap"


@settings(max_examples=30)
@given(
    width=st.sampled_from([380, 640, 820]),
    seconds=st.floats(min_value=0.3, max_value=80_000),
    shares=st.lists(
        st.lists(st.floats(min_value=0, max_value=1.6), min_size=2, max_size=9),
        min_size=1,
        max_size=4,
    ),
)
def test_no_word_lies_on_a_line_or_on_another_word(
    width: int, seconds: float, shares: list[list[float]]
) -> None:
    """A curve may begin high, and above the limit where memory is only sampled."""
    curves = [
        MemoryCurve(
            panel=("tokenize", "train a tokenizer")[number % 2],
            name=f"program {number}",
            points=[(seconds * at / len(row), int(GIB * share)) for at, share in enumerate(row)],
            note="died at 53 %",
            died=True,
        )
        for number, row in enumerate(shares)
    ]
    assert_legible(draw_memory(curves, GIB, width=width))


def test_the_picture_in_the_readme_is_legible() -> None:
    assert_legible((Path(__file__).parents[2] / "docs" / "memory.svg").read_text())


@pytest.mark.parametrize("width", [380, 820])
def test_names_stand_below_the_curves_the_highest_first(width: int) -> None:
    low = MemoryCurve(panel="tokenize", name="low", points=[(0.0, MIB), (20.0, 2 * MIB)])
    svg = draw_memory([low, curve("high", died=True)], GIB, width=width)
    heights = {one.text: float(one.get("y", "0")) for one in elements(svg, "text")}
    lowest = max(float(one.get("y1", "0")) for one in elements(svg, "line", "axis"))
    assert lowest < heights["high"] < heights["low"] < float(svg.split('"')[3].split()[3])


def test_only_names_that_can_be_written_are_taken(tmp_path: Path) -> None:
    for name in ("a.html", "a.SVG"):
        check_picture_file(tmp_path / name)
        show_picture(tmp_path / name, [curve()], GIB, [], [], [])
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "a.SVG").read_text().startswith("<svg ")
    (tmp_path / "b.svg").mkdir()
    before = sorted(tmp_path.iterdir())
    for wrong in ("a.png", "a", "nowhere/a.svg", "b.svg", "x" * 245 + ".svg", "x" * 300 + ".svg"):
        with pytest.raises(UsageError):
            check_picture_file(tmp_path / wrong)
    assert sorted(tmp_path.iterdir()) == before


def test_a_table_too_wide_tells_long_outcomes_below() -> None:
    header = ("program", "outcome", "time", "at 9 GiB")
    assert lay_out(header, [("a", "died at 3 %", "1s", "-")])[1].startswith(
        "a        died at 3 %    1s"
    )
    told = lay_out(header, [("a", "too slow, " + "mapping " * 12, "1s", "-")])
    assert told[1] == "a        too slow    1s         -"
    assert told[2].startswith("  too slow, mapping mapping")
    assert told[3].startswith("    mapping")


HEADER = ("program", "outcome", "peak", "time", "× lowtide", "per GiB", "at 1023.9 GiB (predicted)")
WIDEST = (
    "lowtide train-tokenizer", "finished", "1023.9 MiB", "10h 02m", "99.9*", "1023.9 MiB",
    "more than 1023.9 MiB (its budget), more than 10h 02m",
)  # fmt: skip


def test_the_widest_table_fits_80_columns_and_loses_no_cell() -> None:
    died = ("a", "died at the limit after 37 %, mapping", *WIDEST[2:])
    refused = ("b", "refused beforehand: " + "it needs more than there is " * 5, *WIDEST[2:])
    told = lay_out(HEADER, [WIDEST, died, refused])
    assert max(map(len, told)) <= 80
    words = " ".join(" ".join(told).split())
    for cell in (*HEADER[:-1], *WIDEST, *died, *refused):
        assert " ".join(cell.split()) in words
    assert "  at 1023.9 GiB (predicted): more than 1023.9 MiB" in "\n".join(told)


def test_what_a_program_or_a_path_is_called_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a\u202eb\nc.html"
    show_picture(out, [curve()], GIB, [], [], [])
    told = capsys.readouterr().err
    assert told == f"picture: {tmp_path}/a\\u202eb\\nc.html\n"
    assert out.exists()
    table = ("t", HEADER, [("a", "failed: \x1b[2J", *WIDEST[2:])])
    show_comparison([("s", "\x1b")], [table], ["kept: \u202e"], {}, as_json=False)
    stream = io.StringIO()
    with show_passing_lines(stream) as tell:
        tell("failed: \x1b[2J", False)
    told = capsys.readouterr().out + stream.getvalue()
    assert "\x1b" not in told
    assert "\u202e" not in told


def test_elsewhere_than_on_a_terminal_only_lines_that_stay_are_told_at_once() -> None:
    stream = io.StringIO()
    with show_passing_lines(stream) as tell:
        tell("passing", True)
        tell("it stays", False)
    assert stream.getvalue() == "it stays\n"


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0.8, ("0", "0.2s", "0.8s")),
        (16.0, ("0", "5s", "15s")),
        (100.0, ("0", "15s", "1m 30s")),
        (213.0, ("0", "30s", "3m 30s")),
        (7000.0, ("0", "30m", "1h 30m")),
    ],
)
def test_times_below_the_picture_are_round(seconds: float, wanted: tuple[str, ...]) -> None:
    points = [(seconds * number / 10, number * MIB) for number in range(11)]
    svg = draw_memory([MemoryCurve(panel="p", name="n", points=points)], GIB, width=640)
    told = [one.text or "" for one in elements(svg, "text")]
    times = [text for text in told if re.fullmatch(r"0|([\d.]+[hms] ?)+", text)]
    assert set(wanted) <= set(times)
    assert len(times) <= 9
