"""Prints what `lowtide doctor` found: a table on a terminal, one line a check elsewhere, one object as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from lowtide.errors import StorageError
from lowtide.show.results import print_json
from lowtide.units import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lowtide.guard.doctor.checks import Check, Level

_COLOURS: dict[Level, str] = {"problem": "bold red", "advice": "yellow", "ok": "green"}
_WIDEST = 112


def show_checks(checks: Sequence[Check], *, as_json: bool) -> None:
    """Print the checks in the order given, then how many of each level there are."""
    with _output_errors():
        if as_json:
            print_json({"problems": _count(checks, "problem"), "advice": _count(checks, "advice"),
                        "checks": list(checks)})  # fmt: skip
        else:
            _show_lines(checks)


@contextmanager
def _output_errors() -> Iterator[None]:
    """Report a full disk below standard output; a closed pipe means that its reader has read enough."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as cause:
        reason = (cause.strerror or str(cause)).lower()
        raise StorageError(
            f"cannot write to standard output: {reason}",
            remedy="free space where it goes, or send it elsewhere",
        ) from cause


def _show_lines(checks: Sequence[Check]) -> None:
    console = _terminal()
    widest = max((len(check.name) for check in checks), default=0)
    if console is None:
        for check in checks:
            click.echo(plain_line(check, name_columns=widest + 1))
    else:
        console.print(_table(checks))
    click.echo(summary(checks))


def plain_line(check: Check, *, name_columns: int = 0) -> str:
    """`advice   swap  none …; remedy: …`, for logs and for grep."""
    remedy = f"; remedy: {check.remedy}" if check.remedy else ""
    return printable(f"{check.level:<8} {check.name:<{name_columns}} {check.finding}{remedy}")


def summary(checks: Sequence[Check]) -> str:
    """`1 problem, 2 pieces of advice, 17 ok`."""
    problems, hints = _count(checks, "problem"), _count(checks, "advice")
    words = [
        f"{problems} problem{'' if problems == 1 else 's'}" if problems else "no problem",
        f"{hints} piece{'' if hints == 1 else 's'} of advice" if hints else "no advice",
        f"{_count(checks, 'ok')} ok",
    ]
    return ", ".join(words)


def _count(checks: Sequence[Check], level: Level) -> int:
    return Counter(check.level for check in checks)[level]


def _terminal() -> Console | None:
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, _WIDEST)
    return None if console.is_dumb_terminal else console


def _table(checks: Sequence[Check]) -> Table:
    """A table of the checks. The level is a word, so that nothing depends on colour."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check, after in zip(checks, [*checks[1:], None], strict=True):
        text = Text(printable(check.finding))
        if check.remedy:
            text.append(f"\nremedy: {printable(check.remedy)}")
        level = Text(check.level, style=_COLOURS[check.level])
        ends = after is not None and after.level != check.level  # a blank line between levels
        table.add_row(level, Text(check.name), text.append("\n" if ends else ""))
    return table
