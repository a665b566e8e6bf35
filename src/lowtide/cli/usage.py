"""click's words for a wrong call in our form: the problem, and what was most likely meant."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from lowtide.cli.choices import BadValue
from lowtide.cli.command import examples_of
from lowtide.settings import nearest

_ONE_LETTER_OFF = 0.85
_NOT_ONE_OF = re.compile(r"'(.*)' is not one of ", re.DOTALL)


def usage_words(error: click.ClickException, arguments: Sequence[str]) -> tuple[str, str]:
    """The problem with a small letter and no full stop, and a hint that fits what was typed."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    see = f"see `{context.command_path if context else 'lowtide'} --help`"
    hint = None
    if isinstance(error, click.NoSuchOption) and context:
        problem = f"no such option '{error.option_name}'"
        hint = _hint_of_option(error.option_name, context, arguments)
    else:
        problem = " ".join(error.format_message().split()).removesuffix(".")
    if isinstance(error, click.MissingParameter) and context:
        hint = next((f"for example `{line}`;" for line in examples_of(context.command)), None)
    elif isinstance(error, BadValue):
        hint = f"{error.remedy};"
    elif isinstance(error, click.BadParameter):
        hint = _hint_of_choice(error)
    return problem[:1].lower() + problem[1:], f"{hint} {see}" if hint else see


def _hint_of_option(flag: str, context: click.Context, arguments: Sequence[str]) -> str | None:
    """Where the option belongs, if it is one; else the nearest that there is."""
    root = context.find_root().command
    assert isinstance(root, click.Group), "commands are called through the group"
    having = [name for name, one in root.commands.items() if flag in _flags(one)]
    if context.command is root:
        every = {one for command in root.commands.values() for one in _flags(command)}
        if having:
            named = next((word for word in arguments if word in having), "COMMAND")
            return f"it stands behind the command: `lowtide {named} … {flag} …`;"
        return _did_you_mean(flag, _flags(root)) or _did_you_mean(flag, every)
    if flag == "--version":
        return "`lowtide --version` tells it;"
    if flag in _flags(root):
        return f"it stands before the command: `lowtide {flag} … {context.command.name} …`;"
    if not having or nearest(flag, _flags(context.command), likeness=_ONE_LETTER_OFF):
        return _did_you_mean(flag, _flags(context.command))
    return f"{', '.join(f'`{one}`' for one in having)} {'has' if len(having) == 1 else 'have'} it;"


def _did_you_mean(flag: str, known: set[str]) -> str | None:
    letter = flag.lstrip("-")
    if len(letter) == 1:
        meant = sorted(one for one in known if one.startswith(f"--{letter.lower()}"))[:3]
    else:
        meant = [one for one in [nearest(flag, sorted(known))] if one]
    return f"did you mean {' or '.join(f'`{one}`' for one in meant)}?" if meant else None


def _hint_of_choice(error: click.BadParameter) -> str | None:
    option, told = error.param, _NOT_ONE_OF.match(error.message)
    if told is None or option is None or not isinstance(option.type, click.Choice):
        return None
    meant = nearest(told[1], [str(one) for one in option.type.choices])
    flag = next((one for one in option.opts if one.startswith("--")), "")
    return f"did you mean `{f'{flag} {meant}'.strip()}`?" if meant else None


def _flags(command: click.Command) -> set[str]:
    return {
        name
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
        for name in one.opts
        if name.startswith("--")
    } | {"--help"}
