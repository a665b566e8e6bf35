"""Examples for people: what is learnt of them in figures, and one of them with «the learnt part» marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from lowtide.units import format_count, printable

if TYPE_CHECKING:
    from lowtide.shards.describe import Sample
    from lowtide.shards.manifest import ExamplesRecord

_OPEN, _CLOSE = "«", "»"
_STRETCH_CHARACTERS = 240
_STRETCHES = 16
_LEARN = {
    "assistant": "what the assistant says",
    "completion": "the assistant's last turn",
    "all": "everything",
}
_TOO_LONG = {"split": "split into pieces", "truncate": "cut off there", "skip": "left out"}


def example_rows(record: ExamplesRecord) -> list[tuple[str, str]]:
    """How rows became tokens, and what was too long."""
    made = (
        f"{format_count(record.examples)} of kind {record.kind}, by the template {record.template}"
    )
    rows = [("examples", made), ("learnt", _LEARN.get(record.learn, record.learn))]
    if record.too_long_count:
        done = _TOO_LONG.get(record.too_long, record.too_long)
        long = f"{format_count(record.too_long_count)} of more than {record.context} tokens, {done}"
        rows.append(("too long", long))
    if record.dropped_count:
        rows.append(
            ("dropped", f"{format_count(record.dropped_count)} with nothing to learn in them")
        )
    return rows


def learnt_row(learnt_tokens: int, tokens: int) -> tuple[str, str]:
    """`  learnt   1.2M tokens, 31.4 % of them`."""
    share = f", {100 * learnt_tokens / tokens:.1f} %" if tokens else ""
    return "  learnt", f"{format_count(learnt_tokens)} tokens{share}"


def marked_lines(sample: Sample, *, colour: bool) -> Iterator[str]:
    """The example as it reads, its learnt part between « and », long stretches without their middle.

    It ends with … where more follows: later tokens, or learnt parts beyond the first few.
    """
    text = ""
    for shown, learnt in _stretches(sample):
        visible = printable(_shortened(shown), keep="\n")
        if learnt:
            visible = f"{_OPEN}{visible}{_CLOSE}"
            visible = click.style(visible, fg="green") if colour else visible
        text += visible
    has_more_learnt = len(sample.learnt_text or ()) > _STRETCHES
    if has_more_learnt or sample.shown_tokens < sample.document.tokens:
        text += "…"
    yield from text.split("\n")


def _stretches(sample: Sample) -> Iterator[tuple[str, bool]]:
    """The text in turns: not learnt, learnt, not learnt; it ends behind the last learnt part that is shown."""
    spans = sample.learnt_text or ()
    at = 0
    for start, end in spans[:_STRETCHES]:
        yield sample.text[at:start], False
        yield sample.text[start:end], True
        at = end
    if len(spans) <= _STRETCHES:
        yield sample.text[at:], False


def _shortened(text: str) -> str:
    if len(text) <= _STRETCH_CHARACTERS:
        return text
    half = _STRETCH_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"
