"""The page of a run: one file that shows what the journal tells, and does nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import islice
from pathlib import Path

import pytest

from lowtide.errors import DataError
from lowtide.show.page import document
from lowtide.show.page.document import MOST_PAGE_BYTES
from lowtide.show.page.read_run import read_run
from lowtide.show.page.scales import WIDTH, Gap, TimeAxis
from lowtide.show.page.write_page import write_page
from lowtide.stages.why import Question, explain
from lowtide.units import GIB
from tests.show.page_journals import (
    BEGAN,
    end,
    learnt,
    one_step,
    start,
    tokenized,
    trained,
    watched,
    write_log,
)
from tests.show.page_reading import TAGS, Page, make


def values_of(page: Page, title: str, content: str) -> list[list[float]]:
    """The values of a chart's first line, read back out of its path, session by session."""
    figure = next(part for part in content.split("<figure")[1:] if f"<h3>{title}</h3>" in part)
    bottom, top = (
        float(re.search(rf'data-{name}="([^"]*)"', figure)[1]) for name in ("bottom", "top")
    )  # type: ignore[index]
    d = re.findall(r'<path class="line [a-z]+" data-name="[^"]*" d="([^"]*)"', figure)[-1]
    runs = []
    for run in d.split("M")[1:]:
        numbers = [int(one) for one in re.findall(r"-?\d+", run.replace("h0", ""))]
        height, heights = numbers[1], [numbers[1]]
        for down in numbers[3::2]:
            height += down
            heights.append(height)
        runs.append([bottom + (1 - one / 30_000) * (top - bottom) for one in heights])
    return runs


RUNS = {
    "tokenize": lambda: tokenized(),
    "train-tokenizer": lambda: learnt(),
    "train": lambda: [*trained(), end(BEGAN + 1900)],
    "killed": lambda: islice(tokenized(), 700),
    "watch": lambda: watched(),
}


@pytest.mark.parametrize("kind", RUNS)
def test_nothing_in_a_page_can_act_or_leave(tmp_path: Path, kind: str) -> None:
    content, page = make(tmp_path, RUNS[kind]())
    assert {tag for tag, _ in page.elements} <= TAGS
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"
    assert "http://" not in content.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in content
    assert "url(" not in content
    assert "innerHTML" not in content


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_nothing_else(
    tmp_path: Path,
) -> None:
    _, page = make(tmp_path, tokenized())
    policy = next(one["content"] for one in page.of("meta") if "http-equiv" in one)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    (style,), scripts = page.sources["style"], page.sources["script"]
    for rule, source in (("style-src", style), ("script-src", scripts[1])):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert len(scripts) == 2
    assert set(json.loads(scripts[0])) == {"width", "height", "units", "gap", "sessions"}


@pytest.mark.parametrize("kind", RUNS)
def test_every_run_shows_memory_against_what_was_allowed(tmp_path: Path, kind: str) -> None:
    content, page = make(tmp_path, RUNS[kind]())
    assert len(page.of("figure", "chart")) >= 5
    assert all(one["d"] for one in page.of("path", "line"))
    assert page.of("path", "level")
    assert "Peak private memory" in page.text
    assert "Page cache" in page.text
    assert len(content.encode()) < MOST_PAGE_BYTES


def test_what_was_measured_is_what_is_drawn(tmp_path: Path) -> None:
    content, page = make(tmp_path, [*trained(steps=500), end(BEGAN + 900)])
    (drawn,) = values_of(page, "Loss", content)
    told = [float(str(one["loss"])) for one in trained(steps=500) if one["event"] == "step"]
    assert drawn == pytest.approx(told, abs=5e-4)


def test_the_highest_peak_of_memory_is_drawn_however_short_it_was(tmp_path: Path) -> None:
    records = [start("train"), *(one_step(n, 9_000, BEGAN + n) for n in range(1, 9_000))]
    records[5_321]["private_bytes"] = 3 * GIB
    content, page = make(tmp_path, records)
    (drawn,) = values_of(page, "Private memory", content)
    assert max(drawn) == pytest.approx(3 * GIB, rel=1e-4)
    assert "3.0 GiB" in page.text


