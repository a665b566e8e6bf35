"""Fills the commands' own `--help` into docs/reference.md: `python docs/make_reference.py`.

The text between `<!-- help: NAME -->` and `<!-- end of help -->` is generated, the rest is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from lowtide.cli.main import cli

REFERENCE = Path(__file__).with_name("reference.md")
_COLUMNS = 100
_BLOCK = re.compile(r"(<!-- help: ([\w -]+) -->\n).*?(<!-- end of help -->)", re.DOTALL)


def help_of(name: str) -> str:
    """What `lowtide NAME --help` prints on a terminal of 100 columns; `lowtide` alone is the group's."""
    command: click.Command = cli
    context = click.Context(cli, info_name="lowtide", **_settings())
    for word in name.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
        context = click.Context(command, info_name=word, parent=context, **_settings())
    return command.get_help(context)


def fill(text: str) -> str:
    """The same page with every help block as the commands give it now."""
    return _BLOCK.sub(
        lambda found: f"{found[1]}```text\n{help_of(found[2])}\n```\n{found[3]}", text
    )


def _settings() -> dict[str, object]:
    return {"terminal_width": _COLUMNS, "help_option_names": ["-h", "--help"]}


if __name__ == "__main__":
    REFERENCE.write_text(fill(REFERENCE.read_text()))
