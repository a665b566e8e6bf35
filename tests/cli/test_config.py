"""`lowtide config` writes a file that tells of every setting, and changes none until a # is taken away."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from lowtide.cli.config import SAMPLE_VALUES, commented_settings
from lowtide.cli.main import cli
from lowtide.cli.settings_file import (
    WITHOUT_SETTINGS,
    has_fixed_default,
    options_in_file,
    read_settings_file,
    why_not_in_file,
)
from tests.commands import call

Captured = pytest.CaptureFixture[str]
PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
SETTING = re.compile(r"^#(?=[a-z-]+ = )", re.MULTILINE)
COMMANDS = {name: one for name, one in cli.commands.items() if name not in WITHOUT_SETTINGS}


def parse(command: str, config: str | None, *arguments: str) -> dict[str, object]:
    """What a command would be called with."""
    root = click.Context(cli, info_name="lowtide")
    root.params["config"] = config
    context = COMMANDS[command].make_context(command, list(arguments), parent=root)
    return dict(context.params)


def arguments_of(command: str) -> list[str]:
    """Words for what has to be there."""
    words: list[str] = []
    for one in COMMANDS[command].params:
        if isinstance(one, click.Argument) and one.required:
            words.append("x")
        elif one.required:
            words += [one.opts[0], "npy" if one.opts[0] == "--to" else "x"]
    return words


def uncommented(*, only_defaults: bool) -> str:
    """The file with the # taken away from every setting, or from those whose default it shows."""
    text, table, lines = commented_settings(cli.commands), "", []
    for line in text.splitlines():
        table = line[1:-1] if line.startswith("[") else table
        if SETTING.match(line):
            key = line[1:].split(" = ")[0]
            fixed = has_fixed_default(options_in_file(COMMANDS[table])[key])
            lines.append(line[1:] if fixed or not only_defaults else line)
        else:
            lines.append(line)
    return "\n".join(lines)


def test_as_it_is_written_it_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lowtide.toml"
    path.write_text(commented_settings(cli.commands))
    found = read_settings_file(str(path), cli.commands)
    assert found is not None
    assert set(found.tables) == set(COMMANDS)
    assert not any(found.tables.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_defaults_it_shows_are_the_defaults(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.toml").write_text(uncommented(only_defaults=True))
    table = tomllib.loads(Path("all.toml").read_text())[command]
    fixed = [
        key for key, one in options_in_file(COMMANDS[command]).items() if has_fixed_default(one)
    ]
    assert list(table) == fixed
    words = arguments_of(command)
    assert parse(command, "all.toml", *words) == parse(command, None, *words)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_in_it_is_a_value(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.toml").write_text(uncommented(only_defaults=False))
    assert parse(command, "all.toml", *arguments_of(command))
    for key, option in options_in_file(COMMANDS[command]).items():
        named = {key, f"{command}.{key}"} & SAMPLE_VALUES.keys()
        assert has_fixed_default(option) or named or getattr(option, "sample", None) is not None, (
            key
        )


def test_every_flag_is_in_it_or_has_no_place() -> None:
    text = commented_settings(cli.commands)
    tables = {part.partition("]")[0]: part for part in text.split("\n[")[1:]}
    for name, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option, click.Option):
                key = option.opts[0].removeprefix("--")
                has_no_place = why_not_in_file(option) is not None
                assert (f"\n#{key} = " in tables[name]) != has_no_place, (name, key)
                told = (option.help or "").partition("  [")[0].split()
                joined = " ".join(tables[name].replace("\n# ", " ").split())
                assert has_no_place or " ".join(told) in joined


def test_a_file_that_is_there_is_not_overwritten(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "config").code == 0
    written = Path("lowtide.toml").read_text()
    assert written == call(capsys, "config", "--out", "-").out
    Path("lowtide.toml").write_text("mine")
    refused = call(capsys, "config")
    assert (refused.code, refused.problem) == (2, "lowtide.toml is there already")
    assert Path("lowtide.toml").read_text() == "mine"
    assert call(capsys, "config", *refused.advice).code == 0
    assert Path("lowtide.toml").read_text() == written
    Path("folder").mkdir()
    assert "is a folder" in call(capsys, "config", "--out", "folder").problem
    assert "does not exist" in call(capsys, "config", "--out", "no/where.toml").problem


def test_the_files_on_the_page_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        Path("page.toml").write_text(block)
        for command in tomllib.loads(block):
            assert parse(command, "page.toml", *arguments_of(command))


def test_the_page_tells_of_every_flag_without_a_place() -> None:
    text = PAGE.read_text()
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option) and why_not_in_file(option) is not None:
                assert f"`{option.opts[0]}`" in text, option.opts[0]
