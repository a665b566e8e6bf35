"""`lowtide tokenize --examples`: what it says before, after, and about flags that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.shards.manifest import read_manifest
from tests.commands import call
from tests.laws.chats import make_chats, write_chats
from tests.tokenizer_json import added_token, tokenizer_json

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


def test_names_that_the_tokenizer_does_not_know_are_told_once(
    tmp_path: Path, capsys: Capsys, source: Path
) -> None:
    def said(number: int, *flags: str | Path) -> str:
        command = ("tokenize", source, "--out", tmp_path / str(number), "--examples", "chat")
        done = call(capsys, *command, *flags)
        assert done.code == 0, done
        return done.err

    note = (
        "<|im_start|> and <|im_end|> are not tokens of gpt2: they are spelled out, "
        "and a message that spells them too looks the same"
    )
    assert " ".join(said(1).split()).count(note) == 1
    assert "spelled out" not in said(2, "--template", "plain")
    mine = tmp_path / "mine.jinja"
    mine.write_text(
        "{% generation %}{{ messages[0].content }}<|end|>{% endgeneration %}<|endoftext|>"
    )
    assert "<|end|> is not a token of gpt2: it is spelled out" in said(3, "--template", mine)
    tokenizer = tmp_path / "tokenizer.json"
    names = ("<|im_start|>", "<|im_end|>")
    added = [added_token(name, 50257 + at, special=True) for at, name in enumerate(names)]
    tokenizer.write_text(json.dumps(tokenizer_json(added=added)))
    assert "spelled out" not in said(4, "--tokenizer", tokenizer)


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
    assert flags[0].removeprefix("--") in failed.problem
    assert (
        call(capsys, "tokenize", source, "--out", tmp_path / "out", *flags, *failed.advice).code
        == 0
    )


def test_a_separator_is_about_text(tmp_path: Path, capsys: Capsys, source: Path) -> None:
    command = ("tokenize", source, "--out", tmp_path / "out", "--examples", "chat")
    failed = call(capsys, *command, "--separator", "line")
    assert (failed.code, "`--separator`" in failed.hint) == (2, True), failed


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


def test_a_column_called_text_is_a_name_like_any_other(tmp_path: Path, capsys: Capsys) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "out"
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    path.write_text(json.dumps({"text": said, "messages": said[:1]}) + "\n")
    command = ("tokenize", path, "--out", out, "--examples", "chat")
    assert "nothing in it is learnt" in call(capsys, *command).problem
    assert call(capsys, *command, "--column", "text").code == 0
    assert call(capsys, *command, "--column", "text", "--json").json["already_done"]
    pair = tmp_path / "pairs.jsonl"
    pair.write_text('{"prompt": "hi", "completion": "yo"}\n')
    command = ("tokenize", pair, "--out", tmp_path / "pairs", "--examples", "completion")
    refused = call(capsys, *command, "--column", "text")
    assert (refused.code, refused.advice[0]) == (2, "--column")
    assert "'text' does not say which column it names" in refused.problem
    assert call(capsys, *command).code == 0


def test_the_column_of_text_is_called_text_and_so_stored(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "low tide"}\n')
    for out, flags in ((tmp_path / "a", ()), (tmp_path / "b", ("--column", "text"))):
        assert call(capsys, "tokenize", path, "--out", out, *flags).code == 0
        assert read_manifest(out).settings["column"] == "text"
    assert "messages=NAME,role=NAME,content=NAME" in call(capsys, "tokenize", "--help").out


_MESSAGES = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Yes."}]
_SHARED = [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Yes."}]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"messages": _MESSAGES}, "chat"),
        ({"conversations": _MESSAGES}, "chat"),
        ({"conversations": _SHARED}, "chat"),
        ({"instruction": "Say yes.", "output": "Yes."}, "instruction"),
        ({"prompt": "Hi?", "completion": "Yes."}, "completion"),
    ],
)
def test_rows_that_look_like_examples_are_refused_with_the_flags_that_read_them(
    tmp_path: Path, capsys: Capsys, row: dict[str, object], kind: str, format: str
) -> None:
    path = tmp_path / f"rows.{format}"
    if format == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    command = ("tokenize", path, "--val", "0", "--out", tmp_path / "out")
    refused = call(capsys, *command)
    assert refused.code == 2
    flags = " ".join(refused.advice).split()
    assert flags[:2] == ["--examples", kind]
    done = call(capsys, *command, *flags)
    assert done.code == 0, done.err
    record = read_manifest(tmp_path / "out").examples
    assert record is not None
    assert (record.kind, record.examples) == (kind, 1)


def test_rows_that_hold_no_conversation_are_not_taken_for_one(
    tmp_path: Path, capsys: Capsys
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": ["a"], "instruction": "b"}) + "\n")
    refused = call(capsys, "tokenize", path, "--out", tmp_path / "out")
    assert refused.code == 2
    assert "--examples" not in refused.hint
