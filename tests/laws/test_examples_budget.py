"""Examples stream: 20,000 of them inside a cgroup as large as the smallest budget anybody would name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.hostile_templates import TEMPLATES, at_run_time, judge, run
from lowtide.source.examples.built_in import CHATML
from lowtide.units import parse_bytes
from tests.boxes import drop_from_page_cache, run_in_box
from tests.commands import manifest_of
from tests.laws.chats import make_chats, write_chats

BUDGET = "256MiB"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_chats(
        tmp_path_factory.mktemp("chats"), make_chats(5, count=2000, longest=900) * 10
    )


@pytest.mark.slow
@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_twenty_thousand_examples_fit_into_the_smallest_box(
    tmp_path: Path, files: dict[str, Path], kind: str
) -> None:
    drop_from_page_cache(files[kind])
    command = [sys.executable, "-m", "lowtide", "tokenize", str(files[kind]), "--memory", BUDGET]
    command += ["--out", str(tmp_path / "out"), "--examples", "chat"]
    result = run_in_box(command, limit_bytes=parse_bytes(BUDGET), timeout=300)
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
    assert result.peak_private_bytes < parse_bytes(BUDGET)
    assert manifest_of(tmp_path / "out")["examples"]["examples"] == 20_000  # type: ignore[index]


@pytest.mark.cgroup
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "translate with a large table",
        "long texts kept in a list",
        "two long splits",
        "a macro that calls itself twice",
        "squares",
        "memory in every row",
    ],
)
def test_a_hostile_template_ends_with_an_error_and_not_with_a_kill(
    tmp_path: Path, name: str
) -> None:
    """A few of `bench/hostile_templates.py`, each in a process and a box of its own."""
    result, _ = run(at_run_time(TEMPLATES[name]), tmp_path, BUDGET)
    outcome = judge(result)
    assert outcome.passed, (outcome, result)
    assert result is not None
    assert result.peak_private_bytes < parse_bytes(BUDGET)


@pytest.mark.slow
@pytest.mark.cgroup
def test_examples_through_a_jinja_file_fit_too(tmp_path: Path, files: dict[str, Path]) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text(CHATML)
    command = [sys.executable, "-m", "lowtide", "tokenize", str(files["jsonl"]), "--memory", BUDGET]
    command += ["--out", str(tmp_path / "out"), "--examples", "chat", "--template", str(template)]
    result = run_in_box(command, limit_bytes=parse_bytes(BUDGET), timeout=300)
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
    assert result.peak_private_bytes < parse_bytes(BUDGET)
