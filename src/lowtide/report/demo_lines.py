"""The demo as it is read: a few lines for each stage, and at the end where everything lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from lowtide.report.results import print_json, print_rows
from lowtide.units import printable


def show_stage(lines: Sequence[str]) -> None:
    """One stage that is done."""
    for line in lines:
        click.echo(printable(line))


def show_end(
    rows: Sequence[tuple[str, str]], record: Mapping[str, object], *, as_json: bool
) -> None:
    """Where everything lies, and what to do next."""
    if as_json:
        print_json(record)
        return
    click.echo("")
    print_rows([(name, printable(value)) for name, value in rows])


def show_cleaned(folder: Path, removed: Sequence[Path], *, as_json: bool) -> None:
    """What `--clean` took away."""
    if as_json:
        print_json({"folder": folder, "removed": list(removed)})
        return
    click.echo(f"removed {', '.join(printable(str(path)) for path in removed) or 'what was begun'}")
    if folder.exists():
        click.echo(f"{printable(str(folder))} stays: it holds files that are not the demo's")


def tell_waiting() -> None:
    """A demo that was killed left its command running."""
    click.echo("note: waiting for a command of an earlier start to end", err=True)
