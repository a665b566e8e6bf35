"""The option types that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from lowtide.errors import UsageError
from lowtide.settings import Declared, Group, Kind, TokenizerName, declared_settings
from lowtide.storage.paths import as_path
from lowtide.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from click.shell_completion import CompletionItem

    _IntType = click.ParamType[int]
    _TextType = click.ParamType[str]
    _FloatType = click.ParamType[float]
else:
    _IntType = click.ParamType  # click 8.1's takes no type
    _TextType = click.ParamType
    _FloatType = click.ParamType


_Command = TypeVar("_Command", bound=Callable[..., Any] | click.Command)
_BELOW_ZERO = re.compile(r"\s*-\s*\d")
_SHARE = re.compile(r"\s*[\d.]+\s*%\s*")


class BadValue(click.BadParameter):
    """A value that is refused with a remedy of its own."""

    def __init__(
        self, error: UsageError, param: click.Parameter | None, ctx: click.Context | None
    ) -> None:
        super().__init__(error.problem, ctx=ctx, param=param)
        self.remedy = error.remedy


class CountType(_IntType):
    """`100M`, `250k`, `4096`."""

    name = "count"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            if _BELOW_ZERO.match(value):
                raise UsageError(
                    f"{value} is below zero", remedy="write a number such as 10 or 10k"
                )
            return parse_count(value)
        except UsageError as error:
            raise BadValue(error, param, ctx) from error


class SizeType(_TextType):
    """`512MiB`, `6GB`, and with `share` also `50%`; stays text, for the command knows of what it is a share."""

    name = "size"

    def __init__(self, *, share: bool) -> None:
        self._share = share

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            if not (self._share and _SHARE.fullmatch(value)):
                parse_bytes(value)
        except UsageError as error:
            raise BadValue(error, param, ctx) from error
        return value


class ShareType(_FloatType):
    """`0.05` or `5%`; whether such a share can be taken is for the command to say."""

    name = "share"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            if isinstance(value, str) and _SHARE.fullmatch(value):
                return float(value.strip().removesuffix("%")) / 100
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a share; write it as 0.05 or as 5%", param, ctx)


class SeedType(_IntType):
    """Any whole number that torch takes, and room to count on from it."""

    name = "integer"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if not abs(number) < 1 << 62:
            self.fail(f"{str(value)[:20]}… is too large for a seed", param, ctx)
        return number


class SizesType(click.ParamType):  # type: ignore[type-arg]
    """`8000,16000,32k`."""

    name = "sizes"

    def convert(
        self,
        value: str | tuple[int, ...],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(COUNT.convert(part.strip(), param, ctx) for part in value.split(","))


class PlaceType(_TextType):
    """A path, which a shell completes. Whether it is there is for the command to say."""

    def __init__(self, kind: Literal["file", "dir"]) -> None:
        self.name = "path"
        self._kind = kind

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            as_path(value)
        except UsageError as error:
            raise BadValue(error, param, ctx) from error
        return value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=self._kind)]


class TokenizerType(_TextType):
    """A name or a path; a shell completes both."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        known = [name for name in TOKENIZERS if name.startswith(incomplete)]
        if known:
            return [CompletionItem(name) for name in known]
        return FILE.shell_complete(ctx, param, incomplete)


