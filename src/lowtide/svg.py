"""SVG for every chart: text that cannot act, elements, and axes with round ticks.

Pictures are written by hand, without a script and with nothing fetched from anywhere. Whatever a name or a
log holds, a browser shows it as text and does nothing else with it.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lowtide.units import format_bytes, format_count

Unit: TypeAlias = Literal["bytes", "bytes/s", "count", "count/s", "number", "percent"]

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\uffff\ud800-\udfff]"
)
"""Control characters, those that turn the direction of what follows, and those that no file may hold."""
_CUT = " …"
_UNDER_AN_HOUR = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
_TIME_STEPS = (*_UNDER_AN_HOUR, 3600, 7200, 10_800, 21_600, 43_200)
_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A straight line from values to places in a picture; for a logarithmic axis, pass logarithms."""

    low: float
    high: float
    start: float
    """Place of `low`."""
    end: float
    """Place of `high`."""

    def place(self, value: float) -> float:
        """Where the value lies; `start` on an axis of no length."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Memory of one process tree over time; the curves of one panel share their axes."""

    panel: str
    name: str
    points: Sequence[tuple[float, int]]
    """Seconds and bytes, as sampled."""
    died: bool = False
    note: str = ""
    """How it ended, shown beside its name."""
    ours: bool = False
    """Drawn on top, in lowtide's colour."""


def escape(text: str, most_bytes: int = 400) -> str:
    """The text, or its beginning, as HTML of at most `most_bytes`. Safe in quoted attributes too."""
    whole = _escaped(text[:most_bytes])
    if len(text) <= most_bytes and len(whole.encode()) <= most_bytes:
        return whole
    left_bytes, parts = most_bytes - len(_CUT.encode()), []
    for character in text:
        part = _escaped(character)
        left_bytes -= len(part.encode())
        if left_bytes < 0:
            break
        parts.append(part)
    return "".join(parts) + _CUT


def _escaped(text: str) -> str:
    visible = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return html.escape(visible, quote=True)


def draw_svg(width: int, height: int, parts: Iterable[str], attributes: str = "") -> str:
    """A whole picture, which grows and shrinks with its place on a page."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"{attributes}>'
    return "\n".join([head, *parts, "</svg>"])


def draw_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line of the style class `kind`."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def draw_text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    """Words that begin, end or are centred at `x`, by the anchor."""
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def draw_polyline(places: Sequence[tuple[float, float]], kind: str, title: str = "") -> str:
    """A line through all places; its title is shown by the cursor."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    head = f'<polyline class="{kind}" points="{points}"'
    return f"{head}><title>{escape(title)}</title></polyline>" if title else f"{head}/>"


def draw_dot(x: float, y: float, radius: float, kind: str, title: str = "") -> str:
    """A filled circle; its title is shown by the cursor."""
    head = f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
    return f"{head}><title>{escape(title)}</title></circle>" if title else f"{head}/>"


def draw_cross(x: float, y: float, arm: int, kind: str) -> str:
    """Two strokes that meet at the place, each `arm` long on either side."""
    span = 2 * arm
    strokes = f"M{x - arm:.1f} {y - arm:.1f}l{span} {span}m0 -{span}l-{span} {span}"
    return f'<path class="{kind}" d="{strokes}"/>'


def round_step(least: float) -> float:
    """The smallest of …, 0.1, 0.2, 0.5, 1, 2, 5, … that is not below `least`; 1 if `least` is not positive."""
    if not least > 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))


def time_step(seconds: float, most_ticks: float) -> float:
    """The distance of ticks on a time axis: a round number of seconds, minutes, hours or days."""
    wanted = seconds / most_ticks
    if seconds < 2:
        return round_step(wanted)
    if wanted > _DAY:
        return round_step(wanted / _DAY) * _DAY
    return next((step for step in _TIME_STEPS if step >= wanted), _DAY)


def time_words(seconds: float) -> str:
    """`0`, `0.25s`, `40s`, `5m`, `1h 30m`, `2d`, `2d 12h`: as short as an axis needs."""
    if seconds and seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = [
        (whole // _DAY, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "m"),
        (whole % 60, "s"),
    ]
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "0"


def value_step(span: float, unit: Unit) -> float:
    """The distance of ticks: 1, 2 or 5 times a power of ten, for sizes a power of two."""
    if unit.startswith("bytes"):
        return 2.0 ** max(0, math.ceil(math.log2(span / 5)) if span > 0 else 0)
    return round_step(span / 6)


def value_words(value: float, unit: Unit, *, tick: bool = False) -> str:
    """A value with its unit; a tick without needless digits."""
    if unit.startswith("bytes"):
        words = format_bytes(round(value))
        words = words.replace(".0 ", " ") if tick else words
        return words + "/s" if unit == "bytes/s" else words
    if unit.startswith("count"):
        is_whole = abs(value) >= 100 or value == round(value)
        words = format_count(round(value)) if is_whole else f"{value:.3g}"
        words = words.replace(".0", "") if tick else words
        return words + "/s" if unit == "count/s" else words
    words = _digits(value, 6 if tick else 4)
    return f"{words} %" if unit == "percent" else words


def _digits(value: float, digits: int) -> str:
    """`3.142`, `0.0006`, and `6e-5` for what is smaller."""
    if value == 0 or abs(value) >= 1e-4:
        return f"{value:.{digits}g}"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"
