"""`lowtide config`: a `lowtide.toml` that tells of every setting and changes none."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from lowtide import __version__
from lowtide.cli.choices import FILE, Option, debug_option
from lowtide.cli.command import Command, examples
from lowtide.cli.group import SECTIONS
from lowtide.cli.settings_file import WITHOUT_SETTINGS, has_fixed_default, options_in_file
from lowtide.errors import UsageError
from lowtide.settings import SETTINGS_NAME
from lowtide.units import printable

_COLUMNS = 98
_TELLS = f"""\
Settings of lowtide {__version__}. A flag wins over this file, and this file over the built-in default.
The file is read from the current folder; `lowtide --config FILE COMMAND` names another.
Take the # away from a line to set it. What stands there is the default where there is a fixed one,
and an example where there is none. Paths are looked for from the current folder, like those of flags."""
SAMPLE_VALUES: Mapping[str, object] = {
    "alerts": "alerts.jsonl",
    "device": "cpu",
    "floor": "2GiB",
    "kernel-log": "dmesg.txt",
    "limit": "80%",
    "log": "train.log",
    "memory": "2GiB",
    "compare.out": "memory.html",
    "export.out": "exported",
    "report.out": "report.html",
    "prompt": "The tide",
    "programs": "list,lowtide",
    "step": 1000,
    "stop-file": ".stop",
    "system": "Answer in one sentence.",
    "timeline": "timeline.jsonl",
    "to": "npy",
    "tokenizer": "gpt2",
    "top-k": 50,
    "top-p": 0.9,
    "windows": "contiguous",
    "work": "scratch",
    "workers": 4,
}
"""A value for a flag without a fixed default that declares none itself, by its name or by command and name."""


@click.command(
    "config",
    cls=Command,
    epilog=examples(
        "lowtide config",
        "lowtide config --out - | less",
        "lowtide config --out other.toml --force",
        "lowtide --config other.toml tokenize corpus --out tokens",
        read_on="docs/configuration.md",
    ),
)
@click.option(
    "--out",
    type=FILE,
    default=SETTINGS_NAME,
    show_default=True,
    metavar="FILE",
    help="Where to write it; - prints it.",
)
@click.option(
    "--force",
    cls=Option,
    command_line_only="every run would overwrite what is there",
    is_flag=True,
    help="Overwrite a file that is there.",
)
@debug_option
def config_command(out: str, force: bool) -> None:
    """Write a lowtide.toml that explains every setting.

    All its settings are commented out: it changes nothing until you take a # away. Flags win over it.
    """
    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group), "commands are called through the group"
    text = commented_settings(group.commands)
    if out == "-":
        click.echo(text, nl=False)
        return
    _write(Path(out), text, force=force)
    click.echo(printable(f"{'written':<12} {out}"))


def commented_settings(commands: Mapping[str, click.Command]) -> str:
    """The file: a table for each command, and every setting of it behind a #."""
    names = [name for section in SECTIONS.values() for name in section if name in commands]
    lines = [f"# {line}" for line in _TELLS.splitlines()]
    for name in names:
        if name not in WITHOUT_SETTINGS and options_in_file(commands[name]):
            lines += ["", "", f"[{name}]", *_comment(commands[name].get_short_help_str(_COLUMNS))]
            for key, option in options_in_file(commands[name]).items():
                value = _value(name, key, option)
                lines += ["", *_comment(_help_of(option)), f"#{key} = {_toml(value)}"]
    return "\n".join(lines) + "\n"


def _value(command: str, key: str, option: click.Option) -> object:
    if option.is_flag:
        return False
    if has_fixed_default(option):
        return option.default
    if isinstance(option, Option) and option.sample is not None:
        return option.sample
    return SAMPLE_VALUES.get(f"{command}.{key}") or SAMPLE_VALUES.get(key, option.metavar or key)


def _help_of(option: click.Option) -> str:
    """The flag's own help with what it takes in front of its default."""
    told, _, default = (option.help or "").partition("  [")
    if option.show_default:
        default = f"default: {option.default}]"
    elif option.required:
        default = "required]"
    kind, takes = option.type, ""
    if isinstance(kind, click.Choice):
        takes = f"One of {', '.join(map(str, kind.choices))}."
    elif not option.is_flag:
        takes = f"Takes {option.metavar or kind.name.upper()}."
    parts = [told, takes, f"[{default}" if default else ""]
    return " ".join(part for part in parts if part)


def _comment(text: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _COLUMNS, break_long_words=False, break_on_hyphens=False):
        yield f"# {line}"


def _toml(value: object) -> str:
    """JSON's numbers, texts, lists, true and false are TOML's, too."""
    return json.dumps(value, ensure_ascii=False)


def _write(path: Path, text: str, *, force: bool) -> None:
    from lowtide.storage.publish import storage_errors, write_atomically

    with storage_errors(path):
        _refuse_place(path, force=force)
        write_atomically(path.resolve(), text.encode())  # a link stays one


def _refuse_place(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder", remedy=f"pass `--out {path / SETTINGS_NAME}`, a file in it"
        )
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file to be replaced", remedy="pass another `--out`")
    if os.path.lexists(path) and not force:
        raise UsageError(
            f"{path} is there already", remedy="pass `--force` to overwrite it, or another `--out`"
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist", remedy="make it, or pass another `--out`"
        )
