"""The same thing has the same name, the same type and the same way to be written in every command."""

from __future__ import annotations

from collections import defaultdict

import click
import pytest

from lowtide.cli.choices import COUNT, SEED, SHARE, SIZE, SIZE_OR_SHARE
from lowtide.cli.main import cli

OPTIONS = [
    (name, option)
    for name, command in cli.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
]
DIFFERENT_THINGS = {
    "--out": "a folder, or the file of a page, a picture, or settings",
    "--split": "how to hold out, and which part to read",
}
WITHOUT_JSON = {"config", "completion"}
COUNTED = {"--workers", "--step", "--steps", "--min-frequency", "--context", "--tokens", "--count"}


def kind_of(option: click.Option) -> object:
    kind = option.type
    if kind is SIZE_OR_SHARE:  # of what a share would be, not every command knows
        return (type(SIZE), vars(SIZE))
    return tuple(kind.choices) if isinstance(kind, click.Choice) else (type(kind), vars(kind))


def test_one_name_has_one_type_and_one_metavar() -> None:
    found: dict[str, list[tuple[str, object, str | None]]] = defaultdict(list)
    for name, option in OPTIONS:
        found[option.opts[0]].append((name, kind_of(option), option.metavar))
    for flag, uses in found.items():
        if flag not in DIFFERENT_THINGS:
            kinds = [(kind, metavar) for _, kind, metavar in uses]
            if flag == "--column":  # of examples, several names
                kinds = [(kind, None) for kind, _ in kinds]
            assert all(one == kinds[0] for one in kinds), (flag, uses)


@pytest.mark.parametrize("flag", ["--json", "--debug"])
def test_every_command_that_reports_has_it(flag: str) -> None:
    having = {name for name, option in OPTIONS if flag in option.opts}
    assert having == set(cli.commands) - (WITHOUT_JSON if flag == "--json" else set())


def test_counts_may_be_written_short_everywhere() -> None:
    for name, option in OPTIONS:
        if option.opts[0] in COUNTED:
            assert option.type is COUNT, (name, option.opts)
        if option.opts[0] == "--seed":
            assert option.type is SEED


def test_flags_are_long_and_every_one_is_told_in_a_sentence() -> None:
    for name, option in OPTIONS:
        assert option.opts == [one for one in option.opts if one.startswith("--")], (name, option)
        if not option.hidden:
            told = (option.help or "").partition("  [")[0]
            assert told.endswith("."), (name, option.opts, told)
            assert told[0].isupper() or told.split()[0].rstrip(",") in {"gpt2", "chatml", "0"}


@pytest.mark.parametrize("written", ["0.05", "5%", " 5 % ", "5e-2"])
def test_a_share_may_be_written_as_a_number_or_in_percent(written: str) -> None:
    assert SHARE.convert(written, None, None) == 0.05
