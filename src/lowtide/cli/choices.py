"""The option types that several commands share."""

from __future__ import annotations

import click

from lowtide.errors import UsageError
from lowtide.units import parse_count


class CountType(click.ParamType[int]):
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


COUNT = CountType()
FORMAT = click.Choice(["npy", "nanogpt", "llmc", "megatron"])
EOT = click.Choice(["end", "start", "none"])
