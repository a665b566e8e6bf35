"""`lowtide completion`: what makes a shell complete commands, flags, choices and paths."""

from __future__ import annotations

import click

from lowtide.cli.choices import debug_option
from lowtide.cli.command import Command, examples

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LOWTIDE_COMPLETE"


@click.command(
    "completion",
    cls=Command,
    epilog=examples(
        'eval "$(lowtide completion bash)"',
        "lowtide completion fish > ~/.config/fish/completions/lowtide.fish",
        read_on="docs/configuration.md",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="[bash|zsh|fish]")
@debug_option
def completion_command(shell: str) -> None:
    """Print the script that completes commands in a shell.

    \b
    bash  add to ~/.bashrc:  eval "$(lowtide completion bash)"
    zsh   add to ~/.zshrc, behind compinit:  eval "$(lowtide completion zsh)"
    fish  write it to ~/.config/fish/completions/lowtide.fish

    Then open a new shell.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choices are those that click knows"
    script = kind(click.get_current_context().find_root().command, {}, "lowtide", VARIABLE)
    click.echo(script.source_template % script.source_vars())
