"""Bytes per token over vocabulary size, as one SVG: how much a larger vocabulary would bring.

Smaller vocabularies are beginnings of the largest and every merge was counted where it happened, so the whole
curve is known exactly once merges are learnt. Colours are of middle brightness: they read on light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

from lowtide.pipeline.learn_run import Learning
from lowtide.units import format_bytes

PICTURE_NAME = "bytes_per_token.svg"

CURVE_SIZES = 120
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 420, 80, 34, 64, 64
_RIGHT_EDGE, _FLOOR = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
_LEAST_TICKS, _MOST_TICKS = 3, 8
_RADIUS = 4.5
_CLOSEST = 6.0
"""Marks nearer to each other than this hide one another."""
_LETTER_WIDTH, _LINE_HEIGHT = 7.6, 15.0
_GAP = 9.0
"""Between a mark and its label."""
_HEADROOM = 1.1
"""The label of the highest mark stands above it."""
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #6e7781 }
.title { font-size: 15px; font-weight: 600 }
.grid { stroke: #8b949e; stroke-opacity: .25 }
.axis { stroke: #8b949e }
.curve { fill: none; stroke: #218a3f; stroke-width: 2.4; stroke-linejoin: round }
.mark { fill: #218a3f }
.value { fill: #218a3f; font-weight: 600 }
</style>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """From sizes (logarithmic: each doubling is as wide) and rates (from zero: twice is twice as high) to
    places in the picture."""

    smallest: int
    largest: int
    highest_rate: float

    def across(self, size: int) -> float:
        share = math.log(size / self.smallest) / math.log(self.largest / self.smallest)
        return _LEFT + (_RIGHT_EDGE - _LEFT) * share

    def up(self, rate: float) -> float:
        return _FLOOR - (_FLOOR - _TOP) * rate / self.highest_rate


def draw_curve(learning: Learning) -> str:
    """The picture: the curve, a mark at each size asked for, and nothing that another run would change."""
    curve = measure_curve(learning)
    rates = dict(curve)
    smallest, largest = curve[0][0], curve[-1][0]
    scale = _Scale(
        smallest=smallest,
        largest=max(largest, smallest + 1),
        highest_rate=_HEADROOM * max(1.0, *rates.values()),  # 0 where no word was learnt from
    )
    title = "Bytes per token of the training text, by vocabulary size"
    amount = format_bytes(learning.totals.text_bytes)
    points = " ".join(f"{scale.across(size):.1f},{scale.up(rate):.1f}" for size, rate in curve)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>{_STYLE}",
        _text(_LEFT, 26, title, "title"),
        _text(_LEFT, 48, f"Exact: counted over all {amount} of it at every merge, nothing sampled"),
        *_draw_rates(scale),
        *_draw_sizes(scale, learning.first_merged_id),
        f'<polyline class="curve" points="{points}"/>',
        *_draw_marks(scale, [(size, rates[size]) for size in _marked_sizes(learning)]),
        *_draw_shortfall(learning),
    ]
    return "\n".join([*parts, "</svg>", ""])


def measure_curve(learning: Learning) -> list[tuple[int, float]]:
    """Vocabulary sizes and the corpus's bytes per token, ascending: those marked, and others between."""
    text_bytes = learning.totals.text_bytes
    joined = learning.steps["joined"]
    curve, tokens, before = [], text_bytes, 0
    for merges in _merges_shown(learning):
        tokens -= int(joined[before:merges].sum())
        before = merges
        curve.append((learning.first_merged_id + merges, text_bytes / max(1, tokens)))
    return curve


def _merges_shown(learning: Learning) -> list[int]:
    """As far from each other as they will be in the picture, and all that are marked."""
    first, most = learning.first_merged_id, len(learning.steps)
    growth = (first + most) / first
    between = (
        round(first * growth ** (step / (CURVE_SIZES - 1))) - first for step in range(CURVE_SIZES)
    )
    marked = (size - first for size in _marked_sizes(learning))
    return sorted({0, most, *between, *marked})


