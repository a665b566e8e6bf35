"""The command `lowtide`: finds the subcommand, turns errors into two lines and an exit code."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import click

from lowtide import __version__
from lowtide.cli.choices import FILE
from lowtide.cli.compare import compare_command
from lowtide.cli.completion import completion_command
from lowtide.cli.config import config_command
from lowtide.cli.demo import demo_command
from lowtide.cli.doctor import doctor_command
from lowtide.cli.export import export_command
from lowtide.cli.group import Commands
from lowtide.cli.inspect import inspect_command
from lowtide.cli.plan import plan_command
from lowtide.cli.report import report_command
from lowtide.cli.sample import sample_command
from lowtide.cli.tokenize import tokenize_command
from lowtide.cli.train import train_command
from lowtide.cli.train_tokenizer import train_tokenizer_command
from lowtide.cli.usage import usage_words
from lowtide.cli.verify import verify_command
from lowtide.cli.watch import watch_command_line
from lowtide.cli.why import why_command
from lowtide.errors import LowtideError, StoppedError, Terminated
from lowtide.storage.publish import storage_error
from lowtide.units import printable, printable_lines

_OF_OUTPUT = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EFBIG,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
)
"""What a disk says of a write to an open file, such as the one that standard output goes to."""
EXIT_CODES = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 does not fit (nothing started),
4 data failed verification, 75 stopped cleanly (run again to resume), 130 interrupted."""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="lowtide")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    help="Settings to use as defaults.  [default: lowtide.toml, if there is one]",
)
def cli(config: str | None) -> None:  # each command reads it
    """From raw text to a trained GPT, inside a memory budget you name."""


cli.add_command(demo_command)
cli.add_command(train_tokenizer_command)
cli.add_command(tokenize_command)
cli.add_command(plan_command)
cli.add_command(train_command)
cli.add_command(sample_command)
cli.add_command(inspect_command)
cli.add_command(verify_command)
cli.add_command(export_command)
cli.add_command(report_command)
cli.add_command(watch_command_line)
cli.add_command(why_command)
cli.add_command(compare_command)
cli.add_command(doctor_command)
cli.add_command(config_command)
cli.add_command(completion_command)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    _print_any_text()
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="lowtide", standalone_mode=False)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the last to hear of it; a Rust panic is not an Exception
        if "--debug" in arguments:
            import traceback

            told = "".join(traceback.format_exception(error))
            click.echo(printable(told, keep="\n"), nl=False, err=True)
        return _tell(error, arguments)
    return code if isinstance(code, int) else 0


def _tell(error: BaseException, arguments: list[str]) -> int:
    """Say what went wrong and what to do about it, on stderr; the exit code that goes with it."""
    code, word = 1, "error"
    if isinstance(error, StoppedError):
        word = "stopped"  # as it was asked to, which is not an error
    if isinstance(error, LowtideError):
        problem, remedy, code = error.problem, error.remedy, error.exit_code
        problem = problem.removeprefix("stopped ") if word == "stopped" else problem
    elif isinstance(error, click.ClickException):
        if _is_bare_call(error):
            error.show()
            return error.exit_code
        problem, remedy, code = *usage_words(error, arguments), error.exit_code
    elif isinstance(error, click.Abort | KeyboardInterrupt):
        problem, remedy, code = "interrupted", "run the same command again", 130
        word = "stopped"
    elif isinstance(error, Terminated):
        problem, remedy, code = "asked to end", "run the same command again", 75
        word = "stopped"
    elif isinstance(error, BrokenPipeError):
        return code  # whoever read from the pipe has gone
    elif isinstance(error, MemoryError):
        problem = f"out of memory{f': {error}' if str(error) else ''}"
        remedy = "pass a larger `--memory` or ask for less at a time, or free memory"
    elif isinstance(error, OSError) and isinstance(error.filename, str):
        told = storage_error(error, Path(error.filename), doing="use")
        problem, remedy = told.problem, told.remedy
    elif isinstance(error, OSError) and error.errno in _OF_OUTPUT:
        problem = f"cannot write to standard output: {error.strerror}"
        remedy = "free space or allow writing where it goes, or send it elsewhere"
    else:
        problem = f"{type(error).__name__}: {error}"
        remedy = "this is a fault of lowtide; run it with `--debug` and report what that prints"
    click.echo(
        f"{word}: {printable_lines(problem)}\nhint: {printable_lines(remedy)}",
        err=True,
    )
    return code


def _is_bare_call(error: click.ClickException) -> bool:
    """`lowtide` alone: click answers with the help, as an error."""
    return type(error).__name__ == "NoArgsIsHelpError"  # older releases have no such class


def _print_any_text() -> None:
    """A file's name, or a sample of text, that the terminal cannot show is shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a notebook's or a test's stream may be of another kind
            reconfigure(errors="backslashreplace")
