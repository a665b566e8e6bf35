"""Asking for help costs nothing: no array library is loaded, and the answer is there at once."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lowtide import __version__
from lowtide.cli.command import Command, examples_of
from lowtide.cli.group import SECTIONS
from lowtide.cli.main import cli
from tests.commands import lowtide
from tests.machine_speed import slowness

COMMANDS = (
    "demo",
    "train-tokenizer",
    "tokenize",
    "plan",
    "train",
    "sample",
    "inspect",
    "verify",
    "export",
    "watch",
    "why",
    "doctor",
    "compare",
    "report",
    "config",
    "completion",
)
HEAVY = {"numpy", "pyarrow", "torch", "gigatoken", "tiktoken", "tokenizers", "rich", "regex"}
PROBE = """
import json, sys, time
from lowtide.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as left:
    print(json.dumps({"code": left.code, "seconds": time.process_time(), "modules": list(sys.modules)}))
"""
CPU_SECONDS = 0.150
INBOX_FILE = 'examples = "chat"\nval = 0.1\nmarker = ".done"\n'


def ask(*arguments: str, folder: Path) -> dict[str, object]:
    """Exit code, CPU seconds since the interpreter began, and every module that was loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_cheap_and_loads_no_heavy_library(command: tuple[str, ...], tmp_path: Path) -> None:
    assert_cheap(command, tmp_path)


@pytest.mark.parametrize("name", ["tokenize", "demo"])
@pytest.mark.parametrize("toml", [INBOX_FILE, 'memory = "1GiB"\n', "[tokenize]\nval = 0.25\n"])
def test_so_is_help_in_a_folder_with_settings(name: str, toml: str, tmp_path: Path) -> None:
    (tmp_path / "lowtide.toml").write_text(toml)
    assert_cheap((name,), tmp_path)


def assert_cheap(command: tuple[str, ...], folder: Path) -> None:
    """Asked again where other work on the machine made it slow: the least is what it costs."""
    least = math.inf
    for _ in range(12):
        answer = ask(*command, "--help", folder=folder)
        assert answer["code"] == 0
        loaded = answer["modules"]
        assert isinstance(loaded, list)
        assert not HEAVY & {name.partition(".")[0] for name in loaded}
        least = min(least, float(str(answer["seconds"])))
        if least < CPU_SECONDS * slowness():
            return
    raise AssertionError(f"{least} CPU seconds")


def test_every_command_is_told_in_one_whole_sentence() -> None:
    told = lowtide("--help").out
    for name in COMMANDS:
        line = next(line for line in told.splitlines() if line.startswith(f"  {name} "))
        assert line.endswith("."), line
        assert not line.endswith("..."), line


def test_the_short_flag_and_a_bare_call_give_the_same_help() -> None:
    asked = lowtide("-h")
    bare = lowtide()
    assert asked.code == 0
    assert bare.code == 2
    assert asked.out == bare.err
    assert bare.out == ""


def test_version_is_the_packages_own() -> None:
    told = lowtide("--version")
    assert told.code == 0
    assert told.out == f"lowtide, version {__version__}\n"


def test_help_is_in_the_order_of_the_work() -> None:
    told = lowtide("--help").out
    titles = [line[:-1] for line in told.splitlines() if re.fullmatch(r"\w[\w ]*:", line)]
    assert titles == ["Options", *SECTIONS]
    shown = [name for names in SECTIONS.values() for name in names if name in cli.commands]
    assert re.findall(r"^  ([a-z][a-z-]*) +[A-Z].*\.$", told, re.MULTILINE) == shown
    assert set(shown) == set(cli.commands)
    assert set(COMMANDS) == set(cli.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples_and_a_page(name: str) -> None:
    told = lowtide(name, "--help").out
    examples = examples_of(cli.commands[name])
    assert 2 <= len(examples) <= 4
    assert f"  Examples:\n{''.join(f'    {line}' + chr(10) for line in examples)}" in told
    pages = re.findall(r"docs/[a-z-]+\.md", told.rpartition("Read on in ")[2])
    assert pages
    assert all((Path(__file__).parents[2] / page).is_file() for page in pages)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_can_be_typed(name: str) -> None:
    """Parsed as the command line would be; nothing is run. One at least is of the command itself."""
    assert isinstance(cli.commands[name], Command)
    called = []
    for line in examples_of(cli.commands[name]):
        inside = re.search(r"\$\((.*)\)", line)  # of `eval "$(…)"`
        call = (inside[1] if inside else line).removeprefix("… | ")
        words = shlex.split(re.split(r" [|>] ", call)[0])
        at = next(at for at, word in enumerate(words) if word in cli.commands)
        assert words[0] == "lowtide"
        cli.make_context("lowtide", words[1 : at + 1])
        called.append(words[at])
        parse(words[at], *words[at + 1 :])
    assert name in called


def parse(command: str, *rest: str) -> click.Context:
    root = click.Context(cli, info_name="lowtide")
    return cli.commands[command].make_context(command, list(rest), parent=root)


def test_an_example_with_a_wrong_flag_would_be_seen() -> None:
    with pytest.raises(click.UsageError):
        parse("verify", "x", "--memory", "1GiB")
