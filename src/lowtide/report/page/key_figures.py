"""The few figures that stand large at the top of the page, each with how it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.report.page.facts import RunFacts
from lowtide.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """`share` of 0 to 1 draws a bar under the figure."""

    name: str
    value: str
    words: str
    share: float | None = None


def key_figures(facts: RunFacts) -> list[KeyFigure]:
    """In the order of the page: memory first."""
    return [
        *_memory(facts),
        *_losses(facts),
        *_progress(facts),
        *_throughput(facts),
        _duration(facts),
        *_left(facts),
    ]


def _memory(facts: RunFacts) -> Iterator[KeyFigure]:
    peak, budget = facts.peaks.private_bytes, facts.budget_bytes
    if peak is not None:
        words, share = "measured; no budget was named", None
        if budget:
            name = "limit" if facts.limit_bytes else "budget"
            share = peak / budget
            words = f"{share:.0%} of the {name} of {format_bytes(budget)}, measured"
        yield KeyFigure(
            name="Peak private memory", value=format_bytes(peak), words=words, share=share
        )
    if facts.peaks.gpu_bytes:
        sizes = [size for _, size in facts.gpus.values() if size]
        words = f"of {format_bytes(max(sizes))}, measured" if sizes else "measured"
        yield KeyFigure(
            name="Peak GPU memory", value=format_bytes(facts.peaks.gpu_bytes), words=words
        )


def _losses(facts: RunFacts) -> Iterator[KeyFigure]:
    counts = facts.counts
    if counts.last_loss is not None:
        yield KeyFigure(
            name="Last training loss",
            value=f"{counts.last_loss:.4f}",
            words="of one step, measured",
        )
    if counts.best_evaluation is not None:
        loss, step = counts.best_evaluation
        at = f" at step {step:,}" if step is not None else ""
        last = counts.last_evaluation
        later = f"; the last was {last:.4f}" if last is not None and last != loss else ""
        yield KeyFigure(
            name="Best validation loss", value=f"{loss:.4f}", words=f"measured{at}{later}"
        )


def _progress(facts: RunFacts) -> Iterator[KeyFigure]:
    counts = facts.counts
    if counts.step is not None:
        share = counts.step / counts.steps if counts.steps else None
        of = f"of {counts.steps:,}" if counts.steps else "counted"
        yield KeyFigure(name="Steps", value=f"{counts.step:,}", words=of, share=share)
    if counts.merges is not None:
        most = counts.most_merges
        share = counts.merges / most if most else None
        words = f"of {most:,}" if most else "counted"
        yield KeyFigure(name="Merges", value=f"{counts.merges:,}", words=words, share=share)
    if counts.tokens:
        words = f"{counts.tokens:,} at the last count"
        if counts.epoch is not None:
            words = f"{counts.epoch:.3g} epochs, counted"
        more = "> " if counts.more_tokens else ""
        yield KeyFigure(name="Tokens", value=more + format_count(counts.tokens), words=words)
    if counts.done_bytes is not None:
        total = counts.total_bytes
        share = min(1.0, counts.done_bytes / total) if total else None
        words = f"of {format_bytes(total)}" if total else "counted"
        if counts.documents:
            words += f", {format_count(counts.documents)} documents"
        yield KeyFigure(
            name="Input read", value=format_bytes(counts.done_bytes), words=words, share=share
        )


def _throughput(facts: RunFacts) -> Iterator[KeyFigure]:
    counts, rates = facts.counts, facts.series.get("tokens_per_second")
    if rates:
        points = rates.points()
        mean = sum(one.total for one in points) / sum(one.count for one in points)
        used = f"; {counts.mfu:.0%} of the card's peak" if counts.mfu else ""
        yield KeyFigure(
            name="Throughput",
            value=f"{format_count(round(mean))}/s",
            words=f"tokens, mean, measured{used}",
        )
    reading = sum(
        band.to_seconds - band.from_seconds
        for band in facts.bands
        if band.name in ("tokenizing", "counting words", "starting")
    )
    if counts.new_bytes and reading > 0:
        rate = f"{format_bytes(round(counts.new_bytes / reading))}/s"
        yield KeyFigure(name="Throughput", value=rate, words="input, mean, measured")


def _duration(facts: RunFacts) -> KeyFigure:
    count = facts.sessions.count
    words = "of work, measured" if count < 2 else f"of work in {count} sessions, measured"
    return KeyFigure(name="Time", value=format_seconds(facts.worked_seconds), words=words)


def _left(facts: RunFacts) -> Iterator[KeyFigure]:
    left = facts.counts.seconds_left
    if left and facts.end is None and facts.counts.step != facts.counts.steps:
        yield KeyFigure(
            name="Time left", value=format_seconds(left), words="predicted at the last step"
        )
