"""What every command of lowtide shares: defaults out of `lowtide.toml`, and a help that ends with examples."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from lowtide.cli.choices import BadValue
from lowtide.cli.settings_file import (
    WITHOUT_SETTINGS,
    SettingsFile,
    has_fixed_default,
    read_settings_file,
    why_not_used,
)
from lowtide.errors import LowtideError, UsageError
from lowtide.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_GIVES_WAY = {
    ("tokenize", "separator"): ("examples",),
    ("train-tokenizer", "special_token"): ("no_special_token",),
    ("train-tokenizer", "no_special_token"): ("special_token",),
    ("train", "inbox"): ("data",),
    ("train", "model"): ("plan", "init"),
    ("train", "context"): ("plan", "init"),
    ("train", "plan"): ("init",),
    ("train", "init"): ("plan",),
    ("train", "steps"): ("epochs", "inbox"),
    ("train", "epochs"): ("steps",),
    ("train", "tokenizer"): ("inbox",),
    ("train", "no_smoke"): ("smoke",),
    ("why", "log"): ("target", "pid", "last"),
}
"""What a file sets is not used where one of these stands on the command line, which would contradict it."""


def _always(_params: Mapping[str, object]) -> bool:
    return True


def _of_examples(params: Mapping[str, object]) -> bool:
    return params["examples"] is not None


def _of_loader(params: Mapping[str, object]) -> bool:
    return params["loader"] is True


_HAS_USE: dict[tuple[str, str], Callable[[Mapping[str, object]], bool]] = {
    **{("tokenize", name): _of_examples for name in ("template", "learn", "context", "too_long")},
    ("tokenize", "eot_token"): lambda params: params["eot"] != "none" or _of_examples(params),
    **{("inspect", name): _of_loader for name in ("split", "batch", "windows", "seconds")},
    **{
        ("export", name): lambda params: params["to_format"] != "huggingface"
        for name in ("shard_tokens", "eot", "tokenizer")
    },
    ("export", "step"): lambda params: params["to_format"] == "huggingface",
    ("sample", "system"): lambda params: params["chat"] is True,
    ("train", "until_empty"): lambda params: params["inbox"] is not None,
}
"""What a file sets is not used where it has no meaning; on the command line it would be refused."""


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
            for flag in _flags_from_file(ctx):
                if re.search(rf"{flag}(?![\w-])", error.problem):
                    error.problem += f" ({flag} is set by {_path(ctx)})"
                    break
            raise

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The same in every context: click keeps what the first one said."""
        return ["-h", "--help"]

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
            key = (str(self.name), str(option.name))
            against = [
                name
                for name in _GIVES_WAY.get(key, ())
                if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
                and ctx.params.get(name) not in (None, ())
            ]
            if against or not _HAS_USE.get(key, _always)(ctx.params):
                ctx.params[key[1]] = _built_in_default(option, ctx)
                ctx.set_parameter_source(key[1], ParameterSource.DEFAULT)

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


def _flags_from_file(ctx: click.Context) -> list[str]:
    return [f"--{_key(one)}" for one in _from_file(ctx)]


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
