"""`lowtide compare`: the usual scripts and lowtide on a sample of the user's own text, each in a box."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lowtide.cli.choices import (
    FILE,
    FOLDER,
    SIZE,
    debug_option,
    setting_options,
)
from lowtide.cli.command import Command, examples
from lowtide.settings import TokenizerSettings, TokenizeSettings
from lowtide.stages.stop_signals import listen_for_stops

if TYPE_CHECKING:
    from lowtide.settings import InputFormat


@click.command(
    "compare",
    cls=Command,
    epilog=examples(
        "lowtide compare corpus",
        "lowtide compare corpus --sample 50MB --limit 512MiB --out memory.html",
        "lowtide compare corpus --programs list,lowtide",
        read_on="docs/compare.md",
        note="Nothing is left behind, not even when it is interrupted.",
    ),
)
@click.argument("inputs", nargs=-1, required=True, type=FILE, metavar="INPUT...")
@click.option(
    "--sample", type=SIZE, default="200MB", show_default=True, metavar="SIZE", help="Text to take."
)
@click.option(
    "--limit",
    type=SIZE,
    default="1GiB",
    show_default=True,
    metavar="SIZE",
    help="Memory of each program's box.",
)
@click.option(
    "--programs",
    metavar="NAME,...",
    help="Some of list, map, pool, nanogpt, lowtide, tokenizers, lowtide-train.  [default: all]",
)
@setting_options(TokenizeSettings, only=("tokenizer",))
@setting_options(TokenizerSettings, only=("column", "separator", "input_format"))
@click.option(
    "--out", type=FILE, metavar="FILE", help="Write a picture there: FILE.html or FILE.svg."
)
@click.option(
    "--timeout",
    type=float,
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="End a program after this time.",
)
@click.option(
    "--work",
    type=FOLDER,
    metavar="DIR",
    help="Where the sample lies meanwhile.  [default: system's]",
)
@click.option("--keep", is_flag=True, help="Keep the sample and all that the programs wrote.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
@debug_option
def compare_command(
    inputs: tuple[str, ...],
    sample: str,
    limit: str,
    programs: str | None,
    tokenizer: str,
    column: str,
    separator: str,
    input_format: InputFormat | None,
    out: str | None,
    timeout: float,
    work: str | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Run the usual scripts and lowtide on your own text.

    INPUT is what `tokenize` takes. A sample of it goes through every program alone, in a memory cgroup of its
    own: what does not fit dies there, and nothing else does. Shows memory, time, outcome, and how memory
    grows with the text.
    """
    with listen_for_stops() as should_stop:
        from lowtide.memory.limits import machine_limit
        from lowtide.show.comparison import show_comparison, show_passing_lines
        from lowtide.show.memory_picture import check_picture_file, show_picture
        from lowtide.tools.compare import words
        from lowtide.tools.compare.run import CompareSettings, compare
        from lowtide.units import parse_bytes

        if out is not None:
            check_picture_file(Path(out))
        settings = CompareSettings(
            sample_bytes=parse_bytes(sample),
            limit_bytes=parse_bytes(limit),
            programs=tuple(programs.split(",")) if programs is not None else None,
            tokenizer=tokenizer,
            column=column,
            separator=separator,
            input_format=input_format,
            timeout_seconds=timeout,
            work=Path(work) if work else None,
            keep=keep,
        )
        machine, environ = machine_limit(slurm=os.environ), os.environ
        with show_passing_lines() as tell:
            found = compare(
                inputs,
                settings,
                machine=machine,
                environment=environ,
                should_stop=should_stop,
                tell=tell,
            )
    rows, tables, remarks = words.introduce(found), words.tables(found), words.remarks(found)
    show_comparison(rows, tables, remarks, words.record(found), as_json=as_json)
    if out is not None:
        show_picture(Path(out), words.curves(found), found.limit_bytes, rows, tables, remarks)
