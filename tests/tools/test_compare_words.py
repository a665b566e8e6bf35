"""What is not installed is left out and named; what is predicted is never more than a budget allows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.svg import MemoryCurve
from lowtide.tools.compare.growth import Growth
from lowtide.tools.compare.programs import PROGRAMS
from lowtide.tools.compare.run import Comparison, ProgramResult
from lowtide.tools.compare.run_boxed import Boxed, Ending
from lowtide.tools.compare.sample import TextSample
from lowtide.tools.compare.words import (
    curves,
    introduce,
    record,
    remarks,
    tables,
)
from lowtide.units import GIB, MIB

BY_KEY = {program.key: program for program in PROGRAMS}
SAMPLE = TextSample(
    files=(Path("a"),) * 16,
    text_bytes=(MIB,) * 16,
    documents=100,
    cut_documents=3,
    replaced=2,
    input_share=0.01,
)


def boxed(ending: Ending = "finished", *, tokens: int | None = None, seconds: float = 4.0) -> Boxed:
    return Boxed(
        ending=ending,
        text_bytes=16 * MIB,
        seconds=seconds,
        peak_private_bytes=100 * MIB,
        peak_charged_bytes=None,
        share=0.379,
        stage="mapping",
        tokens=tokens,
        points=((1.0, MIB), (2.0, 2 * MIB)),
        complaint="no room" if ending in ("failed", "refused") else "",
    )


def measured(text_bytes: int, *, peak_bytes: int, seconds: float) -> Boxed:
    return replace(boxed(seconds=seconds), text_bytes=text_bytes, peak_private_bytes=peak_bytes)


def result(key: str, whole: Boxed, *, peak: int = 100 * MIB) -> ProgramResult:
    growth = Growth(
        smaller=measured(4 * MIB, peak_bytes=50 * MIB, seconds=1),
        larger=measured(16 * MIB, peak_bytes=peak, seconds=4),
    )
    return ProgramResult(
        program=BY_KEY[key],
        runs=(whole,),
        growth=growth if whole.ending == "finished" else None,
        budget_bytes=300 * MIB if BY_KEY[key].ours else None,
    )


def comparison(*results: ProgramResult, left_out: tuple[str, ...] = ()) -> Comparison:
    return Comparison(
        limit_bytes=GIB,
        how="sampled",
        sample=SAMPLE,
        results=results,
        left_out=tuple(BY_KEY[key] for key in left_out),
        kept=None,
    )


def programs_of(found: Comparison) -> list[dict[str, object]]:
    told = record(found)["programs"]
    assert isinstance(told, list)
    return told


def test_what_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    found = comparison(left_out=("map",))
    line = "left out: datasets.map needs datasets; `pip install 'lowtide[compare]'` brings it"
    assert line in remarks(found)
    assert record(found)["left_out"] == [
        {"program": "map", "missing": ["datasets"], "extra": "compare"}
    ]


def test_ours_is_predicted_no_higher_than_its_budget_and_others_as_the_line_goes() -> None:
    found = comparison(result("list", boxed()), result("lowtide", boxed()))
    theirs, ours = tables(found)[0].rows
    assert theirs[-1].startswith("6.5 GiB")
    assert ours[-1].startswith("300.0 MiB (its budget)")


@pytest.mark.parametrize("measured_twice", [True, False])
@pytest.mark.parametrize("key", ["map", "lowtide"])
def test_a_program_that_died_is_predicted_above_the_limit_and_slower_than_it_was(
    key: str, measured_twice: bool
) -> None:
    growth = Growth(
        smaller=measured(2 * MIB, peak_bytes=240 * MIB, seconds=1),
        larger=measured(4 * MIB, peak_bytes=248 * MIB, seconds=2),
    )
    died = result(key, boxed("died", seconds=500.0))
    died = replace(died, growth=growth if measured_twice else None)
    found = comparison(died)
    found = replace(found, sample=replace(SAMPLE, input_share=1.0))
    assert tables(found)[0].rows[0][-1] == "more than 1.0 GiB, more than 8m 20s"
    told = programs_of(found)[0]
    assert told["predicted_peak_bytes"] == GIB
    assert told["predicted_seconds"] == 500.0
    assert told["predicted_at_least"] is True


def test_a_line_that_goes_beyond_the_limit_is_told_as_it_is() -> None:
    growth = result("map", boxed()).growth
    found = comparison(replace(result("map", boxed("died")), growth=growth))
    assert tables(found)[0].rows[0][-1].startswith("6.5 GiB, ")
    assert programs_of(found)[0]["predicted_at_least"] is False


def test_every_program_has_a_curve_with_its_end() -> None:
    found = comparison(result("list", boxed("died")), result("lowtide", boxed()))
    theirs, ours = curves(found)
    points = boxed().points
    assert theirs == MemoryCurve(
        panel="tokenize", name="Python list of ids", points=points, died=True, note="died at 37 %"
    )
    assert ours == MemoryCurve(panel="tokenize", name="lowtide tokenize", points=points, ours=True)


def test_nothing_is_predicted_where_the_sample_was_everything() -> None:
    found = comparison(result("list", boxed()))
    whole = replace(found, sample=replace(SAMPLE, input_share=1.0))
    assert tables(whole)[0].rows[0][-1] == "as measured"
    assert "full input" not in dict(introduce(whole))


@pytest.mark.parametrize(
    ("ending", "told", "short"),
    [
        ("finished", "finished", ""),
        ("died", "died at the limit after 37 %, mapping", "died at 37 %"),
        ("failed", "failed after 37 %, mapping: no room", "failed at 37 %"),
        ("refused", "refused beforehand: no room", "refused at 37 %"),
        ("too slow", "too slow, ended after 37 %, mapping", "too slow at 37 %"),
    ],
)
def test_every_end_has_words(ending: Ending, told: str, short: str) -> None:
    found = result("list", boxed(ending))
    assert tables(comparison(found))[0].rows[0][1] == told
    assert curves(comparison(found))[0].note == short


def test_ratios_are_of_the_same_text() -> None:
    found = comparison(result("list", boxed(seconds=8)), result("lowtide", boxed(seconds=4)))
    theirs, ours = tables(found)[0].rows
    assert (theirs[4], ours[4]) == ("2.0", "1")
    died = comparison(result("list", boxed("died")), result("lowtide", boxed()))
    assert tables(died)[0].rows[0][4] == "-"
    alone = comparison(result("list", boxed()))
    assert tables(alone)[0].rows[0][4] == "-"


def test_different_numbers_of_tokens_are_a_warning() -> None:
    same = comparison(result("list", boxed(tokens=7)), result("lowtide", boxed(tokens=7)))
    assert "all that finished made the same 7 tokens" in remarks(same)
    other = comparison(result("list", boxed(tokens=7)), result("lowtide", boxed(tokens=8)))
    assert any(line.startswith("warning: they made different") for line in remarks(other))


def test_what_was_done_to_the_sample_and_who_held_the_limit_is_told() -> None:
    found = comparison(result("list", boxed()))
    text = "\n".join(remarks(found))
    assert "cut 3 times" in text
    assert "2 places that are not UTF-8" in text
    assert "sampled" in dict(introduce(found))["limit"]
