"""A shell that was given our script completes commands, flags, choices and paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.cli.completion import SHELLS
from tests.commands import lowtide

BASH = shutil.which("bash")
WORDS = """
eval "$({run} completion bash)"
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
compopt() {{ echo "offers $2"; }}
_lowtide_completion lowtide
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def complete(folder: Path, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    program = folder / "lowtide"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lowtide "$@"\n')
    program.chmod(0o755)
    script = WORDS.format(run=program, words=" ".join(f"'{word}'" for word in words))
    done = subprocess.run(
        [str(BASH), "--norc", "-c", script],
        env={**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("lowtide", "tok"), ["tokenize"]),
        (("lowtide", "train"), ["train-tokenizer", "train"]),
        (("lowtide", "tokenize", "--sh"), ["--shard-tokens"]),
        (("lowtide", "tokenize", "--format", "n"), ["npy", "nanogpt"]),
        (("lowtide", "tokenize", "--tokenizer", "cl"), ["cl100k_base"]),
        (("lowtide", "tokenize", "--tokenizer", "./"), ["offers default", ""]),
        (("lowtide", "tokenize", "cor"), ["offers default", ""]),
        (("lowtide", "tokenize", "a", "--out", "t"), ["offers dirnames", ""]),
        (("lowtide", "completion", "z"), ["zsh"]),
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], offered: list[str]) -> None:
    (tmp_path / "lowtide.toml").write_text("[broken")  # must not be in the way
    assert complete(tmp_path, *words) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_that_asks_us(shell: str) -> None:
    told = lowtide("completion", shell, env={"PATH": ""})
    assert (told.code, told.err) == (0, "")
    assert f"_LOWTIDE_COMPLETE={shell}_complete" in told.out


def test_every_path_is_completed() -> None:
    import click

    from lowtide.cli.choices import PlaceType, TokenizerType
    from lowtide.cli.main import cli

    paths = ("DIR", "FILE", "RUN", "DATA", "FOLDER", "PATH", "INPUT")
    for name, command in cli.commands.items():
        for one in command.params:
            shown = str(one.metavar or "")
            if any(word in shown for word in paths) and not isinstance(one.type, click.Choice):
                assert isinstance(one.type, PlaceType | TokenizerType), (name, one.name)
