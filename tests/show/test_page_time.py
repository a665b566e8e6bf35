"""Time on a page goes on, whatever the clock did and in whatever order records were written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from lowtide.show.page.facts import Band, RunFacts
from lowtide.show.page.read_run import read_run
from lowtide.units import MIB
from tests.show.page_journals import BEGAN, Record, end, one_step, start, tokenized, write_log
from tests.show.page_reading import make

HOUR = 3600


def read(folder: Path, records: Iterable[Record]) -> RunFacts:
    return read_run(write_log(folder / "log.jsonl", records))


def advanced(at: float, elapsed: float, done: int = 5 * MIB, **fields: object) -> Record:
    sizes = {"done_bytes": done, "total_bytes": 9 * MIB, "private_bytes": 30 * MIB}
    return {"event": "advanced", "at": at, **sizes, "elapsed_seconds": elapsed, **fields}


def learnt(at: float, elapsed: float, merges: int) -> Record:
    found = {"merges": merges, "most_merges": 900, "private_bytes": 20 * MIB}
    return {"event": "learnt", "at": at, **found, "elapsed_seconds": elapsed}


def bands(facts: RunFacts) -> dict[str, tuple[float, float]]:
    """From and to of each stage; every stage is entered once."""

    def edges(one: Band) -> tuple[float, float]:
        return round(one.from_seconds, 3), round(one.to_seconds, 3)

    assert len({one.name for one in facts.bands}) == facts.bands.count
    return {one.name: edges(one) for one in facts.bands}


def test_time_goes_on_when_the_clock_is_set_back(tmp_path: Path) -> None:
    ats = [BEGAN + n * 0.9 - (HOUR if n > 40 else 0) for n in range(1, 81)]
    records = [start("train"), *(one_step(n, 950, at) for n, at in enumerate(ats, start=1))]
    facts = read(tmp_path, records)
    assert facts.seconds == pytest.approx(72, abs=0.01)
    moments = [point.seconds for point in facts.series["loss"].points()]
    assert len(moments) == 80
    _, page = make(tmp_path, records)
    assert "80 of 950 steps in 1m 12s" in page.text


def test_time_goes_on_by_what_a_stage_says_that_has_passed(tmp_path: Path) -> None:
    records = list(tokenized(seconds=600))
    for one in records:
        if float(str(one["at"])) > BEGAN + 300:
            one["at"] = float(str(one["at"])) - HOUR
    assert read(tmp_path, records).seconds == pytest.approx(602, abs=1.1)


def test_a_forecast_is_no_time_that_has_passed(tmp_path: Path) -> None:
    told = {"seconds": 999.0, "reaches_bytes": MIB, "bytes_per_second": 5}
    back = [{"event": "forecast", "at": BEGAN - HOUR, **told}, end(BEGAN - HOUR + 2, "ended")]
    facts = read(tmp_path, [start("watch"), {"event": "note", "at": BEGAN + 5, "text": "a"}, *back])
    assert facts.seconds == pytest.approx(7, abs=0.01)


def test_a_record_that_was_held_back_is_no_clock_set_back(tmp_path: Path) -> None:
    held = [
        advanced(BEGAN + 3.8, 3.8, done=9 * MIB, private_bytes=70 * MIB),
        {"event": "memory", "at": BEGAN + 99.2, "private_bytes": 8 * MIB},
    ]
    work = [learnt(BEGAN + second, second, 9 * second - 27) for second in range(5, 100)]
    begun = [start("train-tokenizer"), advanced(BEGAN + 3, 3)]
    facts = read(tmp_path, [*begun, *work, *held, end(BEGAN + 100)])
    assert facts.seconds == pytest.approx(100)
    assert facts.last_at == BEGAN + 100
    assert facts.counts.done_bytes == 9 * MIB
    assert facts.peaks.private_bytes == 70 * MIB
    assert max(point.high for point in facts.series["private"].points()) == 30 * MIB
    assert list(bands(facts)) == ["starting", "counting words", "learning merges"]
    assert max(point.high for point in facts.series["merge rate"].points()) < 20


def test_merges_are_learnt_from_where_counting_ended(tmp_path: Path) -> None:
    begun = [start("train-tokenizer"), advanced(BEGAN + 0.5, 0.5), advanced(BEGAN + 1.6, 1.6)]
    facts = read(tmp_path, [*begun, learnt(BEGAN + 4.0, 4.0, 900), end(BEGAN + 4.2)])
    assert bands(facts) == {
        "starting": (0, 0.5),
        "counting words": (0.5, 1.6),
        "learning merges": (1.6, 4.2),
    }
    for told in (2.1, 3.9):
        late = [learnt(BEGAN + 4.0, 4.0, 900), advanced(BEGAN + told, told), end(BEGAN + 4.2)]
        assert bands(read(tmp_path, [*begun, *late]))["learning merges"] == (told, 4.2)
    (rate,) = facts.series["merge rate"].points()
    assert rate.last == pytest.approx(900 / 2.4)


def test_peak_and_time_are_those_that_the_end_tells(tmp_path: Path) -> None:
    first = [start("tokenize"), advanced(BEGAN + 8, 8), end(BEGAN + 9, "stopped")]
    first[-1] |= {"peak_private_bytes": 90 * MIB, "elapsed_seconds": 70.0}
    later = BEGAN + 500
    second = [start("tokenize", later), advanced(later + 30, 30), end(later + 31)]
    second[-1] |= {"peak_private_bytes": 40 * MIB, "elapsed_seconds": 50.0}
    unended = [start("tokenize", later + 900), advanced(later + 920, 20)]
    _, page = make(tmp_path, [*first, *second, *unended])
    assert "Peak private memory90.0 MiB" in page.text
    assert "Time2m 20sof work in 3 sessions" in page.text
    assert "in 2m 20s, over 3 sessions" in page.text
