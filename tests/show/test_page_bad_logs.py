"""Whatever stands in a log, the page shows it as text, stays small and does nothing else with it."""

from __future__ import annotations

import html
import json
import re
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.show.markup import embedded_json
from lowtide.show.page.charts import MOST_PATH_POINTS
from lowtide.show.page.document import MOST_PAGE_BYTES, page_html
from lowtide.show.page.read_run import read_run
from lowtide.show.page.verdict import judge_run
from lowtide.show.page.write_page import write_page
from lowtide.svg import escape
from lowtide.units import GIB, MIB
from tests.show.page_journals import (
    BEGAN,
    HOSTILE,
    Record,
    end,
    one_step,
    start,
    tokenized,
    trained,
    watched,
    write_log,
)
from tests.show.page_reading import TAGS, Page, make

TEXTS = st.text(max_size=300)


def test_hostile_names_prompts_and_samples_are_shown_as_text(tmp_path: Path) -> None:
    name = "<b>'\"&run"
    records = [
        start("tokenize", settings={HOSTILE: HOSTILE, "deep": {"er": [HOSTILE]}}, version=HOSTILE),
        *list(trained(steps=200, text=HOSTILE))[1:],
        {"event": "note", "at": BEGAN + 300, "text": HOSTILE, "level": HOSTILE},
        {"event": "checkpoint", "at": BEGAN + 300, "step": 1, "path": HOSTILE, "seconds": 1},
        end(BEGAN + 301, "failed", problem=HOSTILE, remedy=HOSTILE),
    ]
    content, page = make(tmp_path, records, name)
    assert {tag for tag, _ in page.elements} <= TAGS
    assert len(page.sources["script"]) == 2
    assert (
        page.text.count(
            "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp; שלום"
        )
        >= 6
    )
    assert name in page.text
    assert "\\u202etxt.exe \\u0000\\ud800\\u2028" in page.text
    assert not re.search("[\u202e\u2028\x00]", content)


def test_hostile_words_of_a_watch_are_shown_as_text(tmp_path: Path) -> None:
    records = list(watched())
    records[0]["command"] = [HOSTILE, "--x"]
    records[0]["how"] = HOSTILE
    for one in records[1:]:
        if one["event"] == "reading":
            one["gpus"] = [{"index": 0, "name": HOSTILE, "used_bytes": 5, "total_bytes": 9}]
            one["top"] = [{"pid": 1, "name": HOSTILE, "private_bytes": 5}]
        if one["event"] == "alert":
            one["stage"] = one["reason"] = HOSTILE
    _, page = make(tmp_path, records)
    assert {tag for tag, _ in page.elements} <= TAGS
    assert page.text.count("alert(2)>&amp; שלום") >= 4


@given(TEXTS, st.integers(min_value=8, max_value=200))
def test_escaped_text_is_short_and_holds_no_markup(text: str, most: int) -> None:
    found = escape(text, most)
    assert len(found.encode()) <= most
    assert not set(found) & set("<>\"'\u202e\u2028\x00")
    if text.isprintable() and len(html.escape(text).encode()) <= most:
        assert html.unescape(found) == text


