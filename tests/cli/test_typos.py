"""A wrong word is answered with the one that was most likely meant, in our two lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.cli.group import _ALSO_CALLED
from lowtide.cli.main import cli
from tests.commands import call

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("tokenise a.txt", "no such command 'tokenise'", "did you mean `lowtide tokenize`?"),
        ("train_tokenizer", "no such command 'train_tokenizer'", "`lowtide train-tokenizer`?"),
        ("Verify", "no such command 'Verify'", "did you mean `lowtide verify`?"),
        ("encode", "no such command 'encode'", "did you mean `lowtide tokenize`?"),
        ("help train", "no such command 'help'", "did you mean `lowtide train --help`?"),
        ("help", "no such command 'help'", "did you mean `lowtide --help`?"),
        ("version", "no such command 'version'", "did you mean `lowtide --version`?"),
        ("qqq", "no such command 'qqq'", "`lowtide --help` lists them all"),
        (
            "--memory 1GiB tokenize a",
            "no such option '--memory'",
            "`lowtide tokenize … --memory …`",
        ),
        ("--jsn tokenize", "no such option '--jsn'", "did you mean `--json`?"),
        ("tokenize a --memroy 1", "no such option '--memroy'", "did you mean `--memory`?"),
        ("tokenize a --output o", "no such option '--output'", "did you mean `--out`?"),
        ("tokenize a --shard_tokens 1", "option '--shard_tokens'", "`--shard-tokens`?"),
        ("tokenize a -o out", "no such option '-o'", "did you mean `--out`?"),
        ("tokenize a --version", "no such option '--version'", "`lowtide --version` tells it"),
        ("tokenize a --config c", "no such option '--config'", "before the command"),
        ("verify d --steps 3", "no such option '--steps'", "`train` has it"),
        ("train d --step 3", "no such option '--step'", "did you mean `--steps`?"),
        ("verify d --zzz 3", "no such option '--zzz'", "see `lowtide verify --help`"),
        ("tokenize a --out o --format nangpt", "'nangpt' is not one", "`--format nanogpt`?"),
        ("completion bsh", "'bsh' is not one of", "did you mean `bash`?"),
        ("tokenize a --out", "option '--out' requires an argument", "`lowtide tokenize --help`"),
        ("tokenize a", "missing option '--out'", "`lowtide tokenize corpus --out tokens`"),
        ("export d --out o", "Choose from: npy, nanogpt", "for example `lowtide export tokens"),
        ("completion", "Choose from: bash, zsh, fish", "see `lowtide completion --help`"),
        ("tokenize a --out o --val x", "'x' is not a share", "write it as 0.05 or as 5%"),
        ("tokenize a --out o --workers -1", "'--workers': -1 is below zero", "such as 10"),
        ("plan d --vram 12", "'--vram': '12' is not a size", "write a number and a unit"),
        ("plan d --vram 50%", "'--vram': '50%' is not a size", "write a number and a unit"),
        ("tokenize a --out o --memory x%", "'--memory': 'x%' is not", "a number and a unit"),
    ],
)
def test_what_was_meant_is_told(
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    problem: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = call(capsys, *line.split())
    assert refused.code == 2
    assert problem in refused.problem
    assert hint in refused.hint
    assert refused.err.count("\n") == 2
    assert list(tmp_path.iterdir()) == []


def test_other_names_lead_to_commands_that_exist() -> None:
    assert set(_ALSO_CALLED.values()) <= set(cli.commands)
    assert not set(_ALSO_CALLED) & set(cli.commands)
