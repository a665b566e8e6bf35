"""Asking for help costs nothing: no array library is loaded, and the answer is there at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lowtide import __version__
from tests.commands import lowtide

COMMANDS = (
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


def ask(*arguments: str) -> dict[str, object]:
    """Exit code, CPU seconds since the interpreter began, and every module that was loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_cheap_and_loads_no_heavy_library(command: tuple[str, ...]) -> None:
    answers = [ask(*command, "--help") for _ in range(3)]
    assert answers[0]["code"] == 0
    loaded = answers[0]["modules"]
    assert isinstance(loaded, list)
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert min(float(str(answer["seconds"])) for answer in answers) < CPU_SECONDS


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