def test_stages_are_bands_and_a_pause_is_a_gap(tmp_path: Path) -> None:
    _, page = make(tmp_path, learnt(), "tokenizer")
    assert {one["class"] for one in page.of("rect", "stage")} == {
        "stage still",
        "stage n0",
        "stage n1",
    }
    assert "counting words" in page.text
    assert "learning merges" in page.text
    sessions = [*trained(last=900), *trained(began=BEGAN + 90_000, first=801), end(BEGAN + 99_000)]
    content, page = make(tmp_path, sessions, "resumed")
    assert len(values_of(page, "Private memory", content)) == 2
    assert any("killed" in one["class"] for one in page.of("path", "gap"))
    assert "the record broke off" in page.text
    assert "over 2 sessions" in page.text


def test_the_end_of_a_session_and_the_start_of_the_next_lie_a_gap_apart() -> None:
    axis = TimeAxis(seconds=100.0, gaps=(Gap(at_seconds=60.0, session=1, killed=False),))
    assert (axis.place(0, 0), axis.place(100, 1)) == (0, WIDTH)
    assert axis.place(60, 1) - axis.place(60, 0) == axis.gap_width > 0


def test_numbers_that_nobody_measured_are_not_drawn(tmp_path: Path) -> None:
    records = [start("train"), *(one_step(n, 9, BEGAN + n) for n in range(1, 9))]
    for n, wrong in enumerate((1e308, -1e308, float("nan"), float("inf"), "nan", 10**400), start=1):
        records[n]["loss"] = wrong
    content, page = make(tmp_path, records)
    assert len(values_of(page, "Loss", content)[0]) == 2
    assert "6 losses were not finite" in page.text


def test_alerts_and_the_forecast_of_a_watch_are_marked(tmp_path: Path) -> None:
    path = write_log(tmp_path / "20260921-141320-4711.jsonl", watched())
    page = Page(write_page(path).path.read_text())
    stages = [
        one["class"].split()[1] for one in page.of("path", "alert") if " " in one["class"].strip()
    ]
    assert stages == ["note", "ask", "end"]
    assert "forecast (predicted)" in page.text
    assert "would be reached in 54s (predicted)" in page.text
    assert "python leak.py --corpus stories.jsonl" in page.text


