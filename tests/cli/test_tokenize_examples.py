"""`lowtide tokenize --examples`: what it says before, after, and about flags that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import call
from tests.laws.chats import make_chats, write_chats

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chats(tmp_path_factory.mktemp("chats"), make_chats(6, count=400))["jsonl"]


def test_the_result_tells_what_became_of_the_examples(
    tmp_path: Path, capsys: Capsys, source: Path
) -> None:
    command = ("tokenize", source, "--out", tmp_path / "out", "--examples", "chat")
    shown = call(capsys, *command, "--context", "64", "--val", "0.1")
    assert shown.code == 0, shown
    for word in ("400 of kind chat", "chatml", "what the assistant says", "of more than 64 tokens"):
        assert word in shown.out
    again = call(capsys, *command, "--context", "64", "--val", "0.1", "--json").json
    assert again["already_done"]
    record, splits = again["examples"], again["splits"]
    assert isinstance(record, dict)
    assert isinstance(splits, dict)
    assert record["examples"] == 400
    assert record["learnt_tokens"] == sum(split["learnt_tokens"] for split in splits.values())
    assert 0 < record["learnt_tokens"] < again["tokens"]


def test_a_dry_run_over_examples_predicts_and_writes_nothing(
    tmp_path: Path, capsys: Capsys, source: Path
) -> None:
    flags = ("--examples", "chat", "--context", "64")
    command = ("tokenize", source, "--out", tmp_path / "out", *flags)
    shown = call(capsys, *command, "--dry-run")
    assert shown.code == 0, shown
    assert "400 (predicted)" in shown.out
    assert "% of the tokens (predicted)" in shown.out
    assert "examples (predicted)" in shown.out
    predicted = call(capsys, *command, "--dry-run", "--json").json
    assert not (tmp_path / "out").exists()
    made = call(capsys, *command, "--json").json
    assert predicted["tokens"] == made["tokens"]
    record = made["examples"]
    assert isinstance(record, dict)
    assert predicted["learnt_tokens"] == record["learnt_tokens"]
    assert predicted["too_long"] == record["too_long_count"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--template", "chatml"),
        ("--learn", "all"),
        ("--too-long", "skip"),
        ("--context", "64"),
    ],
)
def test_flags_about_examples_want_examples(
    tmp_path: Path, capsys: Capsys, source: Path, flags: tuple[str, str]
) -> None:
    failed = call(capsys, "tokenize", source, "--out", tmp_path / "out", *flags)
    assert failed.code == 2
    assert flags[0] in failed.problem
    assert (
        call(capsys, "tokenize", source, "--out", tmp_path / "out", *flags, *failed.advice).code
        == 0
    )


def test_a_separator_is_about_text(tmp_path: Path, capsys: Capsys, source: Path) -> None:
    command = ("tokenize", source, "--out", tmp_path / "out", "--examples", "chat")
    failed = call(capsys, *command, "--separator", "line")
    assert (failed.code, "--separator" in failed.problem) == (2, True), failed


def test_columns_by_other_names(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "sharegpt.jsonl"
    path.write_text(
        '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}\n'
    )
    columns = "messages=conversations,role=from,content=value"
    command = ("tokenize", path, "--out", tmp_path / "out", "--examples", "chat")
    assert call(capsys, *command).code == 2
    made = call(capsys, *command, "--column", columns, "--json")
    assert made.code == 0, made
    assert made.json["documents"] == 1
