"""Memory over time as hand-made SVG: one line for each baseline, the limit dashed, a cross where one died.

No script, nothing fetched, every string escaped, light and dark by the reader's own setting. The page around
it allows its own style alone, by its hash, and draws it twice, wide and for a phone: small text is unreadable.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.report.page.markup import coded
from lowtide.report.results import say
from lowtide.storage.publish import write_atomically
from lowtide.units import format_bytes, format_seconds

TableText = tuple[str, Sequence[str], Sequence[Sequence[str]]]
CurveText = tuple[str, str, Sequence[tuple[float, int]], str, bool, bool]
"""Panel, name, points, note, whether it died, whether it is ours."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 40, 34
_HEADROOM = 1.1
_LIMIT_TEXT = "limit of the box"
_TICK_WIDTH = 76
_CROSS = 6
_ROW_HEIGHT = 20
"""Height of a row of the legend."""
_OURS = 0
"""The colour that is lowtide's in every picture."""
_LIGHT = ("#1a7f37", "#8250df", "#bc4c00", "#0969da", "#9a6700", "#bf3989", "#1b7c83")
_DARK = ("#3fb950", "#a371f7", "#f0883e", "#58a6ff", "#d29922", "#f778ba", "#56d4dd")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """One way's memory; those of one panel share its axes."""

    panel: str
    name: str
    points: Sequence[tuple[float, int]]
    """Seconds and bytes, as sampled."""
    died: bool = False
    note: str = ""
    """How it ended, shown beside its name."""
    ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The rectangle that curves are drawn in, from zero to the maximum of both axes."""

    left: float
    right: float
    top: float
    floor: float
    most_seconds: float
    most_bytes: float

    def place(self, seconds: float, size_bytes: float) -> tuple[float, float]:
        """Where a sample lies in the picture."""
        across = seconds / self.most_seconds if self.most_seconds else 0.0
        x = self.left + (self.right - self.left) * across
        return x, self.floor - (self.floor - self.top) * size_bytes / self.most_bytes


def check_picture_file(path: Path) -> None:
    """Refuse before the work what cannot be written after it: a file is made beside it, and removed."""
    if path.suffix.lower() not in (".html", ".svg"):
        raise UsageError(
            f"{path} is neither a page nor a picture", remedy="pass `--out FILE.html` or FILE.svg"
        )
    remedy = "pass an `--out` in a folder that exists and takes files"
    trial = path.with_name(
        f".{path.name}.{os.getpid()}.tmp"
    )  # as long as the name that is used then
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
    curves: Sequence[CurveText],
    limit_bytes: int,
    rows: Sequence[tuple[str, str]],
    tables: Sequence[TableText],
    remarks: Sequence[str],
) -> None:
    """Write it, and say where."""
    drawn = [
        MemoryCurve(panel=panel, name=name, points=points, note=note, died=died, ours=ours)
        for panel, name, points, note, died, ours in curves
    ]
    write_picture(path, drawn, limit_bytes, rows, tables, remarks)
    say(f"picture: {path}", err=True)


def write_picture(
    path: Path,
    curves: Sequence[MemoryCurve],
    limit_bytes: int,
    rows: Sequence[tuple[str, str]],
    tables: Sequence[TableText],
    remarks: Sequence[str],
) -> None:
    """A page with picture and tables, or the picture alone, by the file's name."""
    if path.suffix.lower() == ".svg":
        text = draw_memory(curves, limit_bytes, width=640)
    else:
        text = make_page(curves, limit_bytes, rows, tables, remarks)
    write_atomically(path, text.encode())


def draw_memory(curves: Sequence[MemoryCurve], limit_bytes: int, *, width: int) -> str:
    """The picture as a file of its own, style included."""
    return _svg(curves, limit_bytes, width, f"<style>{_style('svg')}</style>") + "\n"


def make_page(
    curves: Sequence[MemoryCurve],
    limit_bytes: int,
    rows: Sequence[tuple[str, str]],
    tables: Sequence[TableText],
    remarks: Sequence[str],
) -> str:
    """One HTML file with nothing outside it."""
    style = _style("svg") + _PAGE_STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    said = "".join(f"<li>{coded(remark, 2000)}</li>" for remark in remarks)
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>lowtide compare</title><style>{style}</style></head><body><main>",
            f"<h1>The same text, the same box of {escape(_short(limit_bytes))}</h1><dl>{facts}</dl>",
            f'<div class="wide">{_svg(curves, limit_bytes, 820)}</div>',
            f'<div class="narrow">{_svg(curves, limit_bytes, 380)}</div>',
            *(_table(*table) for table in tables),
            f"<ul>{said}</ul></main></body></html>",
            "",
        ]
    )


def _svg(curves: Sequence[MemoryCurve], limit_bytes: int, width: int, style: str = "") -> str:
    shown = [curve for curve in curves if curve.points]
    names = list(dict.fromkeys(curve.panel for curve in shown))
    parts: list[str] = []
    top = 0.0
    for name in names:
        members = [curve for curve in shown if curve.panel == name]
        drawn, height = _panel(name, members, limit_bytes, width, top)
        parts += drawn
        top += height
    title = f"Private memory over time in a box of {_short(limit_bytes)}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {max(top, 40):.0f}" role="img"'
    return "\n".join(
        [
            f"{head} aria-label={_quoted(title)}><title>{escape(title)}</title>{style}",
            f'<rect class="ground" width="{width}" height="{max(top, 40):.0f}"/>',
            *parts,
            "</svg>",
        ]
    )


