"""Bad examples, through the command: an error that names file and row, or a counted skip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.source.examples.built_in import CHATML
from tests.commands import Outcome, assert_nothing_half_written, call, manifest_of
from tests.laws.chats import PlainReference, make_chats, read_examples, write_chats, write_rows
from tests.tokenizer_json import tokenizer_json

Capsys = pytest.CaptureFixture[str]
GOOD = [
    {"role": "user", "content": "How high is the tide?"},
    {"role": "assistant", "content": "Two metres."},
]
BAD = {
    "no assistant": {"messages": GOOD[:1]},
    "unknown role": {"messages": [{"role": "captain", "content": "Ahoy."}, *GOOD]},
    "empty messages": {"messages": []},
    "no messages": {"text": "a row of something else"},
    "null content": {"messages": [GOOD[0], {"role": "assistant", "content": None}]},
    "list content": {"messages": [GOOD[0], {"role": "assistant", "content": ["a", "b"]}]},
    "no content": {"messages": [GOOD[0], {"role": "assistant"}]},
    "a reserved character": {"messages": [GOOD[0], {"role": "assistant", "content": "\ufdd0"}]},
    "no row": [1, 2, 3],
}


def tokenize(capsys: Capsys, source: Path, out: Path, *flags: str | Path) -> Outcome:
    kinds = () if "--examples" in flags else ("--examples", "chat")
    return call(
        capsys, "tokenize", source, "--out", out, "--val", "0", "--workers", "1", *kinds, *flags
    )


def rows_with(bad: object, *, at: int = 40, count: int = 80) -> list[object]:
    return [*[{"messages": GOOD}] * at, bad, *[{"messages": GOOD}] * (count - at)]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_or_left_out_and_counted(
    tmp_path: Path, capsys: Capsys, name: str
) -> None:
    source, out = write_rows(tmp_path / "rows.jsonl", rows_with(BAD[name])), tmp_path / "out"
    failed = tokenize(capsys, source, out)
    assert failed.code == (2 if name == "no messages" else 1), failed
    assert "rows.jsonl" in failed.problem
    assert "line 41" in failed.problem
    assert_nothing_half_written(out)
    skipped = tokenize(capsys, source, out, "--bad-text", "skip", "--json")
    assert skipped.code == 0, skipped
    assert skipped.json["bad_rows"] == 1
    assert skipped.json["examples"]["examples"] == 80  # type: ignore[index]
    listed = manifest_of(out)["first_bad_rows"][0]  # type: ignore[index]
    assert (listed["position"], listed["unit"]) == (41, "line")
    assert read_examples(out) == [PlainReference(CHATML).encode(GOOD)] * 80


def test_a_broken_line_in_the_middle(tmp_path: Path, capsys: Capsys) -> None:
    source, out = write_rows(tmp_path / "rows.jsonl", rows_with({})), tmp_path / "out"
    broken = source.read_text().replace("\n{}\n", '\n{"messages": [{"role": "us\n')
    source.write_text(broken)
    failed = tokenize(capsys, source, out)
    assert (failed.code, "line 41" in failed.problem) == (1, True), failed
    skipped = tokenize(capsys, source, out, *failed.advice)
    assert skipped.code == 0, skipped
    assert manifest_of(out)["bad_rows"] == 1


def test_bad_rows_of_parquet_are_counted_by_row(tmp_path: Path, capsys: Capsys) -> None:
    chats = [GOOD] * 5 + [GOOD[:1]] + [GOOD] * 5
    source, out = write_chats(tmp_path / "in", chats)["parquet"], tmp_path / "out"
    failed = tokenize(capsys, source, out)
    assert (failed.code, "row 6" in failed.problem) == (1, True), failed
    assert tokenize(capsys, source, out, "--bad-text", "skip").code == 0
    assert manifest_of(out)["bad_rows"] == 1


@pytest.mark.parametrize("content", ["", "\n\n", json.dumps({"messages": GOOD[:1]}) + "\n"])
def test_a_file_without_a_single_example(tmp_path: Path, capsys: Capsys, content: str) -> None:
    source, out = tmp_path / "empty.jsonl", tmp_path / "out"
    source.write_text(content)
    failed = tokenize(capsys, source, out, "--bad-text", "skip")
    assert failed.code == 1, failed
    assert "no example" in failed.problem
    assert_nothing_half_written(out)


def test_nothing_left_of_long_examples_is_an_error(tmp_path: Path, capsys: Capsys) -> None:
    source, out = write_chats(tmp_path / "in", [GOOD] * 3)["jsonl"], tmp_path / "out"
    flags = ("--context", "4", "--too-long")
    for policy in ("skip", "truncate"):
        failed = tokenize(capsys, source, out, *flags, policy)
        assert (failed.code, "3 were too long" in failed.problem) == (1, True), failed
    assert tokenize(capsys, source, out, *flags, "split").code == 0


def test_examples_of_one_token_have_nothing_to_learn(tmp_path: Path, capsys: Capsys) -> None:
    rows = [{"prompt": "", "completion": ""}] * 3
    source, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    failed = tokenize(capsys, source, out, "--examples", "completion")
    assert failed.code == 1, failed
    assert "nothing precedes it" in failed.problem
    mended = tokenize(capsys, source, out, "--examples", "completion", *failed.advice)
    assert mended.code == 0, mended
    assert read_examples(out) == [([50256, 50256], [False, True])] * 3


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "mine.jinja"),
        ("{% include '/etc/hostname' %}", "include"),
        ("{% import '/etc/hostname' as h %}", "import"),
        ("{{ messages.__class__.__mro__ }}", "mine.jinja"),
        ("{{ 'x' * 10 ** 12 }}", "mine.jinja"),
        ("{% for m in messages %}", "mine.jinja"),
        ("", "empty"),
    ],
)
@pytest.mark.parametrize("bad_text", ["fail", "skip"])
def test_a_template_that_is_wrong_ends_the_run(
    tmp_path: Path, capsys: Capsys, template: str, word: str, bad_text: str
) -> None:
    (tmp_path / "mine.jinja").write_text(template)
    source, out = write_chats(tmp_path / "in", [GOOD])["jsonl"], tmp_path / "out"
    flags = ("--template", tmp_path / "mine.jinja", "--bad-text", bad_text)
    failed = tokenize(capsys, source, out, *flags)
    assert failed.code in (1, 2), failed
    assert word in failed.problem
    assert "mine.jinja" in failed.problem
    assert_nothing_half_written(out)


def test_text_is_no_row(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "notes.txt").write_text("just text")
    failed = tokenize(capsys, tmp_path / "notes.txt", tmp_path / "out")
    assert (failed.code, "notes.txt is read as text" in failed.problem) == (2, True), failed


def test_special_tokens_in_contents_follow_the_setting(tmp_path: Path, capsys: Capsys) -> None:
    chat = [GOOD[0], {"role": "assistant", "content": "one <|endoftext|> two"}]
    source = write_chats(tmp_path / "in", [GOOD, chat])["jsonl"]
    assert tokenize(capsys, source, tmp_path / "text").code == 0
    assert 50256 not in read_examples(tmp_path / "text")[1][0]
    flag = "--special-in-text"
    assert tokenize(capsys, source, tmp_path / "token", flag, "token").code == 0
    ids, flags = read_examples(tmp_path / "token")[1]
    assert flags[ids.index(50256)]
    failed = tokenize(capsys, source, tmp_path / "fail", flag, "fail")
    assert (failed.code, "line 2" in failed.problem) == (1, True), failed


def test_a_tokenizer_that_changes_text_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: Capsys
) -> None:
    mine = tmp_path / "tokenizer.json"
    mine.write_text(json.dumps(tokenizer_json() | {"normalizer": {"type": "NFC"}}))
    source, out = write_chats(tmp_path / "in", make_chats(3, count=20))["jsonl"], tmp_path / "out"
    failed = tokenize(capsys, source, out, "--tokenizer", mine)
    assert failed.code == 2, failed
    assert not out.exists()
    assert tokenize(capsys, source, out, "--tokenizer", mine, *failed.advice).code == 0
    assert all(flags == [False, *[True] * (len(ids) - 1)] for ids, flags in read_examples(out))
