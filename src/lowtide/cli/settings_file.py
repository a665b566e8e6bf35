"""`lowtide.toml`: defaults for the commands, read from the current folder or from where `--config` says.

[tokenize]
memory = "2GiB"
bad-text = "skip"

Every value becomes the text that would stand behind the flag, so that click checks both in one way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click

from lowtide.cli.choices import ASKED_ONCE, Option
from lowtide.errors import UsageError
from lowtide.settings import INBOX_NAMES, SETTINGS_NAME, nearest

WITHOUT_SETTINGS = ("config", "completion")
"""Commands that have no table."""
_MOST_BYTES = 1 << 20
Given: TypeAlias = bool | str | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """What a file sets, by command and by the name of the parameter; every name in it is known."""

    path: Path
    tables: Mapping[str, Mapping[str, Given]]
    loose: Sequence[str] = ()
    """The keys of a file without tables, of which nothing is used."""


def read_settings_file(
    named: str | None, commands: Mapping[str, click.Command]
) -> SettingsFile | None:
    """The file that was named, or the current folder's if it has one; UsageError for what cannot be meant."""
    path = Path(SETTINGS_NAME if named is None else named)
    found = _parse(path, must_exist=named is not None)
    if found is None:
        return None
    loose = [key for key, value in found.items() if not isinstance(value, dict)]
    if loose and len(loose) == len(found) and named is None:
        return SettingsFile(path=path, tables={}, loose=loose)
    if loose:
        raise UsageError(
            f"{path} sets {loose[0]} outside of any table",
            remedy="put it beneath the name of a command in brackets, such as [tokenize]",
        )
    tables: dict[str, Mapping[str, Given]] = {}
    for name, table in found.items():
        command = _command_of(name, commands, path)
        assert isinstance(table, dict)
        if str(command.name) in tables:
            raise UsageError(f"{path} has [{command.name}] twice", remedy="put both into one table")
        tables[str(command.name)] = _read_table(table, command, commands, path)
    return SettingsFile(path=path, tables=tables)


def why_not_used(file: SettingsFile) -> str | None:
    """What to say of a file without tables; None for an inbox's, which is left alone in silence."""
    of_inbox = (*INBOX_NAMES, "marker")
    strange = [key for key in file.loose if key.replace("-", "_") not in of_inbox]
    if not strange:
        return None
    return (
        f"{file.path} is not used: {strange[0]} stands outside of any table; put it beneath the name of a "
        "command in brackets, such as [tokenize]"
    )


def options_in_file(command: click.Command) -> dict[str, click.Option]:
    """The options that a file may set, by the name they have there."""
    return {name: one for name, one in _long_names(command).items() if why_not_in_file(one) is None}


def why_not_in_file(option: click.Option) -> str | None:
    """The reason why a flag may stand on the command line only; None for all others."""
    return option.command_line_only if isinstance(option, Option) else None


def has_fixed_default(option: click.Option) -> bool:
    """Whether the option has a value when nobody sets it; the others leave a choice to the command."""
    return option.is_flag or isinstance(option.default, str | int | float)


def is_file(path: Path) -> bool:
    """Whether a file can be seen there; a name that is too long and a closed folder say no."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _parse(path: Path, *, must_exist: bool) -> dict[str, object] | None:
    if not must_exist and not is_file(path):
        return None
    import tomllib

    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(
                f"{path} is larger than any settings are", remedy="pass another `--config FILE`"
            )
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as cause:
        raise UsageError(
            f"{path} does not exist", remedy=f"`lowtide config --out {path}` writes one"
        ) from cause
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as cause:
        why = cause.strerror if isinstance(cause, OSError) else str(cause)
        raise UsageError(
            f"{path} cannot be read as TOML: {why}",
            remedy="correct it, or pass `--config FILE` in front of the command to use another",
        ) from cause


def _command_of(name: str, commands: Mapping[str, click.Command], path: Path) -> click.Command:
    known = [one for one in commands if one not in WITHOUT_SETTINGS]
    command = name.replace("_", "-")
    if command in known:
        return commands[command]
    meant = nearest(name, known)
    if command in WITHOUT_SETTINGS:
        why = f"{path} has a table [{name}], and that command takes no settings"
        raise UsageError(why, remedy="remove it")
    raise UsageError(
        f"{path} has a table [{name}], and there is no such command",
        remedy=f"did you mean [{meant}]?" if meant else f"there are {', '.join(known)}",
    )


def _read_table(
    table: Mapping[str, object],
    command: click.Command,
    commands: Mapping[str, click.Command],
    path: Path,
) -> dict[str, Given]:
    options = options_in_file(command)
    found: dict[str, Given] = {}
    for key, value in table.items():
        where = f"{path}: {key} in [{command.name}]"
        option = options.get(key.replace("_", "-"))
        if option is None:
            raise _stranger(key, where, command, commands)
        if option.name in found:
            raise UsageError(f"{where} is set twice", remedy="remove one of the two lines")
        found[str(option.name)] = _as_given(value, option, where)
    return found


def _stranger(
    key: str, where: str, command: click.Command, commands: Mapping[str, click.Command]
) -> UsageError:
    name = key.replace("_", "-")
    own = _long_names(command).get(name)
    why = ASKED_ONCE if name == "help" else own and why_not_in_file(own)
    if why is not None:
        return UsageError(
            f"{where} has no place in a file: {why}",
            remedy=f"remove that line, and pass `--{name}` when it is meant",
        )
    meant = nearest(key, options_in_file(command))
    others = [f"[{one}]" for one in commands if name in options_in_file(commands[one])]
    remedy = f"see `lowtide {command.name} --help` for what there is"
    if meant:
        remedy = f"did you mean {meant}?"
    if others:
        remedy = f"it is a setting of {', '.join(others)}"
    return UsageError(f"{where} is not a setting of that command", remedy=remedy)


def _as_given(value: object, option: click.Option, where: str) -> Given:
    """The value as the command line would bring it."""
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{where} is {value!r}", remedy="it is a switch: write true or false")
    if isinstance(value, list):
        parts = [_as_text(one, where) for one in value]
        if option.multiple:
            return parts
        if "," in (option.metavar or ""):
            return ",".join(parts)
        raise UsageError(f"{where} is a list", remedy="write one value")
    text = _as_text(value, where)
    return [text] if option.multiple else text


def _as_text(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        shown = str(value).lower() if isinstance(value, bool) else "neither a number nor text"
        raise UsageError(f"{where} is {shown}", remedy="write a number, or text in quotes")
    return str(value)


def _long_names(command: click.Command) -> dict[str, click.Option]:
    return {
        name.removeprefix("--"): one
        for one in command.params
        if isinstance(one, click.Option)
        for name in one.opts
        if name.startswith("--")
    }
