"""What a newcomer hands over by mistake is told before any work, with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lowtide.shards.manifest import read_manifest
from lowtide.stages.examine import verify
from tests.commands import call

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an empty folder, text, rows of other kinds, and a log."""
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "texts"):
        Path(name).mkdir()
    (Path("texts") / "a.txt").write_text("one tide\n")
    Path("a.txt").write_text("one tide\n")
    (Path("cut") / ".lowtide").mkdir(parents=True)
    (Path("cut") / "log.jsonl").write_text('{"event": "start"}\n')
    Path("rows.csv").write_text("id,text\n1,tide\n")
    Path("rows.jsonl").write_text('{"content": "tide"}\n')
    chat = [{"role": "user", "content": "high"}, {"role": "assistant", "content": "low"}]
    Path("chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    Path("model").mkdir()
    (Path("model") / "lowtide-export.json").write_text("{}")
    (Path("model") / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("tokenize empty --out o", "empty holds no text", "name the files themselves"),
        ("tokenize https://a.example/x.txt --out o", "is an address", "fetch it first"),
        ("train-tokenizer hf://a/b --out o", "hf://a/b is an address", "fetch it first"),
        ("tokenize a.txt --out rows.csv", "rows.csv is a file", "pass a folder as `--out`"),
        ("tokenize a.txt --out texts", "texts already holds something else", "new or empty"),
        ("tokenize rows.jsonl --out o", "its keys are: content", "`--column`"),
        ("plan nowhere", "nowhere does not exist", "name a dataset"),
        ("plan texts", "texts holds text and no tokens", "`lowtide tokenize texts --out tokens`"),
        ("plan cut", "cut is not finished", "again"),
        ("inspect cut", "cut is not finished", "again"),
        ("verify cut", "cut is not finished", "again"),
        ("export cut --to npy --out o", "cut is not finished", "again"),
        ("tokenize a.txt --out o --separator lines", "'lines' is not", "`--separator line`"),
        ("tokenize a.txt --out o --separator paragraph", "not a kind", "`--separator blank-line`"),
        ("train-tokenizer a.txt --out o --separator \\n\\n", "not line ends", "$'\\n\\n'"),
        ("verify model", "model holds an exported model", "--out model`, run again"),
        ("inspect a.txt", "a.txt holds text and no tokens", "`lowtide tokenize a.txt"),
        ("verify empty", "empty holds no token files", "`.npy` or `.bin`"),
        ("export a.txt --to npy --out a.txt", "a.txt is a file", "folder as `--out`"),
        ("report texts", "texts has no log", "name the folder of a run"),
        ("why texts", "it is not a run of lowtide", "pass a RUN folder"),
        ("watch", "nothing to watch", "`-- COMMAND`"),
        ("doctor --path a.txt --quick", "is a file, not a folder", "`--path DIR`"),
        ("compare texts --programs foo", "there is no program 'foo'", "lowtide-train"),
    ],
)
def test_a_wrong_path_is_told(
    here: Path, capsys: Captured, line: str, problem: str, hint: str
) -> None:
    refused = call(capsys, *line.split())
    assert refused.code == 2
    assert problem in refused.problem
    assert hint in refused.hint


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("train nowhere --out r", "nowhere does not exist", "name a dataset"),
        ("train texts --out r", "texts holds text and no tokens", "lowtide tokenize texts"),
        ("train --out r", "there is nothing to train on", "`--inbox FOLDER`"),
        ("sample nowhere --prompt x", "nowhere does not exist", "`lowtide train`"),
        ("sample texts --prompt x", "holds neither", "`lowtide train`"),
    ],
)
def test_a_wrong_path_is_told_where_torch_is_needed(
    here: Path, capsys: Captured, line: str, problem: str, hint: str
) -> None:
    pytest.importorskip("torch")
    test_a_wrong_path_is_told(here, capsys, line, problem, hint)
    assert not Path("r").exists()


@pytest.mark.parametrize("column", [(), ("--column", "messages")])
def test_a_tokenizer_of_chats_is_trained_on_a_file_of_their_text(
    here: Path, capsys: Captured, column: tuple[str, ...]
) -> None:
    refused = call(capsys, "train-tokenizer", "chats.jsonl", "--out", "o", *column)
    assert refused.code == 2
    assert "--bad-text skip" not in refused.hint
    assert "to a file" in refused.hint