@given(st.text())
def test_embedded_json_says_the_same_and_cannot_end_its_element(text: str) -> None:
    found = embedded_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(found) == text
    assert not set(found) & set("<>&\u2028\u2029")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *("start", "advanced", "learnt", "step", "evaluation", "sample", "checkpoint"),
        *("note", "memory", "reading", "alert", "forecast", "end", "other"),
    ]
)
FIELDS = st.sampled_from(
    [
        *(
            "at",
            "kind",
            "settings",
            "budget_bytes",
            "command",
            "limit_bytes",
            "done_bytes",
            "total_bytes",
        ),
        *(
            "tokens",
            "private_bytes",
            "merges",
            "step",
            "steps",
            "loss",
            "seconds",
            "text",
            "level",
            "outcome",
        ),
        *(
            "exit_code",
            "elapsed_seconds",
            "signal",
            "gpus",
            "top",
            "stage",
            "reaches_bytes",
            "bytes_per_second",
            "mapped_bytes",
        ),
    ]
)
RECORDS = st.builds(
    lambda event, fields: {**fields, "event": event},
    NAMES,
    st.dictionaries(FIELDS, JSON_VALUES, max_size=8),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_whatever_a_log_holds_a_page_comes_out(tmp_path: Path, records: list[Record]) -> None:
    content, page = make(tmp_path, [*records, {"event": "note"}])
    assert {tag for tag, _ in page.elements} <= TAGS
    assert len(content.encode()) < MOST_PAGE_BYTES


def test_lines_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run" / "log.jsonl", tokenized(seconds=60))
    lines = log.read_bytes().splitlines(keepends=True)
    lines[20:20] = [b"\xff\x00 torn\n", b"[1, 2]\n", b"\n"]
    log.write_bytes(b"".join(lines))
    page = Page(write_page(tmp_path / "run").path.read_text(encoding="utf-8"))
    header, events = page.text.split("Over time")
    assert "3 lines of the log could not be read" in header
    assert "3 lines of the log could not be read; the first is line 21" in events
    assert "Finished" in page.text
    lines[21:23] = []
    log.write_bytes(b"".join(lines))
    assert "1 line of the log could not be read" in write_page(log).path.read_text(encoding="utf-8")


def test_the_fullest_log_makes_no_page_over_the_limit(tmp_path: Path) -> None:
    """Every series noisy and long, every text long and full of what must be escaped, many sessions."""
    long = "&<\u202e" * 300

    def fullest() -> Iterable[Record]:
        for session in range(70):
            began = BEGAN + session * 10_000
            yield start(
                "watch",
                began,
                settings={f"{long}{n}": long for n in range(120)},
                command=[long] * 9,
                how=long,
            )
            for n in range(60):
                at = began + n
                yield one_step(1 + session * 60 + n, 4_200, at)
                noise = (n * 7919 % 997) * 10_000_019 % (8 * GIB)
                cards = [
                    {"index": k, "name": long, "used_bytes": noise, "total_bytes": 9 * GIB}
                    for k in range(5)
                ]
                top = [{"pid": 1, "name": long, "private_bytes": 5}] * 9
                sizes = dict.fromkeys(
                    ("private", "mapped", "swapped", "available", "cgroup"), noise
                )
                yield {
                    "event": "reading",
                    "at": at,
                    **{f"{k}_bytes": v for k, v in sizes.items()},
                    "stalled_percent": n % 7,
                    "gpus": cards,
                    "top": top,
                }
                yield {"event": "evaluation", "at": at, "step": n, "loss": 3 + n % 11}
            for event in ("note", "sample", "alert", "checkpoint"):
                yield {
                    "event": event,
                    "at": at,
                    "step": 1,
                    "text": long,
                    "reason": long,
                    "stage": long,
                    "path": long,
                }
        yield end(at, "failed", problem=long, remedy=long)

    content, page = make(tmp_path, fullest(), "x" * 200)
    assert len(content.encode()) < MOST_PAGE_BYTES
    assert (
        sum(one["d"].count(" ") + one["d"].count("-") for one in page.of("path"))
        < 5 * MOST_PATH_POINTS
    )


@pytest.mark.slow
def test_memory_and_page_do_not_grow_with_the_run(tmp_path: Path) -> None:
    sizes, peaks = [], []
    for steps in (2_000, 16_000):
        path = write_log(tmp_path / f"{steps}.jsonl", trained(steps=steps))
        tracemalloc.start()
        sizes.append(len(page_html(found := read_run(path), "run", judge_run(found)).encode()))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sizes[1] < 1.3 * sizes[0] < MOST_PAGE_BYTES
    assert peaks[1] < 2 * peaks[0]
    assert peaks[1] < 6 * MIB