UNFINISHED = {
    "stopped": lambda: [*islice(tokenized(), 99), end(BEGAN + 99, "stopped", exit_code=75)],
    "interrupted": lambda: [
        *islice(tokenized(), 99),
        end(BEGAN + 99, "interrupted", exit_code=130),
    ],
    "failed": lambda: [
        start("tokenize"),
        end(BEGAN + 1, "failed", exit_code=1, problem="disk full", remedy="free 1 GB"),
    ],
    "no end": lambda: [*islice(tokenized(), 99)],
    "asked to stop": lambda: [*watched()],
    "exit code 0": lambda: [start("watch"), end(BEGAN + 5, "ended")],
    "exit code 3": lambda: [start("watch"), end(BEGAN + 5, "ended", exit_code=3)],
    "killed": lambda: [
        start("watch"),
        end(BEGAN + 5, "ended", exit_code=None, signal=9, oom_kills=2),
    ],
}
HEADLINES = {
    "stopped": "Stopped cleanly 102.8M tokens",
    "interrupted": "Interrupted 102.8M tokens",
    "failed": "Failed with exit code 1 It ran 1.0s.",
    "no end": "No end on record 102.8M tokens",
    "asked to stop": "Ended by signal 15 (SIGTERM)",
    "exit code 0": "Ended with exit code 0",
    "exit code 3": "Ended with exit code 3",
    "killed": "Ended by signal 9 (SIGKILL)",
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_the_page_shows_the_outcome_and_the_verdict_of_why(tmp_path: Path, kind: str) -> None:
    log = write_log(tmp_path / "run" / "log.jsonl", UNFINISHED[kind]())
    verdict = explain(Question(timelines=tmp_path, target=log.parent))
    page = Page(write_page(log.parent, explain=lambda: verdict).path.read_text(encoding="utf-8"))
    assert HEADLINES[kind] in page.text
    assert verdict.sentence.replace("`", "") in page.text
    for remedy in verdict.remedies[:3]:
        assert f"remedy {remedy.replace('`', '')}" in page.text


@pytest.mark.parametrize("kind", UNFINISHED)
def test_without_a_verdict_the_page_shows_what_the_journal_records(
    tmp_path: Path, kind: str
) -> None:
    _, page = make(tmp_path, UNFINISHED[kind]())
    assert HEADLINES[kind] in page.text
    assert ("remedy free 1 GB" in page.text) is (kind == "failed")
    assert ("lowtide why RUN says more" in page.text) is (kind == "no end")


def test_why_is_not_asked_about_a_finished_run(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run" / "log.jsonl", tokenized())
    page = Page(write_page(log, explain=pytest.fail).path.read_text(encoding="utf-8"))
    assert "Finished 1.3B tokens from 5.0 GiB of input in 10m 42s." in page.text


def test_a_count_from_before_the_end_says_that_there_is_more(tmp_path: Path) -> None:
    records = list(tokenized())
    _, page = make(tmp_path, [*records[:1000], records[-1]])
    assert "More than 1.0B tokens from 5.0 GiB of input" in page.text
    assert "> 1.0B" in page.text


def test_a_later_session_takes_the_verdict_of_an_earlier_one_back(tmp_path: Path) -> None:
    _, page = make(tmp_path, [start("tokenize"), end(BEGAN + 9), start("tokenize", BEGAN + 20)])
    assert "No end on record" in page.text


def test_logs_without_times_are_laid_out_by_what_their_steps_took(tmp_path: Path) -> None:
    old = [{"event": "start", "step": 0}, *(one_step(n, 100, None) for n in range(1, 101))]
    content, page = make(tmp_path, old)
    assert "All steps taken 100 of 100 steps in 1m 30s." in page.text
    assert "1m 30s" in page.text
    assert len(values_of(page, "Loss", content)[0]) == 100
    assert "the axis adds up what the steps took" in page.text


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    notes = [
        {"event": "note", "at": BEGAN + n, "text": f"note {n}", "level": "info"} for n in range(500)
    ]
    samples = [{"event": "sample", "at": BEGAN + 600, "step": n, "text": "a"} for n in range(30)]
    _, page = make(tmp_path, [start("train"), *notes, *samples])
    assert "and 431 more events, in the log" in page.text
    assert "and 22 more samples, in the log" in page.text
    assert "note 499" in page.text


def test_the_same_journal_gives_the_same_page(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "one", [*trained(), end(BEGAN + 1900)])
    second, _ = make(tmp_path / "two", [*trained(), end(BEGAN + 1900)])
    assert first == second


def test_a_line_that_was_being_written_is_left_out(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run" / "log.jsonl", [*tokenized()][:50])
    whole = read_run(log).records
    with log.open("ab") as file:
        file.write(b'{"event": "advanced", "at": 17900')
    assert read_run(log).records == whole == 50


def test_an_empty_log_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no record yet"):
        write_page(write_log(tmp_path / "log.jsonl", []))
    assert [one.name for one in tmp_path.iterdir()] == ["log.jsonl"]


def test_budgets_that_change_between_sessions_are_drawn_for_their_own(tmp_path: Path) -> None:
    second = [{**one, "at": float(str(one["at"])) + 5000} for one in tokenized(budget_bytes=GIB)]
    _, page = make(tmp_path, [*tokenized(), *second])
    assert len([one for one in page.of("path", "level") if "H" not in one["d"]]) == 2


def _shine(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_and_lines_stand_out_from_the_paper_in_light_and_dark() -> None:
    style = document._source("style.css")
    themes = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{[^}]*\}", style)
    ]
    assert len(themes) == 3
    assert themes[0] == themes[2]  # a print is the light page
    for theme in themes:
        for name in theme.keys() - {"paper", "hair", "wash"}:
            for ground in ("paper", "wash"):
                low, high = sorted((_shine(theme[name]), _shine(theme[ground])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)
