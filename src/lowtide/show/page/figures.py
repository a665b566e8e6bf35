"""A chart as HTML: axes and curves, which fit any width without a script. page.js adds cursor and zoom.

Curves are SVG paths of whole numbers, each relative to the one before, so that they are short. page.js reads
the values back out of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TypeAlias

from lowtide.series import Point
from lowtide.show.page.charts import Chart, Level, Line, Pick
from lowtide.show.page.facts import RunFacts
from lowtide.show.page.scales import HEIGHT, WIDTH, TimeAxis, ValueAxis, make_value_axis
from lowtide.svg import escape, value_words
from lowtide.units import format_seconds

_ALERTS = ("note", "ask", "end")
_STAGE_CLASSES = {
    "noted": "noted",
    "asked to stop": "asked",
    "being ended": "ended",
    "starting": "still",
}
_TABLE_ROWS = 12
_WIDE_BAND = 0.12
"""Share of the width from which on a stage shows its name."""
_MOST_DOTS = 80
_FEW_POINTS = 12
"""A line of at most this many points is drawn with dots."""
Points: TypeAlias = Mapping[str, Sequence[Point]]
"""The points of every series, by its name."""
Place: TypeAlias = tuple[int, int]


def figure_html(chart: Chart, facts: RunFacts, points: Points, x: TimeAxis) -> str:
    """The chart with its title, keys, axes and a table of some of its values."""
    lines = [line for line in chart.lines if line.series in points]
    y = make_value_axis(_values(chart, lines, points), chart.unit, from_zero=chart.from_zero)
    grid = "".join(f"M0 {top}H{WIDTH}" for top, _ in y.ticks())
    field = _band_areas(facts, x) if chart.stages else []
    field += [f'<path class="grid" d="{grid}"/>', *_gap_areas(x)]
    for line in reversed(lines):
        field += _line_paths(line, points[line.series], x, y)
    field += [_level(level, facts, x, y) for level in chart.levels]
    field += _marks(chart, facts, x, y)
    hidden = points.get(chart.hidden or "")
    if hidden:
        counted = make_value_axis([one.last for one in hidden], "count", from_zero=True)
        d = _line_path(hidden, "last", x, counted)
        field.append(f'<path class="unseen" data-top="{counted.top!r}" d="{d}"/>')
    return (
        f'<figure class="chart{" tall" if chart.wide else ""}" data-unit="{chart.unit}" '
        f'data-bottom="{y.bottom!r}" data-top="{y.top!r}" data-fixed="{int(chart.from_zero)}">'
        f"<figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.words)}</p>{_keys(chart, lines, facts)}"
        f'</figcaption><div class="plot" tabindex="0" role="group" aria-label="{_label(chart, lines, points)}">'
        f"{_stage_names(chart, facts, x)}{_y_axis(y)}"
        f'<svg class="field" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(field)}</svg>{_x_axis(x)}</div>{_table(chart, lines, points)}</figure>"
    )


def _values(chart: Chart, lines: Sequence[Line], points: Points) -> list[float]:
    values = [level.value for level in chart.levels]
    for line in lines:
        for point in points[line.series]:
            ends = (point.low, point.high) if line.band else (_pick_value(point, line.pick),)
            values.extend(ends)
    return values


def _gap_areas(x: TimeAxis) -> list[str]:
    """All pauses in one path, and pauses after a kill in another."""
    width, found = max(1, round(x.gap_width)), []
    for kind, killed in (("gap", False), ("gap killed", True)):
        lefts = [x.place(gap.at_seconds, gap.session - 1) for gap in x.gaps if gap.killed is killed]
        d = "".join(f"M{left} 0h{width}v{HEIGHT}h-{width}z" for left in lefts)
        found += [f'<path class="{kind}" d="{d}"/>'] if d else []
    return found


def _band_places(facts: RunFacts, x: TimeAxis) -> list[tuple[str, int, int]]:
    """Name, left and right of every stage."""
    places = []
    for band in facts.bands:
        session = max(
            (one.number for one in facts.sessions if one.from_seconds <= band.from_seconds),
            default=0,
        )
        left, right = (x.place(t, session) for t in (band.from_seconds, band.to_seconds))
        places.append((band.name, left, right))
    return places


def _band_areas(facts: RunFacts, x: TimeAxis) -> list[str]:
    return [
        f'<rect class="stage {_stage_class(name, facts)}" x="{left}" y="0" width="{right - left}" '
        f'height="{HEIGHT}"><title>{escape(name)}</title></rect>'
        for name, left, right in _band_places(facts, x)
        if right > left
    ]


def _stage_names(chart: Chart, facts: RunFacts, x: TimeAxis) -> str:
    if not chart.stages:
        return ""
    texts = "".join(
        f'<text data-left="{left}" data-right="{right}" x="{left / WIDTH:.2%}" y="11" dx="5">'
        f"{escape(name)}</text>"
        for name, left, right in _band_places(facts, x)
        if right - left > _WIDE_BAND * WIDTH
    )
    return f'<svg class="stages" aria-hidden="true">{texts}</svg>'


def _stage_class(name: str, facts: RunFacts) -> str:
    """The style class of a stage; two colours take turns where none has a meaning."""
    names = list(dict.fromkeys(one.name for one in facts.bands if one.name not in _STAGE_CLASSES))
    return _STAGE_CLASSES.get(name) or f"n{names.index(name) % 2}"


def _line_paths(line: Line, points: Sequence[Point], x: TimeAxis, y: ValueAxis) -> list[str]:
    found = []
    if line.area:
        found.append(
            f'<path class="area {line.colour}" d="{_area_path(points, line.pick, x, y)}"/>'
        )
    if line.band and (shade := _band_path(points, x, y)):
        found.append(f'<path class="shade {line.colour}" d="{shade}"/>')
    d = _line_path(points, line.pick, x, y)
    found.append(f'<path class="line {line.colour}" data-name="{escape(line.name)}" d="{d}"/>')
    if len(points) <= (_MOST_DOTS if line.dots else _FEW_POINTS):
        found.append(
            f'<path class="dots {line.colour}" d="{_dots_path(points, line.pick, x, y)}"/>'
        )
    return found


def _level(level: Level, facts: RunFacts, x: TimeAxis, y: ValueAxis) -> str:
    top, left, right = y.place(level.value), 0, WIDTH
    if level.session is not None:
        own = next(one for one in facts.sessions if one.number == level.session)
        left, right = (x.place(t, own.number) for t in (own.from_seconds, own.to_seconds))
    return f'<path class="level" d="M{left} {top}l{right - left} 0"/>'


def _marks(chart: Chart, facts: RunFacts, x: TimeAxis, y: ValueAxis) -> list[str]:
    """Alerts as vertical lines, the forecast as a dotted one."""
    if not chart.stages:
        return []
    last = max((one.number for one in facts.sessions), default=0)
    found = [
        f'<path class="alert {stage if stage in _ALERTS else "note"}" '
        f'd="M{x.place(seconds, last)} 0V{HEIGHT}"/>'
        for seconds, stage in facts.alerts
    ]
    if chart.forecast is not None:
        at, seen = chart.forecast
        start = seen.reaches_bytes - seen.bytes_per_second * seen.seconds
        left, right = (x.place(t, last) for t in (at, at + min(seen.seconds, 1e9)))
        d = f"M{left} {y.place(start)}L{right} {y.place(seen.reaches_bytes)}"
        found.append(f'<path class="forecast" d="{d}"/>')
    return found


def _keys(chart: Chart, lines: Sequence[Line], facts: RunFacts) -> str:
    keys = [_key("line", line.colour, line.name, "") for line in lines]
    levels = {level.name: level.value for level in chart.levels}
    keys += [
        _key("level", "", name, value_words(value, chart.unit)) for name, value in levels.items()
    ]
    if chart.stages and facts.alerts.count:
        keys.append(_key("alert", "", "alert", ""))
    if chart.forecast is not None and chart.stages:
        keys.append(_key("forecast", "", "forecast (predicted)", ""))
    if chart.stages and len(list(facts.sessions)) > 1:
        keys.append(_key("gap", "", "pause", ""))
    return f'<ul class="keys">{"".join(keys)}</ul>'


def _key(kind: str, colour: str, name: str, value: str) -> str:
    d = "M9 0V10" if kind == "alert" else "M1 5H17"
    drawn = f'<path class="{kind} {colour}" d="{d}"/>'
    if kind == "gap":
        drawn = '<path class="gap" d="M5 0h7v10h-7z"/>'
    sample = f'<svg width="18" height="10" aria-hidden="true">{drawn}</svg>'
    shown = f'<output data-of="{escape(name)}">{escape(value)}</output>'
    return f"<li>{sample}<span>{escape(name, 80)}</span> {shown}</li>"


def _y_axis(y: ValueAxis) -> str:
    texts = "".join(
        f'<text x="100%" y="{top / HEIGHT:.2%}" dy=".32em">{escape(words)}</text>'
        for top, words in y.ticks()
    )
    return f'<svg class="y" aria-hidden="true">{texts}</svg>'


def _x_axis(x: TimeAxis) -> str:
    """Every second tick is hidden on a narrow screen."""
    ticks = x.ticks()
    texts = "".join(
        f'<text class="{"odd" if n % 2 and len(ticks) > 4 else "even"}" x="{left / WIDTH:.2%}" y="14">'
        f"{escape(words)}</text>"
        for n, (left, words) in enumerate(ticks)
    )
    return f'<svg class="x" aria-hidden="true">{texts}</svg>'


def _label(chart: Chart, lines: Sequence[Line], points: Points) -> str:
    """The chart in a sentence, for screen readers."""
    parts = []
    for line in lines:
        low = min(point.low for point in points[line.series])
        high = max(point.high for point in points[line.series])
        last = points[line.series][-1].last
        low_words, high_words, last_words = (
            value_words(one, chart.unit) for one in (low, high, last)
        )
        parts.append(f"{line.name} from {low_words} to {high_words}, in the end {last_words}")
    keys = "Arrow keys move the cursor, plus and minus zoom, 0 shows the whole run."
    return escape(f"{chart.title}: {'; '.join(parts)}. {keys}", 1200)


def _table(chart: Chart, lines: Sequence[Line], points: Points) -> str:
    """Some of the values, evenly spaced, as a table."""
    body = []
    for line in lines:
        own = points[line.series]
        step = max(1, -(-len(own) // _TABLE_ROWS))
        chosen = [*own[::step], *([own[-1]] if (len(own) - 1) % step else [])]
        body += [
            f"<tr><td>{format_seconds(point.seconds)}</td><td>{escape(line.name, 80)}</td>"
            f"<td>{value_words(_pick_value(point, line.pick), chart.unit)}</td></tr>"
            for point in chosen
        ]
    head = "<tr><th>time of work</th><th>series</th><th>value</th></tr>"
    return (
        f"<details><summary>as a table</summary><table><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></details>"
    )


def _line_path(points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis) -> str:
    """A line, broken between sessions. A single point is a dot."""
    return "".join(map(_polyline, _places(points, pick, x, y)))


def _dots_path(points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis) -> str:
    """Every point as a dot: a line of no length with a round end."""
    return "".join(
        f"M{left} {top}h0" for session in _places(points, pick, x, y) for left, top in session
    )


def _area_path(points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis) -> str:
    """The area under the line."""
    parts = []
    for places in _places(points, pick, x, y):
        if len(places) > 1:
            parts.append(f"{_polyline([(places[0][0], HEIGHT), *places])}V{HEIGHT}z")
    return "".join(parts)


def _band_path(points: Sequence[Point], x: TimeAxis, y: ValueAxis) -> str:
    """The band from the lowest to the highest value of every point; empty if the two are always equal."""
    if all(point.low == point.high for point in points):
        return ""
    highs = _places(points, "high", x, y)
    lows = _places(points, "low", x, y)
    return "".join(
        f"{_polyline([*high, *reversed(low)])}z"
        for high, low in zip(highs, lows, strict=True)
        if len(high) > 1
    )


def _pick_value(point: Point, pick: Pick) -> float:
    """The value that a chart shows for the point."""
    match pick:
        case "low":
            return point.low
        case "high":
            return point.high
        case "last":
            return point.last
        case "mean":
            return point.mean


def _places(
    points: Sequence[Point], pick: Pick, x: TimeAxis, y: ValueAxis
) -> Iterator[list[Place]]:
    """Places of the points, session by session."""
    for session, group in groupby(points, key=lambda point: point.session):
        yield [
            (x.place(point.seconds, session), y.place(_pick_value(point, pick))) for point in group
        ]


def _polyline(places: Sequence[Place]) -> str:
    left, top = places[0]
    if len(places) == 1:
        return f"M{left} {top}h0"
    moves = "".join(
        _pair(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(places)
    )
    return f"M{left} {top}l{moves.lstrip()}"


def _pair(right: int, down: int) -> str:
    """Two numbers; a minus separates them as well as a space does."""
    return f"{'' if right < 0 else ' '}{right}{'' if down < 0 else ' '}{down}"
