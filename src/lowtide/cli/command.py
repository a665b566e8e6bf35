"""What every command of lowtide shares: defaults out of `lowtide.toml`, and a help that ends with examples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from lowtide.cli.choices import BadValue, Option
from lowtide.cli.settings_file import (
    WITHOUT_SETTINGS,
    SettingsFile,
    has_fixed_default,
    read_settings_file,
    why_not_used,
)
from lowtide.errors import LowtideError, UsageError
from lowtide.settings import Group
from lowtide.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


_SECTIONS: Mapping[Group | None, str] = {
    "input": "Input",
    "vocabulary": "Vocabulary",
    "model": "Model",
    "training": "Training",
    "examples": "Examples to fine-tune on",
    "output": "Output",
    "memory": "Memory and speed",
    "machine": "Machine to plan for",
    "run": "Run",
    None: "Options",
}
"""The sections of `--help`, in their order."""


def examples(*lines: str, read_on: str, note: str = "") -> str:
    """The end of a command's help: calls as they are typed, and the page that tells more.

    A line may begin with `… | `, for what is piped in.
    """
    shown = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
    return "\n\n".join([*([note] if note else []), shown, f"Read on in {read_on}."])


def examples_of(command: click.Command) -> list[str]:
    """The calls that a command's help ends with."""
    told = (command.epilog or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in told.splitlines()]


class Command(click.Command):
    """A command whose defaults may stand in a file. Its help never depends on that file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing or self.name in WITHOUT_SETTINGS:
            return super().parse_args(ctx, args)
        try:
            file = _settings_file(ctx)
        except UsageError as error:
            return self._parse_then_refuse(ctx, args, error)
        if file is not None:
            ctx.default_map = dict(file.tables.get(str(self.name), {}))
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            told = _told_of_file(error, ctx, file)
            if told is None:
                raise
            raise told from error
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser does not know whose words it reads
            raise
        if file is not None:
            self._let_go(ctx)
            self._tell(ctx, file)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LowtideError as error:
            option = next((one for one in _from_file(ctx) if one.name == error.setting), None)
            if option is not None:
                error.problem += f" (--{_key(option)} is set by {_path(ctx)})"
            raise

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The same in every context: click keeps what the first one said."""
        return ["-h", "--help"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The flags by section, those of no section last."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in _SECTIONS.values()}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                group = option.group if isinstance(option, Option) else None
                sections[_SECTIONS[group]].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def get_help(self, ctx: click.Context) -> str:
        ctx.default_map = None
        return super().get_help(ctx)

    def _parse_then_refuse(
        self, ctx: click.Context, args: list[str], error: UsageError
    ) -> list[str]:
        """A broken file is told before anything else, but who asks for help gets it."""
        try:
            super().parse_args(ctx, args)
        except click.UsageError:
            raise error from None
        raise error

    def _let_go(self, ctx: click.Context) -> None:
        """Forget of the file what the command line rules out."""
        for option in list(_from_file(ctx)):
            if not isinstance(option, Option):
                continue
            name = str(option.name)
            against = [
                other
                for other in option.gives_way_to
                if ctx.get_parameter_source(other) is ParameterSource.COMMANDLINE
                and ctx.params.get(other) not in (None, ())
            ]
            if against or not (option.used_if is None or option.used_if(ctx.params)):
                ctx.params[name] = _built_in_default(option, ctx)
                ctx.set_parameter_source(name, ParameterSource.DEFAULT)

    def _tell(self, ctx: click.Context, file: SettingsFile) -> None:
        """One line about what was taken from the file; of several ranks one tells."""
        if ctx.params.get("quiet") or os.environ.get("RANK", "0") != "0":
            return
        used = [f"{_key(one)} = {_shown(ctx, one)}" for one in _from_file(ctx)]
        note = f"settings from {file.path}: {', '.join(used)}" if used else why_not_used(file)
        if note:
            click.echo(printable(f"note: {note}"), err=True)


def _settings_file(ctx: click.Context) -> SettingsFile | None:
    root = ctx.find_root()
    assert isinstance(root.command, click.Group), "commands are called through the group"
    found = read_settings_file(root.params.get("config"), root.command.commands)
    ctx.obj = found
    return found


def _from_file(ctx: click.Context) -> Iterator[click.Option]:
    for one in ctx.command.params:
        source = ctx.get_parameter_source(str(one.name))
        if source is ParameterSource.DEFAULT_MAP and isinstance(one, click.Option):
            yield one


def _told_of_file(
    error: click.BadParameter, ctx: click.Context, file: SettingsFile | None
) -> UsageError | None:
    """A value that the file brought is told by its place there; None for one that was typed."""
    option = error.param
    if file is None or not isinstance(option, click.Option) or option not in list(_from_file(ctx)):
        return None
    see = f"`lowtide {ctx.command.name} --help` says what it may be"
    return UsageError(
        f"{file.path}: {_key(option)} in [{ctx.command.name}]: {error.message.removesuffix('.')}",
        remedy=f"correct that line: {error.remedy if isinstance(error, BadValue) else see}",
    )


def _built_in_default(option: click.Option, ctx: click.Context) -> object:
    """What the command gets when nobody sets the option."""
    if option.is_flag:
        return False
    if not has_fixed_default(option):
        return () if option.multiple else None
    return option.type_cast_value(ctx, option.default)


def _key(option: click.Option) -> str:
    return next(name for name in option.opts if name.startswith("--")).removeprefix("--")


def _shown(ctx: click.Context, option: click.Option) -> str:
    value = (ctx.default_map or {})[str(option.name)]
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else value


def _path(ctx: click.Context) -> str:
    assert isinstance(ctx.obj, SettingsFile), "settings came from it"
    return str(ctx.obj.path)
