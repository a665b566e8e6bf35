"""Prints a verdict: the sentence, what speaks for and against it, what to change; or one object as JSON."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from lowtide.show.results import print_json
from lowtide.units import printable

if TYPE_CHECKING:
    from lowtide.guard.why.verdict import Verdict

_MARKS = {"for": "+", "against": "-", "neither": " "}
_WIDEST = 112
_NARROWEST = 60


def show_verdict(verdict: Verdict, *, as_json: bool) -> None:
    """Print the verdict on stdout. Control characters out of files are replaced."""
    if as_json:
        print_json(
            {
                "about": verdict.about,
                "cause": verdict.cause,
                "sureness": verdict.sureness,
                "sentence": verdict.sentence,
                "evidence": list(verdict.evidence),
                "remedies": list(verdict.remedies),
            }
        )
        return
    columns = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
    click.echo("\n".join(_lines(verdict, columns)))


def _lines(verdict: Verdict, columns: int) -> list[str]:
    lines = _wrapped(verdict.sentence, "", columns)
    lines += ["", *_wrapped(verdict.about, "about     ", columns)]
    if verdict.evidence:
        lines += ["", "evidence  (+ speaks for it, - against it)"]
    for one in verdict.evidence:
        lines += _wrapped(f"{one.source}: {one.text}", f"  {_MARKS[one.speaks]} ", columns)
    if verdict.remedies:
        lines += ["", "what to do" if verdict.cause in ("running", "unknown") else "what to change"]
    for number, remedy in enumerate(verdict.remedies, start=1):
        lines += _wrapped(remedy, f"  {number}. ", columns)
    return lines


def _wrapped(text: str, lead: str, columns: int) -> list[str]:
    """The text in lines of this width, all indented as far as the lead."""
    return textwrap.wrap(
        printable(text),
        width=columns,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [lead.rstrip()]
