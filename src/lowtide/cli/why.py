"""`lowtide why`: the reason of a death."""

from __future__ import annotations

import os

import click

from lowtide.cli.choices import FILE, PID, Option, debug_option, json_option
from lowtide.cli.command import Command, examples


@click.command(
    "why",
    cls=Command,
    epilog=examples(
        "lowtide why run",
        "lowtide why train.log",
        "lowtide why --last",
        "lowtide why --pid 4711 --exit-code 137",
        read_on="docs/why.md",
    ),
)
@click.argument("target", required=False, type=FILE, metavar="[RUN|TIMELINE|LOG]")
@click.option(
    "--pid",
    cls=Option,
    command_line_only="a process has its number only once",
    type=PID,
    metavar="N",
    help="Ask about a process, alive or dead.",
)
@click.option(
    "--last",
    cls=Option,
    command_line_only="it belongs to one question alone",
    is_flag=True,
    help="The newest timeline.  [default where nothing is named]",
)
@click.option(
    "--log",
    cls=Option,
    gives_way_to=("target", "pid", "last"),
    type=FILE,
    metavar="FILE",
    help="What the program printed, beside the rest.",
)
@click.option(
    "--exit-code",
    cls=Option,
    command_line_only="it belongs to one death alone",
    type=int,
    metavar="N",
    help="What the shell said, such as 137.",
)
@click.option(
    "--kernel-log",
    type=FILE,
    metavar="FILE",
    help="A saved `dmesg`, instead of this machine's.",
)
@json_option
@debug_option
def why_command(
    target: str | None,
    pid: int | None,
    last: bool,
    log: str | None,
    exit_code: int | None,
    kernel_log: str | None,
    as_json: bool,
) -> None:
    """Say why a job died, how sure that is, and what to change.

    Give it a lowtide run, a timeline of `lowtide watch`, or the log of any program.
    """
    from pathlib import Path

    from lowtide.show.verdicts import show_verdict
    from lowtide.stages.watch_settings import timelines_folder
    from lowtide.stages.why import Question, explain, newest_timeline

    if last and target:
        raise click.UsageError("`--last` and a path exclude each other")
    folder = timelines_folder(os.environ)
    path = newest_timeline(folder) if last else Path(target) if target else None
    question = Question(
        timelines=folder,
        target=path,
        pid=pid,
        log=Path(log) if log else None,
        exit_code=exit_code,
        kernel_log=Path(kernel_log) if kernel_log else None,
    )
    show_verdict(explain(question), as_json=as_json)
