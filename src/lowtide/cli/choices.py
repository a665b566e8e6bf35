"""The option types that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lowtide.errors import UsageError
from lowtide.units import parse_count

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType  # click 8.1's takes no type


class CountType(_IntType):
    """`100M`, `250k`, `4096`."""

    name = "count"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_count(value)
        except UsageError as error:
            self.fail(f"{error.problem}; {error.remedy}", param, ctx)


class SeedType(_IntType):
    """Any whole number that torch takes, and room to count on from it."""

    name = "integer"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number", param, ctx)
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


COUNT = CountType()
SIZES = SizesType()
SEED = SeedType()
FORMAT = click.Choice(["npy", "nanogpt", "llmc", "megatron"])
EXPORTS = click.Choice([*FORMAT.choices, "huggingface"])
WINDOWS = click.Choice(["contiguous", "document"])
EOT = click.Choice(["end", "start", "none"])
tokenizer_option = click.option(
    "--tokenizer",
    default="gpt2",
    show_default=True,
    help="gpt2, cl100k_base, o200k_base, a tokenizer.json, a folder with one, or a .tiktoken file.",
)
column_option = click.option(
    "--column", default="text", show_default=True, help="Field or column that holds the text."
)
separator_option = click.option(
    "--separator",
    default="file",
    show_default=True,
    help="What separates documents in text files: file, line, blank-line, or a literal "
    "such as '<|endoftext|>'.",
)
debug_option = click.option("--debug", is_flag=True, expose_value=False, hidden=True)
"""`lowtide --debug COMMAND` and `lowtide COMMAND --debug` mean the same; `main` looks for the word."""
