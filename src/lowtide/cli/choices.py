"""The option types that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from lowtide.errors import UsageError
from lowtide.settings import Group, Kind, Setting, TokenizerName, declared_settings
from lowtide.storage.paths import as_path
from lowtide.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from click.shell_completion import CompletionItem

    _AnyType = click.ParamType[Any]
else:
    _AnyType = click.ParamType  # click 8.1's takes no type


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


class Parsed(_AnyType):
    """A value that a function reads out of text; when it refuses, its remedy is told."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            raise BadValue(error, param, ctx) from error


def _parse_count(text: str) -> int:
    """`100M`, `250k`, `4096`."""
    if _BELOW_ZERO.match(text):
        raise UsageError(f"{text} is below zero", remedy="write a number such as 10 or 10k")
    return parse_count(text)


def _check_size(text: str) -> str:
    """`512MiB`, `6GB`; stays text."""
    parse_bytes(text)
    return text


def _check_size_or_share(text: str) -> str:
    """`6GB` or `50%`; stays text, for the command knows of what it is a share."""
    return text if _SHARE.fullmatch(text) else _check_size(text)


def _parse_share(text: str) -> float:
    """`0.05` or `5%`; whether such a share can be taken is for the command to say."""
    try:
        if _SHARE.fullmatch(text):
            return float(text.strip().removesuffix("%")) / 100
        return float(text)
    except ValueError as cause:
        problem = f"{text!r} is not a share"
        raise UsageError(problem, remedy="write it as 0.05 or as 5%") from cause


def _parse_seed(text: str) -> int:
    """Any whole number that torch takes, and room to count on from it."""
    try:
        number = int(text)
    except ValueError as cause:
        problem = f"{text!r} is not a whole number"
        raise UsageError(problem, remedy="write one such as 7") from cause
    if not abs(number) < 1 << 62:
        raise UsageError(f"{text[:20]}… is too large for a seed", remedy="write a smaller number")
    return number


def _parse_sizes(text: str) -> tuple[int, ...]:
    """`8000,16000,32k`."""
    return tuple(_parse_count(part.strip()) for part in text.split(","))


def _check_path(text: str) -> str:
    as_path(text)
    return text


class PlaceType(Parsed):
    """A path, which a shell completes. Whether it is there is for the command to say."""

    def __init__(self, kind: Literal["file", "dir"]) -> None:
        super().__init__("path", _check_path)
        self._kind = kind

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=self._kind)]


class TokenizerType(PlaceType):
    """A name or a path; a shell completes both."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        known = [name for name in TOKENIZERS if name.startswith(incomplete)]
        if known:
            return [CompletionItem(name) for name in known]
        return super().shell_complete(ctx, param, incomplete)


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
COUNT = Parsed("count", _parse_count)
SIZE = Parsed("size", _check_size)
SHARE = Parsed("share", _parse_share)
SIZE_OR_SHARE = Parsed("size", _check_size_or_share)
FILE = PlaceType("file")
"""A file, or a folder: a shell offers both."""
FOLDER = PlaceType("dir")
TOKENIZER = TokenizerType("file")
PID = click.IntRange(1, 2**31 - 1)
DEVICE = click.Choice(["cuda", "cpu"])
SIZES = Parsed("sizes", _parse_sizes)
SEED = Parsed("integer", _parse_seed)
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


def _flag_of(one: Setting) -> Callable[[_Command], _Command]:
    default = one.default if one.shown is None else one.shown
    told = one.help
    if one.left_open is not None:
        default, told = None, f"{told}  [default: {one.left_open}]"
    return click.option(
        one.flag,
        cls=Option,
        group=one.group,
        type=click.Choice(one.choices) if one.kind == "choice" else _TYPES[one.kind],
        metavar=one.takes,
        is_flag=one.kind == "switch",
        multiple=one.is_many and one.kind == "text",
        default=default,
        show_default=default is not None,
        help=told,
        sample=one.sample,
        gives_way_to=one.gives_way_to,
        used_if=one.used_if,
        command_line_only=one.command_line_only,
    )


_TYPES: Mapping[Kind, _AnyType | None] = {
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
