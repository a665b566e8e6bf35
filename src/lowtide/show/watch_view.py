"""Shows a job under watch: a screen on a terminal that nobody else writes to, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from lowtide.events import Note
from lowtide.guard.alerts import WatchEvent, WatchListener, WatchResult, heaviest_of
from lowtide.guard.forecast import Forecast
from lowtide.memory.pressure import Alert, Stage, Thresholds, judge
from lowtide.memory.reading import GpuReading, Reading
from lowtide.series import Series
from lowtide.show.progress import as_long_as_it_is_heard, note_line
from lowtide.show.results import print_json
from lowtide.units import format_bytes, format_seconds, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_BARS = " ▁▂▃▄▅▆▇█"
_ROWS = 4
_LEAST_COLUMNS, _MOST_COLUMNS, _WORDS_COLUMNS = 10, 100, 18
_LINE_SECONDS = 60.0
_MEASURED_SECONDS = 1.0
"""The readings of a shorter job may all lie before its peak."""
_STAGES = {Stage.NOTE: "note", Stage.ASK: "asking it to stop", Stage.END: "ending it"}


@contextmanager
def show_watch(
    *, quiet: bool, limit_bytes: int, screen: bool, stream: TextIO | None = None
) -> Iterator[WatchListener]:
    """A listener for the stream: silent, a screen that is removed at the end of the block, or lines."""
    stream = stream or sys.stderr
    if quiet or stream is None:
        yield lambda _event: None
    elif screen and stream.isatty():
        with _screen(stream, limit_bytes) as listen:
            yield as_long_as_it_is_heard(listen, stream)
    else:
        yield as_long_as_it_is_heard(_line_writer(stream, limit_bytes), stream)


def result_line(result: WatchResult, limit_bytes: int) -> str:
    """`the job ended with code 0 after 12.0s; peak 3.1 GiB private of 4.0 GiB, GPU 0 9.1 GiB of 12.0 GiB`."""
    end = result.end
    how = "ended" if end.exit_code is None else f"ended with code {end.exit_code}"
    if result.forced:
        how = "was ended by the guard"
    elif end.signal is not None:
        how = f"was ended by signal {end.signal}"
    killed = f", {end.oom_kills} killed by its own cgroup" if end.oom_kills else ""
    peaks = [f"{format_bytes(result.peak_private_bytes)} private of {format_bytes(limit_bytes)}"]
    if result.seconds < _MEASURED_SECONDS:
        peaks[0] = f"at least {peaks[0]} (too short to measure)"
    peaks += map(_gpu_words, result.fullest_gpus)
    return (
        f"the job {how}{killed} after {format_seconds(result.seconds)}; peak {', '.join(peaks)}; "
        f"timeline: {result.timeline}"
    )


def show_watched(result: WatchResult, limit_bytes: int, *, as_json: bool, quiet: bool) -> None:
    """Print the result as JSON on stdout, or as one line on stderr: stdout is the job's own."""
    if as_json:
        record = {
            **asdict(result.end),
            "seconds": round(result.seconds, 3),
            "peak_private_bytes": result.peak_private_bytes,
            "peak_gpu_bytes": {str(gpu.index): gpu.used_bytes for gpu in result.fullest_gpus},
            "limit_bytes": limit_bytes,
            "alerts": result.alerts,
            "ended_by_guard": result.forced,
            "timeline": str(result.timeline),
        }
        print_json(record)
    elif not quiet:
        sys.stderr.write(f"lowtide: {printable(result_line(result, limit_bytes))}\n")


def draw_history(values: Sequence[float], limit: int, *, rows: int = _ROWS) -> list[str]:
    """Thresholds of a picture, the highest first, as high as the limit. One row is a sparkline: `▁▂▃█`."""
    steps = [
        min(8 * rows, max(1, round(8 * rows * value / limit))) if limit else 1 for value in values
    ]
    return [
        "".join(_BARS[min(8, max(0, step - 8 * row))] for step in steps)
        for row in reversed(range(rows))
    ]


