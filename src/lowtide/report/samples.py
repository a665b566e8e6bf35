"""Samples of a model: for people the prompt and what follows, as it comes; with `--json` one object."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from lowtide.report.results import print_json
from lowtide.units import printable

_BETWEEN = "\n---\n"


def show_samples(
    prompt: str, streams: Iterable[Iterable[str]], *, as_json: bool, shows_prompt: bool = True
) -> None:
    """Every sample to stdout; an answer in a chat goes without its prompt."""
    if as_json:
        print_json({"prompt": prompt, "samples": ["".join(stream) for stream in streams]})
        return
    for number, stream in enumerate(streams):
        click.echo(_BETWEEN if number else "", nl=False)
        if shows_prompt:
            click.echo(_harmless(prompt), nl=False, color=True)
        for piece in stream:
            click.echo(_harmless(piece), nl=False, color=True)  # flushes; strips nothing
    click.echo()


def _harmless(text: str) -> str:
    """On a terminal, without what would move its cursor or change its colours; elsewhere as it is."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text
