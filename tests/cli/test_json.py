"""Every `--json` is one object on one line that begins with the version of its names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from lowtide.cli.main import cli
from lowtide.show.comparison import show_comparison
from lowtide.show.results import show_rows
from lowtide.show.training_results import show_exported_model, show_samples, show_trained
from tests.commands import Outcome, call, lowtide, lowtide_process

Captured = pytest.CaptureFixture[str]
REPORT = Path(__file__).parents[2] / "src" / "lowtide" / "show"
SHOWN = {"sample", "train", "compare", "demo"}
"""What takes torch or minutes is shown here without being run."""


def assert_versioned(told: Outcome) -> None:
    assert told.code == 0, told.err
    assert told.out.startswith('{"schema_version": 1, "')
    assert told.json["schema_version"] == 1


@pytest.fixture(scope="module")
def calls(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | Path]]:
    """A call of every command that can be run here."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "a.txt").write_text("one tide, another tide\n")
    (folder / "a.log").write_text("MemoryError\n")
    return {
        "tokenize": [folder / "a.txt", "--out", folder / "tokens"],
        "train-tokenizer": [folder / "a.txt", "--vocab-size", "260", "--out", folder / "mine"],
        "plan": [dataset, "--model", "gpt2-nano", "--context", "16"],
        "inspect": [dataset],
        "verify": [dataset],
        "export": [dataset, "--to", "nanogpt", "--out", folder / "exported"],
        "report": [dataset, "--out", folder / "page.html"],
        "why": [folder / "a.log"],
        "doctor": ["--quick"],
        "watch": ["--timeline", folder / "t.jsonl", "--quiet"],
    }


COMMANDS = ("tokenize", "train-tokenizer", "plan", "inspect", "verify", "export", "report", "why")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_begins_with_the_version(
    capsys: Captured, calls: dict[str, list[str | Path]], name: str
) -> None:
    assert_versioned(call(capsys, name, *calls[name], "--json"))


@pytest.mark.parametrize("flag", ["--dry-run", "--loader"])
def test_so_does_what_a_command_finds_out_instead(
    capsys: Captured, calls: dict[str, list[str | Path]], flag: str, tmp_path: Path
) -> None:
    if flag == "--dry-run":
        text = calls["tokenize"][0]
        assert_versioned(call(capsys, "tokenize", text, "--out", tmp_path, flag, "--json"))
        assert_versioned(call(capsys, "train-tokenizer", text, "--out", tmp_path, flag, "--json"))
        return
    words = [*calls["inspect"], flag, "--seconds", "0.1", "--context", "16"]
    assert_versioned(call(capsys, "inspect", *words, "--json"))


def test_so_do_those_that_look_at_the_machine(calls: dict[str, list[str | Path]]) -> None:
    assert_versioned(lowtide_process("watch", *calls["watch"], "--json", "--", "true"))
    told = lowtide("doctor", *calls["doctor"], "--json")
    assert told.out.startswith('{"schema_version": 1, "')


def test_so_does_what_takes_long(capsys: Captured) -> None:
    state = SimpleNamespace(step=1, best_loss=None, best_step=None, skipped_steps=0)
    run = SimpleNamespace(
        folder=Path("run"), state=state, micro_batch=1, train_loss=None, tokens_per_second=None,
        gpu_bytes=None, seconds=1.0, already_done=False,
    )  # fmt: skip
    show_trained(cast(Any, run), cast(Any, None), as_json=True)
    show_samples("a", [["b", "c"]], as_json=True)
    show_exported_model(Path("model"), already_done=False, as_json=True)
    show_comparison([], [], [], {"programs": []}, as_json=True)
    show_rows([], {"folder": "lowtide-demo", "removed": [Path("tokens")]}, as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert next(iter(json.loads(line))) == "schema_version"


def test_no_command_is_forgotten(calls: dict[str, list[str | Path]]) -> None:
    having = {
        name
        for name, command in cli.commands.items()
        for one in command.params
        if isinstance(one, click.Option) and "--json" in one.opts
    }
    assert having == set(calls) | SHOWN
    assert set(calls) == {*COMMANDS, "watch", "doctor"}


def test_one_function_writes_json_to_stdout() -> None:
    for path in REPORT.glob("*.py"):
        text = path.read_text()
        count = len(re.findall(r"json\.dumps|msgspec\.json|stdout\.write", text))
        assert count == (1 if path.name == "results.py" else 0), path.name