class Option(click.Option):
    """A flag that knows its section of `--help`, and when a value for it in `lowtide.toml` is used."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        group: Group | None = None,
        command_line_only: str | None = None,
        sample: object = None,
        gives_way_to: tuple[str, ...] = (),
        used_if: Callable[[Mapping[str, object]], bool] | None = None,
        **more: Any,
    ) -> None:
        """`command_line_only` says why the flag may not stand in a file; for the rest see `Setting`."""
        super().__init__(names, **more)
        self.group = group
        self.command_line_only = command_line_only
        self.sample = sample
        self.gives_way_to = gives_way_to
        self.used_if = used_if


class OutOption(Option):
    """A folder to write to, which a dry run does without."""

    def value_is_missing(self, value: object) -> bool:
        is_dry = bool(click.get_current_context().params.get("dry_run"))
        return not is_dry and super().value_is_missing(value)


ASKED_ONCE = "it is asked for once"
TOKENIZERS = ("gpt2", "cl100k_base", "o200k_base")
COUNT = CountType()
SIZE = SizeType(share=False)
SHARE = ShareType()
SIZE_OR_SHARE = SizeType(share=True)
FILE = PlaceType("file")
"""A file, or a folder: a shell offers both."""
FOLDER = PlaceType("dir")
TOKENIZER = TokenizerType()
PID = click.IntRange(1, 2**31 - 1)
DEVICE = click.Choice(["cuda", "cpu"])
SIZES = SizesType()
SEED = SeedType()
FORMAT = click.Choice(["npy", "nanogpt", "llmc", "megatron"])
EXPORTS = click.Choice([*FORMAT.choices, "huggingface"])
WINDOWS = click.Choice(["contiguous", "document"])
EOT = click.Choice(["end", "start", "none"])
memory_option = click.option(
    "--memory",
    cls=Option,
    group="memory",
    used_if=lambda chosen: chosen.get("to_format") != "huggingface",
    type=SIZE_OR_SHARE,
    metavar="SIZE",
    help="Budget such as 1GiB or 50%.  [default: a quarter of the limit, at most 2 GiB]",
)
workers_option = click.option(
    "--workers",
    cls=Option,
    group="memory",
    type=COUNT,
    metavar="N",
    help="Most threads to use.  [default: all cores that fit]",
)
json_option = click.option(
    "--json",
    "as_json",
    cls=Option,
    command_line_only="what reads the output of a command must ask for it there",
    is_flag=True,
    help="Print the result as JSON.",
)
restart_option = click.option(
    "--restart",
    cls=Option,
    command_line_only="every run would remove what the one before has made",
    is_flag=True,
    help="Begin again, removing what lowtide made in the --out folder.",
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress and no notes.")
dry_run_option = click.option(
    "--dry-run",
    cls=Option,
    command_line_only="no run would do anything",
    is_flag=True,
    is_eager=True,  # it decides whether `--out` may be missing
    help="Estimate size, time, disk and memory; write nothing. Needs no --out.",
)
debug_option = click.option(
    "--debug",
    cls=Option,
    command_line_only=ASKED_ONCE,
    is_flag=True,
    expose_value=False,
    hidden=True,
)
"""`lowtide --debug COMMAND` and `lowtide COMMAND --debug` mean the same; `main` looks for the word."""


def setting_options(
    of: type[DataclassInstance], *, only: tuple[str, ...] = ()
) -> Callable[[_Command], _Command]:
    """The flags of a settings class, or only some of them, in the order in which it declares them."""

    def add(command: _Command) -> _Command:
        for one in reversed(declared_settings(of)):
            if not only or one.name in only:
                command = _flag_of(one)(command)
        return command

    return add


def _flag_of(one: Declared) -> Callable[[_Command], _Command]:
    declared = one.setting
    default = one.default if declared.shown is None else declared.shown
    told = declared.help
    if declared.left_open is not None:
        default, told = None, f"{told}  [default: {declared.left_open}]"
    return click.option(
        one.flag,
        cls=Option,
        group=declared.group,
        type=click.Choice(one.choices) if one.kind == "choice" else _TYPES[one.kind],
        metavar=declared.takes,
        is_flag=one.kind == "switch",
        multiple=one.is_many and one.kind == "text",
        default=default,
        show_default=default is not None,
        help=told,
        sample=declared.sample,
        gives_way_to=declared.gives_way_to,
        used_if=declared.used_if,
        command_line_only=declared.command_line_only,
    )


_TYPES: Mapping[Kind, click.ParamType[Any] | None] = {
    "text": click.STRING,
    "count": COUNT,
    "number": click.FLOAT,
    "share": SHARE,
    "sizes": SIZES,
    "seed": SEED,
    "size": SIZE,
    "size or share": SIZE_OR_SHARE,
    "file": FILE,
    "folder": FOLDER,
    "tokenizer": TOKENIZER,
    "switch": None,
}
peer_tokenizer_option = setting_options(TokenizerName)