def _panel(
    name: str, curves: list[MemoryCurve], limit_bytes: int, width: int, top: float
) -> tuple[list[str], float]:
    """What is drawn, and how high it is."""
    floor = top + _TOP + max(230.0, 0.36 * width)
    plot = Plot(
        left=_LEFT,
        right=width - _RIGHT,
        top=top + _TOP,
        floor=floor,
        most_seconds=max(curve.points[-1][0] for curve in curves) * 1.02,
        most_bytes=_HEADROOM * max(limit_bytes, *(_peak(curve) for curve in curves)),
    )
    colours = _colours(curves)
    title = f"Private memory: {name}"
    parts = [_text(12, top + 22, title, "title"), *_grid(plot, limit_bytes)]
    drawn = list(zip(curves, colours, strict=True))
    for curve, colour in sorted(drawn, key=lambda pair: pair[0].ours):
        parts += _curve(plot, curve, colour)
    y = floor + _BOTTOM
    for curve, colour in sorted(drawn, key=lambda pair: -_peak(pair[0])):
        y += _ROW_HEIGHT
        text = f"{curve.name}, {curve.note}" if curve.note else curve.name
        parts.append(_line(12, y - 5, 34, y - 5, f"curve c{colour}"))
        parts += [_end(23, y - 5, curve, colour), _text(42, y, text, f"t{colour}")]
    return parts, y + 10 - top


def _peak(curve: MemoryCurve) -> int:
    return max(size for _, size in curve.points)


def _colours(curves: list[MemoryCurve]) -> list[int]:
    others = iter(range(_OURS + 1, len(_LIGHT) * len(curves) + 1))
    return [_OURS if c.ours else 1 + (next(others) - 1) % (len(_LIGHT) - 1) for c in curves]


def _grid(plot: Plot, limit_bytes: int) -> list[str]:
    parts = []
    for quarter in range(4):
        y = plot.place(0, limit_bytes * quarter / 4)[1]
        parts.append(_line(plot.left, y, plot.right, y, "grid" if quarter else "axis"))
        parts.append(_text(plot.left - 8, y + 5, _short(limit_bytes * quarter // 4), "", "end"))
    step = _time_step(plot.most_seconds * _TICK_WIDTH / (plot.right - plot.left))
    for count in range(int(plot.most_seconds / step) + 1):
        x = plot.place(count * step, 0)[0]
        parts.append(_line(x, plot.floor, x, plot.floor + 5, "axis"))
        anchor = "end" if x > plot.right - 20 else "middle"
        parts.append(_text(x, plot.floor + 21, _time(count * step, plot.most_seconds), "", anchor))
    y = plot.place(0, limit_bytes)[1]
    parts.append(_line(plot.left, y, plot.right, y, "limit"))
    parts.append(_text(plot.left - 8, y + 5, _short(limit_bytes), "limit-text", "end"))
    return [*parts, _text(plot.left + 4, y - 7, _LIMIT_TEXT, "limit-text")]


def _curve(plot: Plot, curve: MemoryCurve, colour: int) -> list[str]:
    points = [plot.place(*point) for point in curve.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    told = (
        f"{curve.name}: {format_bytes(_peak(curve))} at most, {format_seconds(curve.points[-1][0])}"
    )
    parts = [
        f'<polyline class="curve c{colour}" points="{path}"><title>{escape(told)}</title></polyline>'
    ]
    return [*parts, _end(*points[-1], curve, colour)]


def _end(x: float, y: float, curve: MemoryCurve, colour: int) -> str:
    """A cross where it died, else a dot."""
    if curve.died:
        span = 2 * _CROSS
        arms = f"M{x - _CROSS:.1f} {y - _CROSS:.1f}l{span} {span}m0 -{span}l-{span} {span}"
        return f'<path class="cross c{colour}" d="{arms}"/>'
    return f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<h2>{escape(title)}</h2><div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _time_step(least: float) -> float:
    """The smallest round time that is not below `least`: 1, 2, 5, 10, 20 or 30 seconds, minutes or hours."""
    unit = next((unit for unit in (0.01, 1.0, 60.0) if least <= 30 * unit), 3600.0)
    steps = (digit * unit for digit in (1, 2, 5, 10, 20, 30, 50))
    return next((step for step in steps if step >= least), math.ceil(least / unit) * unit)


def _time(seconds: float, most_seconds: float) -> str:
    """In the unit that suits the whole axis."""
    if most_seconds >= 120:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s"


def _short(size_bytes: int) -> str:
    """`1 GiB`, `256 MiB`, `0`."""
    return format_bytes(size_bytes).replace(".0 ", " ") if size_bytes else "0"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _quoted(text: str) -> str:
    return f'"{escape(text)}"'


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
