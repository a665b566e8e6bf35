"""Memory over time as an SVG: one line for each program, the limit dashed, a cross where one died.

Light and dark follow the reader's own setting. The page around it allows only its own style, by its hash, and
draws the picture twice, wide and for a phone: small text would be unreadable.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.show.comparison import Table
from lowtide.show.markup import coded, source_hash
from lowtide.show.results import say
from lowtide.storage.publish import write_atomically
from lowtide.svg import (
    Axis,
    MemoryCurve,
    draw_cross,
    draw_dot,
    draw_line,
    draw_polyline,
    draw_svg,
    draw_text,
    escape,
    time_step,
    time_words,
    value_words,
)
from lowtide.units import format_bytes, format_seconds

_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 40, 34
_HEADROOM = 1.1
_TICK_WIDTH = 76
_CROSS = 6
_ROW_HEIGHT = 20
"""Height of a row of the legend."""
_OURS = 0
"""The colour that is lowtide's in every picture."""
_LIGHT = ("#1a7f37", "#8250df", "#bc4c00", "#0969da", "#9a6700", "#bf3989", "#1b7c83")
_DARK = ("#3fb950", "#a371f7", "#f0883e", "#58a6ff", "#d29922", "#f778ba", "#56d4dd")


def check_picture_file(path: Path) -> None:
    """Refuse before the work what could not be written after it. A trial file is made and removed."""
    if path.suffix.lower() not in (".html", ".svg"):
        raise UsageError(
            f"{path} is neither a page nor a picture", remedy="pass `--out FILE.html` or FILE.svg"
        )
    remedy = "pass an `--out` in a folder that exists and takes files"
    # As long as the name that is used for writing: a longer one may be refused.
    trial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder", remedy=remedy)
        trial.touch()
        trial.unlink()
    except OSError as cause:
        reason = (cause.strerror or str(cause)).lower()
        raise UsageError(f"{path} cannot be written: {reason}", remedy=remedy) from cause


def show_picture(
    path: Path,
    curves: Sequence[MemoryCurve],
    limit_bytes: int,
    rows: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    remarks: Sequence[str],
) -> None:
    """Write the picture and print its path."""
    write_picture(path, curves, limit_bytes, rows, tables, remarks)
    say(f"picture: {path}", err=True)


def write_picture(
    path: Path,
    curves: Sequence[MemoryCurve],
    limit_bytes: int,
    rows: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    remarks: Sequence[str],
) -> None:
    """Write a page with picture and tables, or an SVG alone if the file's name says so."""
    if path.suffix.lower() == ".svg":
        text = draw_memory(curves, limit_bytes, width=640)
    else:
        text = make_page(curves, limit_bytes, rows, tables, remarks)
    write_atomically(path, text.encode())


def draw_memory(curves: Sequence[MemoryCurve], limit_bytes: int, *, width: int) -> str:
    """The picture as a file of its own, style included."""
    return _draw_panels(curves, limit_bytes, width, f"<style>{_style('svg')}</style>") + "\n"


def make_page(
    curves: Sequence[MemoryCurve],
    limit_bytes: int,
    rows: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    remarks: Sequence[str],
) -> str:
    """One HTML file that needs nothing outside it."""
    style = _style("svg") + _PAGE_STYLE
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{coded(value, 2000)}</dd>" for name, value in rows)
    items = "".join(f"<li>{coded(remark, 2000)}</li>" for remark in remarks)
    policy = (
        f"default-src 'none'; style-src {source_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    limit = value_words(limit_bytes, "bytes", tick=True)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>lowtide compare</title><style>{style}</style></head><body><main>",
            f"<h1>The same text, the same box of {limit}</h1><dl>{facts}</dl>",
            f'<div class="wide">{_draw_panels(curves, limit_bytes, 820)}</div>',
            f'<div class="narrow">{_draw_panels(curves, limit_bytes, 380)}</div>',
            *(_table(*table) for table in tables),
            f"<ul>{items}</ul></main></body></html>",
            "",
        ]
    )


def _draw_panels(
    curves: Sequence[MemoryCurve], limit_bytes: int, width: int, style: str = ""
) -> str:
    """All panels below each other."""
    panels: dict[str, list[MemoryCurve]] = {}
    for curve in curves:
        if curve.points:
            panels.setdefault(curve.panel, []).append(curve)
    parts: list[str] = []
    top = 0.0
    for name, members in panels.items():
        parts.append(draw_text(12, top + 22, f"Private memory: {name}", "title"))
        drawn, top = _draw_panel(members, limit_bytes, width, top + _TOP)
        parts += drawn
    height = round(max(top, 40))
    title = escape(
        f"Private memory over time in a box of {value_words(limit_bytes, 'bytes', tick=True)}"
    )
    title_and_style = f"<title>{title}</title>{style}"
    ground = f'<rect class="ground" width="{width}" height="{height}"/>'
    label = f' aria-label="{title}"'
    return draw_svg(width, height, [title_and_style, ground, *parts], label)


