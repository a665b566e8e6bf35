"""A folder's name may come from anywhere: it neither steers a terminal nor begins a line of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide import units
from lowtide.units import printable
from tests.commands import Outcome, call

NAME = "\x1b]0;x\x07\nfoo: done\r\x9b31m\u202e\u2066\x7f"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that name; in it a text, and a dataset made of it."""
    folder = tmp_path_factory.mktemp("in") / NAME
    folder.mkdir()
    (folder / "in.txt").write_text("some words to learn\n" * 2000)
    lowtide.tokenize([folder / "in.txt"], folder / "tokens")
    return folder


def assert_no_control(told: Outcome) -> None:
    assert [one for one in told.out + told.err if not one.isprintable() and one != "\n"] == []


def assert_harmless(told: Outcome) -> None:
    assert_no_control(told)
    said = told.out + told.err
    assert [line for line in said.splitlines() if line.startswith("foo")] == []


COMMANDS = {
    "tokenize": ["tokenize", "{}/in.txt", "--out", "{}/new"],
    "again": ["tokenize", "{}/in.txt", "--out", "{}/tokens"],
    "other settings": ["tokenize", "{}/in.txt", "--out", "{}/tokens", "--val", "0.3"],
    "dry run": ["tokenize", "{}/in.txt", "--out", "{}/never", "--dry-run"],
    "missing": ["tokenize", "{}/none", "--out", "{}/never"],
    "tokens": ["tokenize", "{}/tokens", "--out", "{}/never"],
    "train-tokenizer": ["train-tokenizer", "{}/in.txt", "--out", "{}/bpe", "--vocab-size", "300"],
    "inspect": ["inspect", "{}/tokens"],
    "loader": ["inspect", "{}/tokens", "--loader", "--seconds", "0.01", "--context", "8"],
    "verify": ["verify", "{}/tokens"],
    "export": ["export", "{}/tokens", "--to", "nanogpt", "--out", "{}/bin"],
    "plan": ["plan", "{}/tokens", "--gpu", "rtx4090", "--out", "{}/plan.toml"],
    "report": ["report", "{}/tokens"],
    "why": ["why", "{}/tokens"],
    "sample": ["sample", "{}/tokens"],
    "config": ["config", "--out", "{}/lowtide.toml"],
    "clean": ["demo", "--out", "{}", "--clean"],
    "choice": ["tokenize", "{}/in.txt", "--out", "{}/never", "--format", NAME],
    "command": [NAME],
}


@pytest.mark.parametrize("key", COMMANDS)
def test_no_command_obeys_a_name(
    capsys: pytest.CaptureFixture[str], hostile: Path, key: str
) -> None:
    told = call(capsys, *(word.replace("{}", str(hostile)) for word in COMMANDS[key]))
    assert told.out + told.err
    assert_harmless(told)


def test_nor_does_a_traceback(capsys: pytest.CaptureFixture[str], hostile: Path) -> None:
    told = call(capsys, "tokenize", hostile / "none", "--out", hostile / "never", "--debug")
    assert "Traceback" in told.err
    assert_no_control(told)


def test_damage_is_told_without_obeying_names(
    capsys: pytest.CaptureFixture[str], hostile: Path, tmp_path: Path
) -> None:
    folder = tmp_path / NAME
    lowtide.tokenize([hostile / "in.txt"], folder)
    shard = next(folder.glob("train*"))
    shard.write_bytes(shard.read_bytes()[:-2])
    told = call(capsys, "verify", folder)
    assert told.code == 4
    assert_harmless(told)


def test_only_an_indented_line_stays_a_line() -> None:
    assert units.printable_lines("a\n  - b\x1b") == "a\n  - b\\x1b"
    assert units.printable_lines("a\nhint: rm -rf /") == "a\\nhint: rm -rf /"
    assert printable("\u202a\u2069\x80\t") == "\\u202a\\u2069\\x80\\t"
