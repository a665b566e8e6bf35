"""`lowtide watch`: warn about any job, ask it to stop, and end it before the kernel does."""

from __future__ import annotations

import os
import sys

import click

from lowtide.cli.choices import FILE, PID, SIZE_OR_SHARE, Option, debug_option, json_option
from lowtide.cli.command import Command, examples

SECONDS = click.FloatRange(0.05, 30 * 86_400.0)


@click.command(
    "watch",
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "lowtide watch --limit 40GB -- python train.py",
        "lowtide watch --limit 80% --until end --grace 30 -- ./job.sh",
        "lowtide watch --pid 4711",
        read_on="docs/watch.md",
        note="Its exit code is the command's own; 128 and the signal's number where one ended it.",
    ),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@click.option(
    "--pid",
    cls=Option,
    command_line_only="a process has its number only once",
    type=PID,
    metavar="N",
    help="Watch a process that runs already.",
)
@click.option(
    "--limit",
    type=SIZE_OR_SHARE,
    metavar="SIZE",
    help="Private memory it may use, or a share such as 80%.",
)
@click.option(
    "--floor", type=SIZE_OR_SHARE, metavar="SIZE", help="Memory the machine must keep free."
)
@click.option(
    "--until",
    "most",
    type=click.Choice(["note", "ask", "end"]),
    default="ask",
    show_default=True,
    help="How far to go: warn, ask it to stop, or end it.",
)
@click.option(
    "--grace",
    type=SECONDS,
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="Time between asking and ending.",
)
@click.option(
    "--stop-file",
    type=FILE,
    metavar="FILE",
    help="Ask by this file first, then by SIGTERM.",
)
@click.option(
    "--on-alert",
    cls=Option,
    command_line_only="it starts a program, and a file that lies in a folder must not",
    metavar="SHELL",
    help="Run this for every alert; $LOWTIDE_REASON says why.",
)
@click.option(
    "--every",
    type=SECONDS,
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Time between readings.",
)
@click.option(
    "--timeline",
    type=FILE,
    metavar="FILE",
    help="Where readings go.  [default: a new file in ~/.local/state]",
)
@click.option("--alerts", type=FILE, metavar="FILE", help="Where alerts go, one line each.")
@json_option
@click.option("--quiet", is_flag=True, help="No notes and no screen; alerts go to their file.")
@debug_option
def watch_command_line(
    command: tuple[str, ...],
    pid: int | None,
    limit: str | None,
    floor: str | None,
    most: str,
    grace: float,
    stop_file: str | None,
    on_alert: str | None,
    every: float,
    timeline: str | None,
    alerts: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Watch any job, and act before the kernel kills.

    The job runs as it would without, with its own input and output. Its private memory, and what the
    machine has left, are read every second: you are warned, then the job is asked to stop, and ended if you
    allow it.
    """
    from lowtide.show.watch_view import show_watch, show_watched
    from lowtide.stages.watch import watch_command, watch_process
    from lowtide.stages.watch_settings import choose_settings, one_of

    one_of(command, pid)
    settings = choose_settings(
        limit=limit,
        floor=floor,
        most=most,
        timeline=timeline,
        alerts=alerts,
        environment=os.environ,
        grace_seconds=grace,
        interval_seconds=every,
        stop_file=stop_file,
        on_alert=on_alert,
    )
    limit_bytes = settings.thresholds.limit_bytes
    with show_watch(quiet=quiet, limit_bytes=limit_bytes, screen=pid is not None) as listen:
        if pid is not None:
            result = watch_process(pid, settings, listen, environment=os.environ)
        else:
            result = watch_command(command, settings, listen, environment=os.environ)
    show_watched(result, limit_bytes, as_json=as_json, quiet=quiet)
    sys.exit(result.end.exit_code or 0)
