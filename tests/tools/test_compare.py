"""The classic disaster, safely: the list of ids dies in its box, ours finishes in it, and nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.errors import DoesNotFitError, LowtideError, UsageError
from lowtide.memory.limits import LimitCandidate, MemoryLimit, machine_limit
from lowtide.tools.compare.run import CompareSettings, Comparison, compare
from lowtide.tools.compare.words import introduce, record, remarks, tables
from lowtide.units import GIB, MIB

LIMIT = 256 * MIB
SAMPLE = 13_000_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bytes a token: a list of ids takes twenty times the text, and some MB are a disaster."""
    path = tmp_path_factory.mktemp("corpus") / "letters.txt"
    letters = [f" {chr(ord('a') + number * 7 % 26)}" for number in range(99)]
    line = "".join(letters) + "\n"
    path.write_text(line * (2 * SAMPLE // len(line)))
    return path


@pytest.fixture(scope="module")
def heard() -> list[tuple[str, bool]]:
    return []


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def found(corpus: Path, work: Path, heard: list[tuple[str, bool]]) -> Comparison:
    settings = CompareSettings(
        sample_bytes=SAMPLE,
        limit_bytes=LIMIT,
        programs=("list", "lowtide"),
        separator="line",
        work=work,
    )
    return compare(
        [str(corpus)],
        settings,
        machine=machine_limit(),
        environment=os.environ,
        tell=lambda line, passing: heard.append((line, passing)),
    )


@pytest.mark.slow
def test_the_list_dies_at_the_limit_and_ours_finishes_in_the_same_box(found: Comparison) -> None:
    theirs, ours = found.results
    assert theirs.whole.ending == "died"
    assert theirs.whole.share is not None
    assert 0.2 < theirs.whole.share < 1
    assert ours.whole.ending == "finished"
    assert ours.whole.peak_private_bytes < LIMIT
    assert ours.whole.tokens
    assert not list(Path("/sys/fs/cgroup").rglob(f"lowtide-{os.getpid()}-*"))


@pytest.mark.slow
def test_nothing_is_left_on_the_disk(found: Comparison, work: Path) -> None:
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_the_line_goes_on_to_the_full_input(found: Comparison) -> None:
    theirs, ours = found.results
    first = found.sample.first
    assert [run.text_bytes for run in theirs.runs] == [first(size)[1] for size in (16, 4, 2)]
    assert [run.text_bytes for run in ours.runs] == [first(size)[1] for size in (16, 4)]
    assert theirs.growth is not None
    assert (
        12 < theirs.growth.bytes_per_byte < 40
    )  # 8 for the place, 28 to 32 for the number, 2 bytes each
    told = record(found)["programs"]
    assert isinstance(told, list)
    assert told[0]["predicted_peak_bytes"] > 1.5 * LIMIT
    assert told[1]["predicted_peak_bytes"] <= told[1]["budget_bytes"] < LIMIT


def test_the_table_says_how_each_ended_and_what_is_predicted(found: Comparison) -> None:
    (table,) = tables(found)
    theirs, ours = table.rows
    assert theirs[1].startswith("died at the limit after ")
    assert ours[1] == "finished"
    assert ours[4] == "1"
    assert theirs[4].endswith("*")
    assert table.header[-1].endswith("(predicted)")
    assert {len(row) for row in table.rows} == {len(table.header)}
    told = dict(introduce(found))
    assert "(measured)" in told["sample"]
    assert "(predicted)" in told["full input"]
    assert found.how in told["limit"]
    assert any("straight line" in line for line in remarks(found))


def test_it_tells_how_far_it_is_and_then_how_it_ended(
    found: Comparison, heard: list[tuple[str, bool]]
) -> None:
    stays = [line for line, passing in heard if not passing and not line.startswith("warning")]
    assert len(stays) == 5
    assert "died at the limit" in stays[0]
    assert any("% " in line or "%," in line for line, passing in heard if passing)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"limit_bytes": 20 * MIB}, DoesNotFitError),
        ({"sample_bytes": 10}, UsageError),
        ({"timeout_seconds": 0.0}, UsageError),
        ({"limit_bytes": 8 * GIB}, DoesNotFitError),
        ({"sample_bytes": 10**17}, DoesNotFitError),
        ({"programs": ("lisp",)}, UsageError),
        ({"tokenizer": "nothing"}, UsageError),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(
    corpus: Path, tmp_path: Path, changed: dict[str, object], kind: type[LowtideError]
) -> None:
    settings = CompareSettings(work=tmp_path, **changed)  # type: ignore[arg-type]
    machine = MemoryLimit(candidates=(LimitCandidate(source="this test", total_bytes=4 * GIB),))
    with pytest.raises(kind):
        compare([str(corpus)], settings, machine=machine, environment=os.environ)
    assert list(tmp_path.iterdir()) == []
