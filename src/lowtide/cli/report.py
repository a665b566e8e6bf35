"""`lowtide report`: a run in pictures."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from lowtide.cli.choices import FILE, debug_option
from lowtide.cli.command import Command, examples


@click.command(
    "report",
    cls=Command,
    epilog=examples(
        "lowtide report run",
        "lowtide report tokens --out tokens.html",
        read_on="docs/report.md",
    ),
)
@click.argument("run", type=FILE, metavar="RUN")
@click.option(
    "--out", type=FILE, metavar="FILE", help="Write the page there.  [default: RUN/report.html]"
)
@click.option("--json", "as_json", is_flag=True, help="Print what the page says as JSON.")
@debug_option
def report_command(run: str, out: str | None, as_json: bool) -> None:
    """Make a page of a run: memory, throughput, loss, events.

    RUN is a folder of `lowtide tokenize`, `train-tokenizer` or `train`, finished, dead or still going, or a
    timeline of `lowtide watch`. The page is one HTML file that needs no network and nothing beside it.
    """
    from lowtide.show.page.write_page import show_page, write_page
    from lowtide.stages.why import explain_run

    explain = partial(explain_run, Path(run), os.environ)
    page = write_page(Path(run), None if out is None else Path(out), explain=explain)
    show_page(page, as_json=as_json)
