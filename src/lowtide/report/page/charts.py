"""Which charts a run gets: what was never measured has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lowtide.report.page.facts import Forecast, RunFacts
from lowtide.report.page.series import Point
from lowtide.svg import Unit
from lowtide.units import format_bytes

Pick: TypeAlias = Literal["mean", "low", "high", "last"]
"""The value that stands for a point: the mean for noise, the highest for memory, the last for counters."""
MOST_PATH_POINTS = 13_000
"""Points in all paths of a page: each costs about ten bytes."""
_FEWEST_POINTS = 60
_MOST_NAME = 40
"""Characters of a GPU's name, which is repeated in keys, tables and attributes."""
_OUT_OF_SIGHT = 12
"""A budget this many times the peak would flatten the curve; it is given in words instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a chart."""

    name: str
    series: str
    pick: Pick
    colour: str = "first"
    area: bool = False
    band: bool = False
    dots: bool = False

    @property
    def weight(self) -> int:
        """Number of paths it is drawn with."""
        return 1 + self.area + 2 * self.band


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value that was set, not measured, as a straight line; with `session`, over that session only."""

    name: str
    value: float
    session: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart over the time of the run."""

    title: str
    unit: Unit
    lines: tuple[Line, ...]
    words: str = ""
    from_zero: bool = True
    levels: tuple[Level, ...] = ()
    wide: bool = False
    stages: bool = False
    """Whether stages, alerts and the forecast are drawn into it."""
    forecast: Forecast | None = None
    hidden: str | None = None
    """A series that the cursor reads and that is not drawn."""


def choose_charts(facts: RunFacts) -> list[Chart]:
    """The charts of a run in the order of the page."""
    found = [
        *_memory_charts(facts),
        *_progress_charts(),
        *_cache_charts(facts),
        *_machine_charts(facts),
    ]
    return [chart for chart in found if any(line.series in facts.series for line in chart.lines)]


def chart_points(facts: RunFacts, charts: list[Chart]) -> dict[str, list[Point]]:
    """The points of every series, few enough that the page stays small."""
    weights: dict[str, int] = {}
    for line in (line for chart in charts for line in chart.lines):
        if line.series in facts.series:
            weights[line.series] = line.weight
    if "step" in facts.series:
        weights["step"] = 1
    most = max(_FEWEST_POINTS, MOST_PATH_POINTS // max(1, sum(weights.values())))
    return {name: facts.series[name].points(min(most, 800)) for name in weights}


def _memory_charts(facts: RunFacts) -> Iterator[Chart]:
    levels = _budget_levels(facts)
    peak = facts.peaks.private_bytes or 0
    seen = tuple(one for one in levels if one.value <= _OUT_OF_SIGHT * max(peak, 1))
    words = "What the budget counts: anonymous and shared memory of all processes. Measured."
    if len(seen) < len(levels):
        size = format_bytes(int(max(one.value for one in levels)))
        words += f" The {levels[0].name} of {size} lies far above this picture."
    yield Chart(
        title="Private memory",
        unit="bytes",
        words=words,
        lines=(Line(name="private", series="private", pick="high", area=True),),
        levels=seen,
        wide=True,
        stages=True,
        forecast=facts.forecast,
    )


def _cache_charts(facts: RunFacts) -> Iterator[Chart]:
    words = "Files kept in memory by the system, which takes them back at will. Never counted. Measured."
    lines = [Line(name="mapped files", series="mapped", pick="high", colour="quiet", area=True)]
    if "charged" in facts.series:
        words += " A cgroup is charged for private memory and page cache together."
        lines.append(
            Line(name="charged to the cgroup", series="charged", pick="high", colour="second")
        )
    yield Chart(title="Page cache", unit="bytes", words=words, lines=tuple(lines))
    if facts.peaks.swapped_bytes:
        swapped = Line(
            name="swapped out", series="swapped", pick="high", colour="second", area=True
        )
        yield Chart(
            title="Swap",
            unit="bytes",
            words="Memory that had to leave for the disk. Measured.",
            lines=(swapped,),
        )


def _budget_levels(facts: RunFacts) -> tuple[Level, ...]:
    if facts.limit_bytes:
        return (Level(name="limit", value=facts.limit_bytes),)
    named = [one for one in facts.sessions if one.budget_bytes]
    if len({one.budget_bytes for one in named}) == 1 and len(named) == len(list(facts.sessions)):
        return (Level(name="budget", value=named[0].budget_bytes or 0),)
    return tuple(
        Level(name="budget", value=one.budget_bytes or 0, session=one.number) for one in named
    )


def _progress_charts() -> Iterator[Chart]:
    yield Chart(
        title="Loss",
        unit="number",
        from_zero=False,
        words="Training: the mean; shaded from lowest to highest. Validation: held-out text. Measured.",
        lines=(
            Line(name="training", series="loss", pick="mean", band=True),
            Line(name="validation", series="evaluation", pick="last", colour="second", dots=True),
        ),
        wide=True,
        hidden="step",
    )
    yield _plain(
        "Throughput", "count/s", "tokens", "tokens_per_second", "Tokens a second. Measured."
    )
    yield _plain("Throughput", "bytes/s", "input", "input rate", "Input read a second. Measured.")
    yield _plain("Merges a second", "count/s", "merges", "merge rate", "Measured.")
    yield _counter("Tokens", "tokens", "tokens", "So far. Counted.")
    yield _counter("Merges", "merges", "merges", "Learnt so far. Counted.")
    yield _counter(
        "Learning rate", "rate", "learning_rate", "As set by the schedule.", unit="number"
    )
    yield _plain("Gradient norm", "number", "norm", "gradient_norm", "Before clipping. Measured.")


def _machine_charts(facts: RunFacts) -> Iterator[Chart]:
    cards = sorted(facts.gpus)
    colours = ("first", "second", "quiet", "third")
    lines = tuple(
        Line(
            name=facts.gpus[card][0][:_MOST_NAME] or f"GPU {card}",
            series=f"gpu {card}",
            pick="high",
            colour=colours[n],
        )
        for n, card in enumerate(cards)
    )
    sizes = {size for _, size in facts.gpus.values() if size}
    yield Chart(
        title="GPU memory",
        unit="bytes",
        words="Measured." if cards else "The most that was allocated so far. Measured.",
        lines=lines or (Line(name="allocated", series="gpu", pick="high", area=True),),
        levels=tuple(Level(name="size of the card", value=size) for size in sorted(sizes)[-1:]),
    )
    floor = (Level(name="kept free", value=facts.floor_bytes),) if facts.floor_bytes else ()
    yield Chart(
        title="Memory left on the machine",
        unit="bytes",
        words="What all programs together could still take. Measured.",
        lines=(Line(name="available", series="available", pick="mean", colour="quiet", band=True),),
        levels=floor,
    )
    if any(point.high > 0 for point in _points_of(facts, "stalled")):
        yield _plain(
            "Standstill", "percent", "stalled", "stalled", "Time that all work waited for memory."
        )


def _points_of(facts: RunFacts, name: str) -> list[Point]:
    return facts.series[name].points() if name in facts.series else []


def _plain(title: str, unit: Unit, name: str, series: str, words: str) -> Chart:
    line = Line(name=name, series=series, pick="mean", band=True)
    return Chart(title=title, unit=unit, words=words, lines=(line,))


def _counter(title: str, name: str, series: str, words: str, *, unit: Unit = "count") -> Chart:
    line = Line(name=name, series=series, pick="last")
    return Chart(title=title, unit=unit, words=words, lines=(line,))
