"""The command `lowtide`: finds the subcommand, turns errors into two lines and an exit code."""

from __future__ import annotations

import sys

import click

from lowtide import __version__
from lowtide.cli.export import export_command
from lowtide.cli.inspect import inspect_command
from lowtide.cli.tokenize import tokenize_command
from lowtide.cli.verify import verify_command
from lowtide.errors import LowtideError

EXIT_CODES = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 does not fit (nothing started),
4 data failed verification, 75 stopped cleanly (run again to go on), 130 interrupted."""


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="lowtide")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """From raw text to token shards, inside a memory budget you name."""
    context.obj = debug


cli.add_command(tokenize_command)
cli.add_command(inspect_command)
cli.add_command(verify_command)
cli.add_command(export_command)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments, prog_name="lowtide", standalone_mode=False)
    except LowtideError as error:
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error.problem}\nhint: {error.remedy}", err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("error: interrupted\nhint: run the same command again to go on", err=True)
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output is gone; there is nobody left to tell
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
