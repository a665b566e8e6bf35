"""Bytes per token over vocabulary size, as one SVG: how much a larger vocabulary would bring.

Smaller vocabularies are prefixes of the largest, and every merge was counted where it happened, so the whole
curve is known exactly once merges are learned. Colours are of middle brightness: they read on light and dark.
"""

from __future__ import annotations

import math

from lowtide.stages.learn_run import Learning
from lowtide.svg import (
    Axis,
    draw_dot,
    draw_line,
    draw_polyline,
    draw_svg,
    draw_text,
    escape,
    round_step,
)
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


def draw_curve(learning: Learning) -> str:
    """The picture: the curve, a mark at each requested size, and nothing that differs between two runs."""
    curve = measure_curve(learning)
    rates = dict(curve)
    smallest, largest = curve[0][0], curve[-1][0]
    # Logarithmic, so that every doubling is as wide as the next.
    sizes = Axis(
        low=math.log(smallest),
        high=math.log(max(largest, smallest + 1)),
        start=_LEFT,
        end=_RIGHT_EDGE,
    )
    # From zero, so that twice the rate is twice as high. The rate is 0 where no word was counted.
    heights = Axis(low=0, high=_HEADROOM * max(1.0, *rates.values()), start=_FLOOR, end=_TOP)
    title = "Bytes per token of the training text, by vocabulary size"
    amount = format_bytes(learning.totals.text_bytes)
    exact = f"Exact: counted over all {amount} of it at every merge, nothing sampled"
    places = [(sizes.place(math.log(size)), heights.place(rate)) for size, rate in curve]
    marks = [
        (sizes.place(math.log(size)), heights.place(rates[size]), f"{size:,}: {rates[size]:,.2f}")
        for size in _marked_sizes(learning)
    ]
    parts = [
        f"<title>{escape(title)}</title>{_STYLE}",
        draw_text(_LEFT, 26, title, "title"),
        draw_text(_LEFT, 48, exact),
        *_draw_rates(heights),
        *_draw_sizes(sizes, smallest, max(largest, smallest + 1), learning.first_merged_id),
        draw_polyline(places, "curve"),
        *(draw_dot(x, y, _RADIUS, "mark", value) for x, y, value in marks),
        *_draw_values(marks),
        *_draw_shortfall(learning),
    ]
    return draw_svg(_WIDTH, _HEIGHT, parts) + "\n"


def measure_curve(learning: Learning) -> list[tuple[int, float]]:
    """Vocabulary sizes and the corpus's bytes per token, ascending: the marked sizes, and others between."""
    text_bytes = learning.totals.text_bytes
    joined = learning.steps["joined"]
    curve, tokens, before = [], text_bytes, 0
    for merges in _merges_shown(learning):
        tokens -= int(joined[before:merges].sum())
        before = merges
        curve.append((learning.first_merged_id + merges, text_bytes / max(1, tokens)))
    return curve


def _merges_shown(learning: Learning) -> list[int]:
    """Numbers of merges to draw: evenly spaced in the picture, and all that are marked."""
    first, most = learning.first_merged_id, len(learning.steps)
    growth = (first + most) / first
    between = (
        round(first * growth ** (step / (CURVE_SIZES - 1))) - first for step in range(CURVE_SIZES)
    )
    marked = (size - first for size in _marked_sizes(learning))
    return sorted({0, most, *between, *marked})


def _marked_sizes(learning: Learning) -> list[int]:
    """Requested sizes as they were learned, from the largest down, without those that another mark hides."""
    first, most = learning.first_merged_id, len(learning.steps)
    closest = ((first + most) / first) ** (_CLOSEST / (_RIGHT_EDGE - _LEFT))
    sizes = {first + learning.merges_for(size) for size in learning.settings.vocab_size}
    marked: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not marked or size * closest <= marked[-1]:
            marked.append(size)
    return marked


def _draw_rates(heights: Axis) -> list[str]:
    parts = []
    step = round_step(heights.high / 5)
    for count in range(int(heights.high / step) + 1):
        y = heights.place(count * step)
        parts.append(draw_line(_LEFT, y, _RIGHT_EDGE, y, "grid" if count else "axis"))
        label = f"{count * step:,.0f}" if step >= 1 else f"{count * step:.1f}"
        parts.append(draw_text(_LEFT - 10, y + 4, label, anchor="end"))
    turn = f'<g transform="translate(24 {(_TOP + _FLOOR) / 2:.1f}) rotate(-90)">'
    return [*parts, turn + draw_text(0, 0, "bytes per token", anchor="middle") + "</g>"]


def _draw_sizes(sizes: Axis, smallest: int, largest: int, first: int) -> list[str]:
    parts = []
    for size in _size_ticks(smallest, largest):
        x = sizes.place(math.log(size))
        parts.append(draw_line(x, _FLOOR, x, _FLOOR + 5, "axis"))
        parts.append(draw_text(x, _FLOOR + 21, f"{size:,}", anchor="middle"))
    specials = first - 256
    others = f" and {specials} special token{'' if specials == 1 else 's'}" if specials else ""
    label = f"vocabulary size in tokens; the curve begins with the 256 bytes{others}"
    return [*parts, draw_text((_LEFT + _RIGHT_EDGE) / 2, _HEIGHT - 16, label, anchor="middle")]


def _draw_values(marks: list[tuple[float, float, str]]) -> list[str]:
    """Labels of the marks: above and left, where a rising curve is not, or below and right beside the axis.

    A label that would overlap another is left out; the title of its mark still shows the value.
    """
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
            parts.append(draw_text(at, base, value, "value", anchor=anchor))
    return parts


def _draw_shortfall(learning: Learning) -> list[str]:
    """A note if fewer tokens were learned than requested, in the corner that a rising curve leaves free."""
    largest = learning.describe(max(learning.settings.vocab_size))
    if largest.tokens == largest.vocab_size:
        return []
    learnt = f"{largest.tokens:,} of {largest.vocab_size:,} tokens were learnt"
    text = f"{learnt}: no other pair comes often enough"
    return [draw_text(_RIGHT_EDGE - 8, _FLOOR - 14, text, anchor="end")]


def _size_ticks(smallest: int, largest: int) -> list[int]:
    """Round sizes: 500, 1000, 2000, 5000 and so on where some of them fit, powers of ten where those are too
    many, and equal steps over less than a decade."""
    for digits in ((1, 2, 5), (1,)):
        sizes = (digit * 10**power for power in range(9) for digit in digits)
        ticks = [size for size in sizes if smallest <= size <= largest]
        if _LEAST_TICKS <= len(ticks) <= _MOST_TICKS:
            return ticks
    step = max(1, int(round_step((largest - smallest) / 6)))
    return list(range(-(-smallest // step) * step, largest + 1, step))