def _marked_sizes(learning: Learning) -> list[int]:
    """Sizes asked for, as they were learnt, from the largest down; without those that another mark hides."""
    first, most = learning.first_merged_id, len(learning.steps)
    closest = ((first + most) / first) ** (_CLOSEST / (_RIGHT_EDGE - _LEFT))
    sizes = {first + learning.merges_for(size) for size in learning.settings.vocab_size}
    marked: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not marked or size * closest <= marked[-1]:
            marked.append(size)
    return marked


def _draw_rates(scale: _Scale) -> list[str]:
    parts = []
    step = _round_step(scale.highest_rate / 5)
    for count in range(int(scale.highest_rate / step) + 1):
        y = scale.up(count * step)
        parts.append(_line(_LEFT, y, _RIGHT_EDGE, y, "grid" if count else "axis"))
        label = f"{count * step:,.0f}" if step >= 1 else f"{count * step:.1f}"
        parts.append(_text(_LEFT - 10, y + 4, label, anchor="end"))
    turn = f'<g transform="translate(24 {(_TOP + _FLOOR) / 2:.1f}) rotate(-90)">'
    return [*parts, turn + _text(0, 0, "bytes per token", anchor="middle") + "</g>"]


def _draw_sizes(scale: _Scale, first: int) -> list[str]:
    parts = []
    for size in _size_ticks(scale.smallest, scale.largest):
        x = scale.across(size)
        parts.append(_line(x, _FLOOR, x, _FLOOR + 5, "axis"))
        parts.append(_text(x, _FLOOR + 21, f"{size:,}", anchor="middle"))
    specials = first - 256
    others = f" and {specials} special token{'' if specials == 1 else 's'}" if specials else ""
    label = f"vocabulary size in tokens; the curve begins with the 256 bytes{others}"
    return [*parts, _text((_LEFT + _RIGHT_EDGE) / 2, _HEIGHT - 16, label, anchor="middle")]


def _draw_marks(scale: _Scale, rates: Iterable[tuple[int, float]]) -> list[str]:
    parts, marks = [], []
    for size, rate in rates:
        x, y, value = scale.across(size), scale.up(rate), f"{size:,}: {rate:,.2f}"
        marks.append((x, y, value))
        parts.append(
            f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}">'
            f"<title>{escape(value)}</title></circle>"
        )
    return parts + _draw_values(marks)


def _draw_values(marks: list[tuple[float, float, str]]) -> list[str]:
    """A label above and left of each mark, where a rising curve does not come, or below and right where the
    axis is too near. One that would run into another is left to the mark's own title."""
    parts = []
    taken: list[tuple[float, float]] = []
    for x, y, value in marks:
        width = len(value) * _LETTER_WIDTH
        left, base, anchor, at = x - _GAP - width, y - _GAP, "end", x - _GAP
        if left < _LEFT:
            left = at = x + _GAP
            base, anchor = min(y + _GAP + _LINE_HEIGHT, _FLOOR - 6), "start"
        if all(left + width < x0 or abs(base - y0) > _LINE_HEIGHT for x0, y0 in taken):
            taken.append((left, base))
            parts.append(_text(at, base, value, "value", anchor=anchor))
    return parts


def _draw_shortfall(learning: Learning) -> list[str]:
    """What was asked for and is not there, in the corner that a rising curve leaves free."""
    largest = learning.describe(max(learning.settings.vocab_size))
    if largest.tokens == largest.vocab_size:
        return []
    learnt = f"{largest.tokens:,} of {largest.vocab_size:,} tokens were learnt"
    text = f"{learnt}: no other pair comes often enough"
    return [_text(_RIGHT_EDGE - 8, _FLOOR - 14, text, anchor="end")]


def _size_ticks(smallest: int, largest: int) -> list[int]:
    """Round sizes: 500, 1000, 2000, 5000 and so on where some of them fit, whole decades where those are too
    many, and equal steps over less than a decade."""
    for digits in ((1, 2, 5), (1,)):
        sizes = (digit * 10**power for power in range(9) for digit in digits)
        ticks = [size for size in sizes if smallest <= size <= largest]
        if _LEAST_TICKS <= len(ticks) <= _MOST_TICKS:
            return ticks
    step = max(1, int(_round_step((largest - smallest) / 6)))
    return list(range(-(-smallest // step) * step, largest + 1, step))


def _round_step(least: float) -> float:
    """The smallest of …, 0.1, 0.2, 0.5, 1, 2, 5, … that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