def test_tokens_of_a_peer_have_no_text_to_be_compared_with(here: Path, capsys: Captured) -> None:
    np.save("mine.npy", np.arange(300, dtype=np.uint16))
    words = ("--to", "npy", "--out", "tokens", "--tokenizer", "gpt2")
    assert call(capsys, "export", "mine.npy", *words).code == 0
    named, unnamed = verify("tokens", tokenizer="gpt2"), verify("tokens")
    assert named == unnamed
    assert "came from token files" in named.comparison


def test_an_input_that_is_named_from_another_folder_is_not_called_changed(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, "tokenize", "texts", "--out", "tokens").code == 0
    monkeypatch.chdir(here / "empty")
    assert "texts/a.txt was not found from this folder" in verify(here / "tokens").comparison
    monkeypatch.chdir(here)
    assert verify("tokens").comparison == ""
    (Path("texts") / "a.txt").write_text("two tides\n")
    assert "changed" in verify("tokens").comparison


def test_a_dataset_is_not_exported_onto_itself(here: Path, capsys: Captured) -> None:
    assert call(capsys, "tokenize", "a.txt", "--out", "tokens").code == 0
    refused = call(capsys, "export", "tokens", "--to", "nanogpt", "--out", "./tokens")
    assert refused.code == 2
    assert "empty" not in refused.hint
    assert call(capsys, "verify", "tokens").code == 0


def test_a_separator_that_is_found_nowhere_is_told(here: Path, capsys: Captured) -> None:
    done = call(capsys, "tokenize", "a.txt", "--out", "o", "--separator", "<|end|>")
    assert done.code == 0
    assert "<|end|>" in done.err


@pytest.mark.parametrize("separator", ["file:", "DOCUMENT", "-line-", "Newline"])
def test_a_text_that_only_resembles_a_kind_of_separator_is_one(
    here: Path, capsys: Captured, separator: str
) -> None:
    Path("parts.txt").write_text(f"one{separator}two{separator}three")
    assert call(capsys, "tokenize", "parts.txt", "--out", "o", "--separator", separator).code == 0
    assert read_manifest(here / "o").documents == 3


def test_no_separator_is_blamed_where_none_was_used(here: Path, capsys: Captured) -> None:
    Path("one.jsonl").write_text('{"text": "a single row"}\n')
    done = call(
        capsys, "tokenize", "one.jsonl", "--out", "o", "--separator", "line", "--val", "0.1"
    )
    assert done.code == 0
    assert "--separator" not in done.err


def test_an_array_of_a_type_that_training_does_not_read_is_saved_again(
    here: Path, capsys: Captured
) -> None:
    np.save("ids.npy", np.arange(300))
    done = call(capsys, "verify", "ids.npy", "--tokenizer", "gpt2")
    assert done.code == 4
    assert "astype(np.uint16)" in done.out + done.err
    assert "ids not checked" not in done.out


def test_an_id_beyond_the_vocabulary_is_not_called_in_range(here: Path, capsys: Captured) -> None:
    np.save("ids.npy", np.array([1, 2, 60_000], dtype=np.uint16))
    done = call(capsys, "verify", "ids.npy", "--tokenizer", "gpt2")
    assert done.code == 4
    assert "in range" not in done.out


def test_an_input_is_not_the_output_folder(here: Path, capsys: Captured) -> None:
    refused = call(capsys, "tokenize", "a.txt", "--out", "a.txt")
    assert refused.code == 2
    assert "lies in" not in refused.problem


def test_tokens_are_not_tokenized_again(here: Path, capsys: Captured) -> None:
    assert call(capsys, "tokenize", "a.txt", "--out", "tokens").code == 0
    for command in ("tokenize", "train-tokenizer"):
        refused = call(capsys, command, "tokens", "--out", "again")
        assert refused.code == 2
        assert "tokens holds tokens already" in refused.problem
        assert "`lowtide inspect tokens`" in refused.hint
    assert not Path("again").exists()


def test_a_table_is_no_text_until_that_is_said(here: Path, capsys: Captured) -> None:
    refused = call(capsys, "tokenize", "rows.csv", "--out", "tokens")
    assert refused.code == 1
    assert "rows.csv" in refused.problem
    assert call(capsys, "tokenize", "rows.csv", "--out", "tokens", *refused.advice).code == 0
