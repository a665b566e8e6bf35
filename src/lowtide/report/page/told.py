"""Parts of a record in the words and values of the page."""

from __future__ import annotations

from lowtide.report.page.facts import Process, Session
from lowtide.report.page.fields import Record, mappings, number, text, whole
from lowtide.units import format_bytes, format_count, format_seconds

NAME_A_RUN = (
    "name the folder of a run of tokenize, train-tokenizer or train, or a timeline of watch"
)
_MOST_PROCESSES = 8


def checkpoint_words(record: Record) -> str:
    """What is safe: a step of training and where it lies, or so much of the input."""
    step, done = whole(record, "step"), whole(record, "done_bytes")
    if step is None:
        tokens = format_count(whole(record, "tokens") or 0)
        return "" if done is None else f"{format_bytes(done)} of input, {tokens} tokens are safe"
    path, took = text(record, "path"), number(record, "seconds")
    where = f": {path}" if path else ""
    return f"at step {step}{where}" + ("" if took is None else f", in {format_seconds(took)}")


def pause_words(before: Session | None, at: float | None) -> str:
    """How long nothing was done between two sessions."""
    if before is None or before.last_at is None or at is None:
        return ""
    return f" after a pause of {format_seconds(max(0.0, at - before.last_at))}"


def processes(record: Record) -> tuple[Process, ...]:
    """The largest of a watched tree."""
    return tuple(
        Process(
            pid=whole(one, "pid") or 0,
            name=text(one, "name"),
            private_bytes=whole(one, "private_bytes") or 0,
        )
        for one in mappings(record, "top", _MOST_PROCESSES)
    )
