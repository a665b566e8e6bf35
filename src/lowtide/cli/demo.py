"""`lowtide demo`: from text to a trained GPT in one command, with the text that every machine has."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lowtide.cli.choices import FOLDER, SIZE_OR_SHARE, Option, debug_option, json_option
from lowtide.cli.command import Command, examples
from lowtide.stages.stop_signals import listen_for_stops
from lowtide.tools.demo.stages import DEFAULT_FOLDER


@click.command(
    "demo",
    cls=Command,
    epilog=examples(
        "lowtide demo",
        "lowtide demo --clean",
        read_on="docs/demo.md",
    ),
)
@click.option(
    "--out",
    type=FOLDER,
    metavar="DIR",
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder for everything it makes.",
)
@click.option(
    "--memory",
    type=SIZE_OR_SHARE,
    metavar="SIZE",
    default="256MiB",
    show_default=True,
    help="Budget for text, and the box of the comparison.",
)
@click.option(
    "--clean",
    cls=Option,
    command_line_only="every run would remove what the one before has made",
    is_flag=True,
    help="Remove what the demo made.",
)
@json_option
@debug_option
def demo_command(out: str, memory: str, clean: bool, as_json: bool) -> None:
    """Try everything in two minutes, offline, on a CPU.

    The sources of Python's standard library become a tokenizer, tokens, a plan, a small GPT, a sample of it,
    and a comparison with the usual script in a box of the same size. Each stage shows its command, its time,
    and its peak of private memory. Run it again to resume: what is done is kept.
    """
    from lowtide.memory.budget import choose_budget
    from lowtide.memory.limits import machine_limit
    from lowtide.show.comparison import (
        show_passing_lines,
    )
    from lowtide.show.results import say, show_rows
    from lowtide.tools.demo import words
    from lowtide.tools.demo.run import StageDone, clean_demo, run_demo, usual_settings

    if clean:
        removed = clean_demo(Path(out))
        record = {"folder": out, "removed": removed}
        show_rows(words.cleaned_rows(Path(out), removed), record, as_json=as_json)
        return

    def show(lines: list[str]) -> None:
        for line in [] if as_json else lines:
            say(line)

    def listen(done: StageDone) -> None:
        tell("", True)
        show(words.stage_lines(done))

    show([words.opening_line(Path(out)), ""])
    with show_passing_lines() as tell, listen_for_stops() as should_stop:
        demo = run_demo(
            Path(out),
            usual_settings(choose_budget(memory, machine_limit(slurm=os.environ)).total_bytes),
            environment=os.environ,
            listen=listen,
            look=lambda *state: tell(words.progress_line(*state), True),
            should_stop=should_stop,
        )
    show([""])
    show_rows(words.closing_rows(demo), words.demo_record(demo), as_json=as_json)
