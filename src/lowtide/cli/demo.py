"""`lowtide demo`: from text to a trained GPT in one command, on what every machine has."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lowtide.cli.choices import FOLDER, SIZE_OR_SHARE, Option, debug_option, json_option
from lowtide.cli.command import Command, examples
from lowtide.stages.stop_signals import listen_for_stops
from lowtide.tools.demo.stages import DEFAULT_FOLDER, Stage


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
    help="Folder for all of it.",
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
    """See all of it in two minutes, offline, on a CPU.

    The sources of Python's standard library become a tokenizer, tokens, a proof, a plan, a small GPT, a
    sample of it, and a comparison with the usual way in a box of the same size. Each stage shows its command,
    its time, and its peak of private memory. Run again, it goes on with the first stage that is not done.
    """
    from lowtide.memory.budget import choose_budget
    from lowtide.memory.limits import machine_limit
    from lowtide.show.comparison import (
        show_cleaned,
        show_end,
        show_passing_lines,
        show_stage,
        tell_waiting,
    )
    from lowtide.tools.demo.story import StageDone, clean_demo, run_demo, usual_settings
    from lowtide.tools.demo.words import (
        closing_rows,
        demo_record,
        opening_line,
        progress_line,
        stage_lines,
    )

    if clean:
        show_cleaned(Path(out), clean_demo(Path(out), waiting=tell_waiting), as_json=as_json)
        return

    def look(stage: Stage, seconds: float, said: str) -> None:
        tell(progress_line(stage, seconds, said), True)

    def listen(done: StageDone) -> None:
        tell("", True)
        show_stage([] if as_json else stage_lines(done))

    show_stage([] if as_json else [opening_line(Path(out)), ""])
    with show_passing_lines() as tell, listen_for_stops() as should_stop:
        demo = run_demo(
            Path(out),
            usual_settings(choose_budget(memory, machine_limit(slurm=os.environ)).total_bytes),
            environment=os.environ,
            listen=listen,
            look=look,
            should_stop=should_stop,
            waiting=tell_waiting,
        )
    show_end(closing_rows(demo), demo_record(demo), as_json=as_json)
