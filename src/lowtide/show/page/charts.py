"""Which charts a run gets: what was never measured has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from lowtide.guard.forecast import Forecast
from lowtide.series import Point
from lowtide.show.page.facts import RunFacts
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


class Line(NamedTuple):
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


class Level(NamedTuple):
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
    forecast: tuple[float, Forecast] | None = None
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
    visible = tuple(one for one in levels if one.value <= _OUT_OF_SIGHT * max(peak, 1))
    words = "What the budget counts: anonymous and shared memory of all processes. Measured."
    if len(visible) < len(levels):
        size = format_bytes(int(max(one.value for one in levels)))
        words += f" The {levels[0].name} of {size} lies far above this picture."
    yield Chart(
        title="Private memory",
        unit="bytes",
        words=words,
        lines=(Line("private", "private", "high", area=True),),
        levels=visible,
        wide=True,
        stages=True,
        forecast=facts.forecast,
    )


def _budget_levels(facts: RunFacts) -> tuple[Level, ...]:
    if facts.limit_bytes:
        return (Level("limit", facts.limit_bytes),)
    named = [one for one in facts.sessions if one.budget_bytes]
    if len({one.budget_bytes for one in named}) == 1 and len(named) == len(list(facts.sessions)):
        return (Level("budget", named[0].budget_bytes or 0),)
    return tuple(Level("budget", one.budget_bytes or 0, one.number) for one in named)


def _progress_charts() -> Iterator[Chart]:
    yield Chart(
        title="Loss",
        unit="number",
        from_zero=False,
        words="Training: the mean; shaded from lowest to highest. Validation: held-out text. Measured.",
        lines=(
            Line("training", "loss", "mean", band=True),
            Line("validation", "evaluation", "last", colour="second", dots=True),
        ),
        wide=True,
        hidden="step",
    )
    tokens = Line("tokens", "tokens_per_second", "mean", band=True)
    yield _chart("Throughput", "count/s", "Tokens a second. Measured.", tokens)
    bytes_read = Line("input", "input rate", "mean", band=True)
    yield _chart("Throughput", "bytes/s", "Input read a second. Measured.", bytes_read)
    merges = Line("merges", "merge rate", "mean", band=True)
    yield _chart("Merges a second", "count/s", "Measured.", merges)
    yield _chart("Tokens", "count", "So far. Counted.", Line("tokens", "tokens", "last"))
    yield _chart("Merges", "count", "Learnt so far. Counted.", Line("merges", "merges", "last"))
    rate = Line("rate", "learning_rate", "last")
    yield _chart("Learning rate", "number", "As set by the schedule.", rate)
    norm = Line("norm", "gradient_norm", "mean", band=True)
    yield _chart("Gradient norm", "number", "Before clipping. Measured.", norm)


def _cache_charts(facts: RunFacts) -> Iterator[Chart]:
    words = "Files kept in memory by the system, which takes them back at will. Never counted. Measured."
    lines = [Line("mapped files", "mapped", "high", colour="quiet", area=True)]
    if "charged" in facts.series:
        words += " A cgroup is charged for private memory and page cache together."
        lines.append(Line("charged to the cgroup", "charged", "high", colour="second"))
    yield _chart("Page cache", "bytes", words, *lines)
    if facts.peaks.swapped_bytes:
        swapped = Line("swapped out", "swapped", "high", colour="second", area=True)
        yield _chart("Swap", "bytes", "Memory that had to leave for the disk. Measured.", swapped)


def _machine_charts(facts: RunFacts) -> Iterator[Chart]:
    colours = ("first", "second", "quiet", "third")
    lines = [
        Line(name[:_MOST_NAME] or f"GPU {card}", f"gpu {card}", "high", colour=colour)
        for colour, (card, (name, _)) in zip(colours, sorted(facts.gpus.items()), strict=False)
    ]
    words = "Measured." if lines else "The most that was allocated so far. Measured."
    lines = lines or [Line("allocated", "gpu", "high", area=True)]
    largest = max((size for _, size in facts.gpus.values()), default=0)
    size = (Level("size of the card", largest),) if largest else ()
    yield _chart("GPU memory", "bytes", words, *lines, levels=size)
    floor = (Level("kept free", facts.floor_bytes),) if facts.floor_bytes else ()
    words = "What all programs together could still take. Measured."
    available = Line("available", "available", "mean", colour="quiet", band=True)
    yield _chart("Memory left on the machine", "bytes", words, available, levels=floor)
    stalled = facts.series.get("stalled")
    if stalled is not None and any(point.high > 0 for point in stalled.points()):
        words = "Time that all work waited for memory."
        yield _chart("Standstill", "percent", words, Line("stalled", "stalled", "mean", band=True))


def _chart(
    title: str, unit: Unit, words: str, *lines: Line, levels: tuple[Level, ...] = ()
) -> Chart:
    return Chart(title=title, unit=unit, words=words, lines=lines, levels=levels)
