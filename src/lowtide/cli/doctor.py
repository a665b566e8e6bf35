"""`lowtide doctor`: what this machine allows, and what may go wrong."""

from __future__ import annotations

import os

import click

from lowtide.cli.choices import FOLDER, debug_option
from lowtide.cli.command import Command, examples


@click.command(
    "doctor",
    cls=Command,
    epilog=examples(
        "lowtide doctor",
        "lowtide doctor --path /data --quick",
        read_on="docs/doctor.md",
    ),
)
@click.option(
    "--path",
    type=FOLDER,
    metavar="DIR",
    default=".",
    help="Where files will go.  [default: the current folder]",
)
@click.option("--quick", is_flag=True, help="Leave out what takes seconds: disk speed and torch.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@debug_option
@click.pass_context
def doctor_command(context: click.Context, path: str, quick: bool, as_json: bool) -> None:
    """Say what this machine allows and what may go wrong.

    Looks at memory, its limits, disk, GPU, torch and libraries. Each line is ok, advice or a problem, with a
    remedy. Writes at most 256 MiB to measure the disk and keeps nothing. Exits with 1 if there is a problem.
    """
    from lowtide.guard.doctor.examine import examine_machine
    from lowtide.show.checks import show_checks
    from lowtide.show.progress import tell_a_person

    checks = examine_machine(path, environ=os.environ, quick=quick, listen=tell_a_person)
    show_checks(checks, as_json=as_json)
    if any(check.level == "problem" for check in checks):
        context.exit(1)
