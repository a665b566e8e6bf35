"""The few figures that stand large at the top of the page, each with how it is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lowtide.show.page.facts import RunFacts
from lowtide.units import format_bytes, format_count, format_seconds


class KeyFigure(NamedTuple):
    """A figure and what it means; a `share` of 0 to 1 draws a bar under it."""

    name: str
    value: str
    words: str
    share: float | None = None


def key_figures(facts: RunFacts) -> Iterator[KeyFigure]:
    """The figures in the order of the page: memory first."""
    yield from _memory(facts)
    yield from _losses(facts)
    yield from _progress(facts)
    yield from _throughput(facts)
    sessions = facts.sessions.count
    words = "of work, measured" if sessions < 2 else f"of work in {sessions} sessions, measured"
    yield KeyFigure("Time", format_seconds(facts.worked_seconds), words)
    left = facts.counts.seconds_left
    if left and facts.end is None and facts.counts.step != facts.counts.steps:
        yield KeyFigure("Time left", format_seconds(left), "predicted at the last step")


def _memory(facts: RunFacts) -> Iterator[KeyFigure]:
    peak, budget = facts.peaks.private_bytes, facts.budget_bytes
    if peak is not None:
        words, share = "measured; no budget was named", None
        if budget:
            name = "limit" if facts.limit_bytes else "budget"
            share = peak / budget
            words = f"{share:.0%} of the {name} of {format_bytes(budget)}, measured"
        yield KeyFigure("Peak private memory", format_bytes(peak), words, share)
    if facts.peaks.gpu_bytes:
        sizes = [size for _, size in facts.gpus.values() if size]
        words = f"of {format_bytes(max(sizes))}, measured" if sizes else "measured"
        yield KeyFigure("Peak GPU memory", format_bytes(facts.peaks.gpu_bytes), words)


def _losses(facts: RunFacts) -> Iterator[KeyFigure]:
    counts = facts.counts
    if counts.last_loss is not None:
        yield KeyFigure("Last training loss", f"{counts.last_loss:.4f}", "of one step, measured")
    if counts.best_evaluation is not None:
        loss, step = counts.best_evaluation
        at = f" at step {step:,}" if step is not None else ""
        last = counts.last_evaluation
        later = f"; the last was {last:.4f}" if last is not None and last != loss else ""
        yield KeyFigure("Best validation loss", f"{loss:.4f}", f"measured{at}{later}")


def _progress(facts: RunFacts) -> Iterator[KeyFigure]:
    counts = facts.counts
    for name, done, total in (
        ("Steps", counts.step, counts.steps),
        ("Merges", counts.merges, counts.most_merges),
    ):
        if done is not None:
            words = f"of {total:,}" if total else "counted"
            yield KeyFigure(name, f"{done:,}", words, done / total if total else None)
    if counts.tokens:
        words = f"{counts.tokens:,} at the last count"
        if counts.epoch is not None:
            words = f"{counts.epoch:.3g} epochs, counted"
        more = "> " if counts.more_tokens else ""
        yield KeyFigure("Tokens", more + format_count(counts.tokens), words)
    if counts.done_bytes is not None:
        total = counts.total_bytes
        share = min(1.0, counts.done_bytes / total) if total else None
        words = f"of {format_bytes(total)}" if total else "counted"
        if counts.documents:
            words += f", {format_count(counts.documents)} documents"
        yield KeyFigure("Input read", format_bytes(counts.done_bytes), words, share)


def _throughput(facts: RunFacts) -> Iterator[KeyFigure]:
    counts, rates = facts.counts, facts.series.get("tokens_per_second")
    if rates:
        points = rates.points()
        mean = sum(one.total for one in points) / sum(one.count for one in points)
        used = f"; {counts.mfu:.0%} of the card's peak" if counts.mfu else ""
        words = f"tokens, mean, measured{used}"
        yield KeyFigure("Throughput", f"{format_count(round(mean))}/s", words)
    reading = sum(
        band.to_seconds - band.from_seconds
        for band in facts.bands
        if band.name in ("tokenizing", "counting words", "starting")
    )
    if counts.new_bytes and reading > 0:
        rate = f"{format_bytes(round(counts.new_bytes / reading))}/s"
        yield KeyFigure("Throughput", rate, "input, mean, measured")