def _draw_panel(
    curves: list[MemoryCurve], limit_bytes: int, width: int, top: float
) -> tuple[list[str], float]:
    """Axes, curves and legend, and where they end below."""
    floor = top + max(230.0, 0.36 * width)
    most_seconds = max(curve.points[-1][0] for curve in curves) * 1.02
    most_bytes = _HEADROOM * max(limit_bytes, *(_peak(curve) for curve in curves))
    x = Axis(low=0, high=most_seconds, start=_LEFT, end=width - _RIGHT)
    y = Axis(low=0, high=most_bytes, start=floor, end=top)
    parts = _draw_grid(x, y, limit_bytes)
    coloured = _colour(curves)
    for curve, colour in sorted(coloured, key=lambda pair: pair[0].ours):
        places = [(x.place(seconds), y.place(used)) for seconds, used in curve.points]
        duration = format_seconds(curve.points[-1][0])
        title = f"{curve.name}: {format_bytes(_peak(curve))} at most, {duration}"
        parts.append(draw_polyline(places, f"curve c{colour}", title))
        parts.append(_draw_end(*places[-1], curve, colour))
    legend = floor + _BOTTOM
    for curve, colour in sorted(coloured, key=lambda pair: -_peak(pair[0])):
        legend += _ROW_HEIGHT
        words = f"{curve.name}, {curve.note}" if curve.note else curve.name
        parts.append(draw_line(12, legend - 5, 34, legend - 5, f"curve c{colour}"))
        parts.append(_draw_end(23, legend - 5, curve, colour))
        parts.append(draw_text(42, legend, words, f"t{colour}"))
    legend += _ROW_HEIGHT
    parts.append(draw_line(12, legend - 5, 34, legend - 5, "limit"))
    parts.append(draw_text(42, legend, "limit of the box", "limit-text"))
    return parts, legend + 10


def _peak(curve: MemoryCurve) -> int:
    return max(size for _, size in curve.points)


def _colour(curves: list[MemoryCurve]) -> list[tuple[MemoryCurve, int]]:
    """Every curve with the number of its colour; the others take turns with all but lowtide's."""
    others = itertools.cycle(range(1, len(_LIGHT)))
    return [(curve, _OURS if curve.ours else next(others)) for curve in curves]


def _draw_grid(x: Axis, y: Axis, limit_bytes: int) -> list[str]:
    parts = []
    for quarter in range(4):
        height, size = y.place(limit_bytes * quarter / 4), limit_bytes * quarter // 4
        parts.append(draw_line(x.start, height, x.end, height, "grid" if quarter else "axis"))
        words = value_words(size, "bytes", tick=True)
        parts.append(draw_text(x.start - 8, height + 5, words, anchor="end"))
    step = time_step(x.high, (x.end - x.start) / _TICK_WIDTH)
    for count in range(int(x.high / step) + 1):
        place = x.place(count * step)
        parts.append(draw_line(place, y.start, place, y.start + 5, "axis"))
        anchor = "end" if place > x.end - 20 else "middle"
        parts.append(draw_text(place, y.start + 21, time_words(count * step), anchor=anchor))
    height = y.place(limit_bytes)
    limit = value_words(limit_bytes, "bytes", tick=True)
    return [
        *parts,
        draw_line(x.start, height, x.end, height, "limit"),
        draw_text(x.start - 8, height + 5, limit, "limit-text", anchor="end"),
    ]


def _draw_end(x: float, y: float, curve: MemoryCurve, colour: int) -> str:
    """A cross where it died, else a dot."""
    if curve.died:
        return draw_cross(x, y, _CROSS, f"cross c{colour}")
    return draw_dot(x, y, 4, f"f{colour}")


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{coded(cell, 2000)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<h2>{escape(title)}</h2><div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _style(root: str) -> str:
    dark = _colour_rules(_DARK, "#0d1117", "#b1bac4", "#ff7b72")
    return (
        f"{root}{{display:block;width:100%;height:auto}}"
        "text{font:14px system-ui,sans-serif}.title{font-size:16px;font-weight:600}"
        ".grid{stroke:#8b949e;stroke-opacity:.25}.axis{stroke:#8b949e}"
        ".limit{stroke-dasharray:7 5;stroke-width:1.6}"
        ".curve,.cross{fill:none;stroke-width:2;stroke-linejoin:round}.curve.c0{stroke-width:3}"
        ".cross{stroke-width:3;stroke-linecap:round}"
        + _colour_rules(_LIGHT, "#ffffff", "#57606a", "#cf222e")
        + f"@media (prefers-color-scheme:dark){{{dark}}}"
    )


def _colour_rules(colours: tuple[str, ...], ground: str, ink: str, limit: str) -> str:
    rules = [
        f"text{{fill:{ink}}}.ground{{fill:{ground}}}",
        f".limit{{stroke:{limit}}}.limit-text{{fill:{limit}}}",
    ]
    for number, colour in enumerate(colours):
        rules.append(f".c{number}{{stroke:{colour}}}.f{number},.t{number}{{fill:{colour}}}")
    return "".join(rules)


_PAGE_STYLE = (
    ":root{color-scheme:light dark}"
    "body{margin:0;background:#fff;color:#1f2328;font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:860px;margin:0 auto;padding:16px}h1{font-size:1.4rem}h2{font-size:1.1rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px}dt{color:#57606a}"
    "dd{margin:0;min-width:0}h1,h2,dd,li{overflow-wrap:anywhere}"
    ".narrow{display:none}.scroll{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:6px 10px;border-bottom:1px solid #8b949e55;text-align:right;vertical-align:top}"
    "th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}"
    "td:first-child,td:nth-child(n+3){white-space:nowrap}td:nth-child(2){min-width:9em}"
    "@media (max-width:600px){.wide{display:none}.narrow{display:block}main{padding:12px}"
    "dl{grid-template-columns:1fr}}"
    "@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}dt{color:#9198a1}}"
    "@media print{.narrow{display:none}.wide{display:block}.scroll{overflow:visible}}"
)