def reading_line(reading: Reading, limit_bytes: int) -> str:
    """`12 processes, 3.1 GiB private of 4.0 GiB, 6.2 GiB page cache mapped, 14.0 GiB left on the machine`."""
    count = f"{reading.process_count} process{'es' if reading.process_count > 1 else ''}"
    parts = [
        count,
        f"{format_bytes(reading.private_bytes)} private of {format_bytes(limit_bytes)}",
        f"{format_bytes(reading.mapped_bytes)} page cache mapped",
        f"{format_bytes(reading.available_bytes or 0)} left on the machine",
    ]
    if reading.swapped_bytes:
        parts.insert(2, f"{format_bytes(reading.swapped_bytes)} swapped out")
    return ", ".join([*parts, *map(_gpu_words, reading.gpus)])


def _gpu_words(gpu: GpuReading) -> str:
    return f"GPU {gpu.index} {format_bytes(gpu.used_bytes)} of {format_bytes(gpu.total_bytes)}"


def _line_writer(stream: TextIO, limit_bytes: int) -> WatchListener:
    """Writes alerts and notes at once, and a reading every minute."""
    written_at = monotonic()

    def listen(event: WatchEvent) -> None:
        nonlocal written_at
        if not isinstance(event, Reading):
            lines = lines_of(event)
        elif monotonic() - written_at >= _LINE_SECONDS:
            written_at = monotonic()
            lines = [reading_line(event, limit_bytes)]
        else:
            return
        for line in lines:
            stream.write(f"lowtide: {printable(line)}\n")
            stream.flush()

    return listen


def lines_of(event: Alert | Forecast | Note) -> list[str]:
    """The lines of an event that is shown at once."""
    if isinstance(event, Alert):
        heaviest = f"  heaviest: {heaviest_of(event)}"
        return [f"{_STAGES[event.stage]}: {event.reason}", heaviest]
    if isinstance(event, Forecast):
        return [f"forecast: {event.in_words}"]
    return [note_line(event)]


@contextmanager
def _screen(stream: TextIO, limit_bytes: int) -> Iterator[WatchListener]:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    history = Series(256)
    forecast: Forecast | None = None
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def listen(event: WatchEvent) -> None:
            nonlocal forecast
            if isinstance(event, Reading):
                history.add(event.at, event.used_bytes)
                live.update(
                    _picture(event, history, limit_bytes, forecast, console.width), refresh=True
                )
                return
            forecast = event if isinstance(event, Forecast) else forecast
            for line in lines_of(event):
                console.print(printable(line), markup=False, emoji=False, highlight=False)

        yield listen


def _picture(
    reading: Reading, history: Series, limit_bytes: int, forecast: Forecast | None, width: int
) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    columns = max(_LEAST_COLUMNS, min(width - _WORDS_COLUMNS, _MOST_COLUMNS))
    highs = [point.high for point in history.points()]
    columns = min(columns, len(highs))
    edges = [number * len(highs) // columns for number in range(columns + 1)]
    values = [max(highs[first:end]) for first, end in pairwise(edges)]
    share = reading.used_bytes / limit_bytes if limit_bytes else 0.0
    stage, _ = judge(reading, Thresholds(limit_bytes=limit_bytes, floor_bytes=0))
    style = ("green", "yellow", "red")[stage]
    rows = draw_history(values, limit_bytes)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("process")
    for name in ("private", "shared", "page cache", "swapped"):
        table.add_column(name, justify="right")
    for one in reading.top:
        sizes = (one.private_bytes, one.shared_bytes, one.mapped_bytes, one.swapped_bytes)
        table.add_row(printable(f"{one.name} {one.pid}"), *(format_bytes(size) for size in sizes))
    lines = [
        Text("─" * len(values) + f" limit {format_bytes(limit_bytes)}", style="dim"),
        *(Text(row, style=style) for row in rows[:-1]),
        Text(f"{rows[-1]} {share:.0%}", style=style),
        Text(reading_line(reading, limit_bytes)),
    ]
    if forecast is not None:
        lines.append(Text(f"forecast: {forecast.in_words}", style="yellow"))
    return Group(*lines, table)
