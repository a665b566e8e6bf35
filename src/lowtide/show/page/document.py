"""The page: one HTML file with its style and its script inside, and a policy that allows nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from lowtide.show.markup import coded, embedded_json, isolated, source_hash
from lowtide.show.page.charts import chart_points, choose_charts
from lowtide.show.page.facts import Happening, RunFacts
from lowtide.show.page.figures import figure_html
from lowtide.show.page.key_figures import KeyFigure, key_figures
from lowtide.show.page.scales import HEIGHT, WIDTH, TimeAxis, make_time_axis
from lowtide.show.page.verdict import Outcome
from lowtide.show.page.work_clock import clock_text
from lowtide.svg import escape
from lowtide.units import format_bytes, format_seconds

MOST_PAGE_BYTES = 300_000
GENERATOR = b'<meta name="generator" content="lowtide">'
"""Marks a page of ours: it stands near the beginning of each, and of no other file."""
_HERE = Path(__file__).parent
_MOST_SETTINGS = 100
_MOST_REMEDIES = 3
_MEASURED = (
    "Every figure was measured during the run, unless it says predicted. Times are time of work, "
    "without pauses; clocks are UTC."
)
_KEYBOARD = (
    "Charts: point or tap to read, drag to zoom, double-click for the whole run. With the keyboard: Tab to a "
    "chart, ← → move (with Shift, further), + − zoom, 0 whole run, Esc lets go."
)
_KINDS = {
    "tokenize": "Tokenizing",
    "train-tokenizer": "Training a tokenizer",
    "export": "Exporting tokens",
    "train": "Training a model",
    "watch": "A watched command",
}


def page_html(facts: RunFacts, name: str, outcome: Outcome) -> str:
    """The whole page. The same facts give the same page, on any machine and at any time."""
    style, script = (_source(file) for file in ("style.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    axis = make_time_axis(facts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{GENERATOR.decode()}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(name, 200)}: lowtide report</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        f"{_header(facts, name, outcome)}\n<main>\n{''.join(_sections(facts, axis))}</main>\n{_footer(facts)}\n"
        f'<script type="application/json" id="axis">{_axis_json(facts, axis)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _source(name: str) -> str:
    """A source file of the page, with newlines as a browser hashes them, however the file was checked out."""
    return (_HERE / name).read_text(encoding="utf-8")


def _header(facts: RunFacts, name: str, outcome: Outcome) -> str:
    version = f" · lowtide {escape(facts.version, 60)}" if facts.version else ""
    kind = _KINDS.get(facts.kind) or "A run"
    details = ""
    if outcome.problem:
        details += f'<p class="said"><b>problem</b> {isolated(outcome.problem, 2000)}</p>'
    for remedy in outcome.remedies[:_MOST_REMEDIES]:
        details += f'<p class="said"><b>remedy</b> <bdi>{coded(remedy, 2000)}</bdi></p>'
    when = ""
    if facts.dated:
        when = f'<p class="when">{clock_text(facts.started_at)} to {clock_text(facts.last_at)}</p>'
    if facts.unread_lines:
        details += f'<p class="said"><b>log</b> {facts.unread_words}</p>'
    command = ""
    if facts.command:
        how = f", measured by {escape(facts.how, 60)}" if facts.how else ""
        command = (
            f'<p class="command"><code>{isolated(" ".join(facts.command), 1500)}</code>{how}</p>'
        )
    return (
        f'<header><p class="kind">{kind}{version}</p><h1>{isolated(name, 300)}</h1>{command}'
        f'<p class="verdict {outcome.state}"><strong>{escape(outcome.word)}</strong> '
        f"{coded(outcome.sentence, 1500)}</p>"
        f'{details}{when}<dl class="figures">{"".join(map(_key_figure, key_figures(facts)))}</dl></header>'
    )


def _key_figure(figure: KeyFigure) -> str:
    bar = ""
    if figure.share is not None:
        width = round(100 * min(max(figure.share, 0.0), 1.0), 1)
        over = " over" if figure.share > 1 else ""
        bar = (
            '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
            '<rect class="whole" width="100" height="1"/>'
            f'<rect class="part{over}" width="{width}" height="1"/></svg>'
        )
    return (
        f"<div><dt>{escape(figure.name)}</dt><dd><b>{escape(figure.value)}</b>{bar}"
        f"<span>{escape(figure.words)}</span></dd></div>"
    )


def _sections(facts: RunFacts, axis: TimeAxis) -> Iterator[str]:
    charts = choose_charts(facts)
    if charts:
        points = chart_points(facts, charts)
        figures = "\n".join(figure_html(chart, facts, points, axis) for chart in charts)
        yield f'<section id="charts"><h2>Over time</h2>{_TOOLS}<div class="charts">{figures}</div></section>\n'
    else:
        yield '<section><h2>Over time</h2><p class="quiet">Nothing was measured yet.</p></section>\n'
    yield from _samples(facts)
    yield from _processes(facts)
    yield _events(facts)
    yield _settings(facts)


_TOOLS = (
    '<div class="tools" hidden><button type="button" data-do="in" aria-label="Zoom in">+</button>'
    '<button type="button" data-do="out" aria-label="Zoom out">−</button>'
    '<button type="button" data-do="all">Whole run</button>'
    '<output id="moment" aria-live="polite"></output></div>'
)


def _samples(facts: RunFacts) -> Iterator[str]:
    if not facts.samples.count:
        return
    texts = "".join(
        f"<li><h3>{'A sample' if step is None else f'Step {step:,}'}</h3>"
        f'<p class="sample" dir="auto">{escape(text, 2400)}</p></li>'
        for step, text in facts.samples
    )
    more = _more(facts.samples.left_out, "sample")
    yield f'<section id="samples"><h2>Samples of text</h2><ol class="samples">{texts}</ol>{more}</section>\n'


def _processes(facts: RunFacts) -> Iterator[str]:
    if not facts.peaks.top:
        return
    rows = "".join(
        f"<tr><td>{one.pid}</td><td>{isolated(one.name, 200)}</td>"
        f'<td class="number">{format_bytes(one.private_bytes)}</td></tr>'
        for one in facts.peaks.top
    )
    head = '<tr><th>process</th><th>name</th><th class="number">private memory</th></tr>'
    yield (
        '<section id="processes"><h2>Largest processes at the peak</h2><div class="wide"><table>'
        f"<thead>{head}</thead><tbody>{rows}</tbody></table></div></section>\n"
    )


def _events(facts: RunFacts) -> str:
    happened = sorted([*facts.events, *facts.checkpoints], key=lambda one: one.seconds)
    more = _more(facts.events.left_out, "event") + _more(facts.checkpoints.left_out, "checkpoint")
    head = "<tr><th>time of work</th><th>clock</th><th>event</th><th>details</th></tr>"
    return (
        f'<section id="events"><h2>Events</h2><div class="wide"><table><thead>{head}</thead>'
        f"<tbody>{''.join(map(_event, happened))}</tbody></table></div>{more}</section>\n"
    )


def _event(one: Happening) -> str:
    grave = ' class="grave"' if one.grave else ""
    clock = clock_text(one.at).removesuffix(" UTC") if one.at is not None else ""
    return (
        f'<tr{grave}><td class="number">{format_seconds(one.seconds)}</td><td class="clock">{clock}</td>'
        f"<td>{escape(one.label, 60)}</td><td>{isolated(one.text, 600)}</td></tr>"
    )


def _settings(facts: RunFacts) -> str:
    flat, before = list(_flatten(facts.settings)), dict(_flatten(facts.first_settings))
    if not flat:
        return '<section id="settings"><h2>Settings</h2><p class="quiet">The log names none.</p></section>\n'
    rows = []
    for name, value in flat[:_MOST_SETTINGS]:
        changed = before.get(name, value) != value
        was = (
            f' <span class="quiet">(first {isolated(before[name], 120)})</span>' if changed else ""
        )
        rows.append(f"<tr><th>{isolated(name, 120)}</th><td>{isolated(value, 300)}{was}</td></tr>")
    more = _more(len(flat) - len(rows), "setting")
    return (
        '<section id="settings"><h2>Settings</h2><div class="wide"><table class="settings"><tbody>'
        f"{''.join(rows)}</tbody></table></div>{more}</section>\n"
    )


def _flatten(
    settings: Mapping[str, object], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, str]]:
    """`shape.layers` and `12` out of nested settings."""
    for name, value in settings.items():
        if isinstance(value, dict) and value and depth < 4:
            yield from _flatten(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, str):
            yield f"{prefix}{name}", value
        else:
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)


def _more(count: int, thing: str) -> str:
    plural = "" if count == 1 else "s"
    return (
        f'<p class="quiet">and {count:,} more {thing}{plural}, in the log</p>' if count > 0 else ""
    )


def _footer(facts: RunFacts) -> str:
    counts, notes = facts.counts, []
    if counts.not_finite:
        notes.append(f"{counts.not_finite:,} losses were not finite and are not drawn.")
    if counts.skipped:
        notes.append(f"{counts.skipped:,} steps were skipped.")
    if not facts.dated:
        notes.append("The log has no times; the axis adds up what the steps took.")
    return (
        f"<footer><p>{' '.join(notes)} {_MEASURED} Made from {facts.records:,} records of the run's log "
        f'and nothing else.</p><p class="keyboard">{_KEYBOARD}</p></footer>'
    )


def _axis_json(facts: RunFacts, axis: TimeAxis) -> str:
    """The values that page.js cannot read out of the charts."""
    starts = [
        [
            axis.place(one.from_seconds, one.number),
            one.from_seconds,
            None if one.at is None else round(one.at, 3),
        ]
        for one in facts.sessions
    ]
    found = {
        "width": WIDTH,
        "height": HEIGHT,
        "units": axis.units_per_second,
        "gap": axis.gap_width,
        "sessions": starts,
    }
    return embedded_json(json.dumps(found, allow_nan=False))
