"""The events of a run as they come: a bar on a terminal, a plain line now and then elsewhere; on stderr."""

from __future__ import annotations

import builtins
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TextIO, TypeVar

from lowtide.events import (
    Advanced,
    Evaluated,
    Event,
    Learnt,
    Listener,
    Note,
    Processed,
    Sampled,
    Saved,
    Stepped,
    ignore,
)
from lowtide.units import format_bytes, format_count, format_seconds, printable

if TYPE_CHECKING:
    from rich.console import Console

Heard = TypeVar("Heard")
_LINE_SECONDS = 10.0
_LINE_COLUMNS = 80
_NARROWEST_BAR, _WIDEST_BAR = 12, 24
_SAMPLE_LINES = 6
_SAMPLE_COLUMNS = 100


@contextmanager
def show_progress(*, quiet: bool, stream: TextIO | None = None) -> Iterator[Listener]:
    """A listener that suits the stream: silence, lines, or a bar that disappears when the block ends."""
    stream = stream or sys.stderr
    if quiet or stream is None:  # closed before the start
        yield ignore
        return
    console = terminal_of(stream) or _notebook_with_widgets()
    if console is None:
        yield as_long_as_it_is_heard(_PlainLines(stream), stream)
        return
    with _bar(console) as listen:
        yield as_long_as_it_is_heard(listen, stream)


def is_seen(stream: TextIO | None) -> bool:
    """Whether somebody looks on: in a terminal or in a notebook."""
    return stream is not None and (stream.isatty() or _notebook() is not None)


def tell_a_person(event: Event) -> None:
    """Print the notes of a command without a progress bar: warnings always, others only on a terminal."""
    if not isinstance(event, Note) or sys.stderr is None:
        return
    if event.level == "warning" or sys.stderr.isatty():
        sys.stderr.write(note_line(event) + "\n")


def as_long_as_it_is_heard(
    listen: Callable[[Heard], None], stream: TextIO
) -> Callable[[Heard], None]:
    """A listener that falls silent once its reader is gone (`| head`, a lost session): days of work go on."""
    gone = False

    def say(event: Heard) -> None:
        nonlocal gone
        if gone:
            return
        try:
            listen(event)
        except OSError:  # a broken pipe, a full disk
            gone = True
        except ValueError:
            if not stream.closed:
                raise
            gone = True

    return say


def terminal_of(stream: TextIO) -> Console | None:
    """The terminal behind a stream; None if there is none, or if it cannot move its cursor."""
    if not stream.isatty():
        return None
    from rich.console import Console

    console = Console(file=stream)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _notebook() -> Console | None:
    """The Jupyter notebook that this runs in; None anywhere else."""
    if not hasattr(builtins, "get_ipython"):
        return None
    from rich.console import Console

    console = Console()
    return console if console.is_jupyter else None


def _notebook_with_widgets() -> Console | None:
    """The notebook, if a bar can move in it; lines are shown elsewhere."""
    return _notebook() if importlib.util.find_spec("ipywidgets") else None


class _EventLines:
    """The lines of events. Remembers the first progress and the last evaluation, which later lines refer to."""

    def __init__(self) -> None:
        self._first: Advanced | None = None
        self._evaluated: Evaluated | None = None

    def lasting(self, event: Event) -> list[str]:
        """Lines that stay: notes, evaluations, samples and checkpoints."""
        if isinstance(event, Note):
            return [note_line(event)]
        if isinstance(event, Evaluated):
            self._evaluated = event
        return training_lines(event) if isinstance(event, Evaluated | Sampled | Saved) else []

    def passing(self, event: Event) -> tuple[str, int, int | None] | None:
        """A line that the next one replaces, how much is done, and of how much in all."""
        if isinstance(event, Advanced):
            self._first = self._first or event
            line = progress_line(event, self._first)
            return line, event.done_bytes, event.total_bytes or None
        if isinstance(event, Processed):
            return processed_line(event), event.done, event.total
        if isinstance(event, Learnt):
            return learning_line(event), event.merges, event.most_merges
        if isinstance(event, Stepped):
            return step_line(event, self._evaluated), event.step, event.steps
        return None


class _PlainLines:
    """Lines for log files and pipes: notes at once, progress every ten seconds."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lines = _EventLines()
        self._last_seconds = 0.0
        self._stepped_at: float | None = None

    def __call__(self, event: Event) -> None:
        lines = self._lines.lasting(event)
        passing = self._lines.passing(event)
        if passing is not None and self._is_due(event):
            lines.append(passing[0])
        for line in lines:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _is_due(self, event: Event) -> bool:
        """Every ten seconds. The first and the last step come at once: they show that it started and ended."""
        if isinstance(event, Stepped):
            now = self._clock()
            waited = self._stepped_at is None or now - self._stepped_at >= _LINE_SECONDS
            due = waited or event.step == event.steps
            self._stepped_at = now if due else self._stepped_at
            return due
        if not isinstance(event, Advanced | Learnt):
            return False
        due = event.elapsed_seconds - self._last_seconds >= _LINE_SECONDS
        self._last_seconds = event.elapsed_seconds if due else self._last_seconds
        return due


@contextmanager
def _bar(console: Console) -> Iterator[Listener]:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    width = min(max(console.width - _LINE_COLUMNS, _NARROWEST_BAR), _WIDEST_BAR)
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    columns = (BarColumn(bar_width=width), text)
    lines = _EventLines()
    with Progress(*columns, console=console, transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("starting", total=None)

        def listen(event: Event) -> None:
            for line in lines.lasting(event):
                progress.console.print(
                    line, markup=False, emoji=False, highlight=False, soft_wrap=True
                )
            passing = lines.passing(event)
            if passing is not None:
                line, done, total = passing
                fitting = _whole_parts(line, console.width - width - 1)
                progress.update(task, total=total, completed=done, description=fitting)

        yield listen


def _whole_parts(line: str, columns: int) -> str:
    """As many parts of a line as fit, and at least the first: `step 3 of 9, loss 3.412`."""
    while len(line) > columns and ", " in line:
        line = line.rpartition(", ")[0]
    return line


def note_line(note: Note) -> str:
    """`note: …` or `warning: …`."""
    return f"{'warning' if note.level == 'warning' else 'note'}: {printable(note.text)}"


def progress_line(event: Advanced, first: Advanced) -> str:
    """`412.0 of 953.7 MiB, 2.3s left, 251 MB/s, 98.1M tokens, memory 161.0 of 256.0 MiB`.

    Rate and time left are measured from the `first` event on, without the start and the work of earlier
    sessions. A narrow terminal shows only the beginning, so what matters most comes first.
    """
    seconds = event.elapsed_seconds - first.elapsed_seconds
    worked_bytes = event.done_bytes - first.done_bytes
    parts = [_of(event.done_bytes, event.total_bytes)]
    if seconds > 0 and worked_bytes > 0:
        if event.total_bytes:
            left = (event.total_bytes - event.done_bytes) * seconds / worked_bytes
            parts.append(f"{format_seconds(max(0.0, left))} left")
        parts.append(f"{worked_bytes / seconds / 1e6:.0f} MB/s")
    if event.tokens:
        parts.append(f"{format_count(event.tokens)} tokens")
    else:
        parts.append(f"{format_count(event.documents)} documents")
    parts.append(f"memory {_of(event.private_bytes, event.budget_bytes)}")
    return ", ".join(parts)


def processed_line(event: Processed) -> str:
    """`41.0 of 93.4 MiB`, `12.3M of 98.1M tokens`."""
    if event.unit == "bytes":
        return _of(event.done, event.total)
    return f"{format_count(event.done)} of {format_count(event.total)} tokens"


def learning_line(event: Learnt) -> str:
    """`12000 of 31743 merges, memory 96.0 of 256.0 MiB`.

    No time left is shown: late merges are faster than early ones.
    """
    memory = _of(event.private_bytes, event.budget_bytes)
    return f"{event.merges} of {event.most_merges} merges, memory {memory}"


def _of(part_bytes: int, whole_bytes: int) -> str:
    """`41.0 of 93.4 MiB`, `128.0 MiB of 2.0 GiB`; the part alone if the whole is unknown."""
    part, whole = format_bytes(part_bytes), format_bytes(whole_bytes)
    if not whole_bytes:
        return part
    number, unit = part.split()
    return f"{number if whole.endswith(f' {unit}') else part} of {whole}"


def step_line(event: Stepped, evaluated: Evaluated | None) -> str:
    """`step 1200 of 19073, loss 3.412, val 3.398, 2h 10m left, 562.0k tokens/s, 629M seen, MFU 41 %, …`.

    A narrow terminal shows only the beginning, so what matters most comes first.
    """
    skipped = " (skipped)" if event.skipped else ""
    parts = [f"step {event.step} of {event.steps}", f"loss {event.loss:.3f}{skipped}"]
    if evaluated is not None:
        parts.append(f"val {evaluated.loss:.3f}")
    if math.isfinite(event.seconds_left):
        parts.append(f"{format_seconds(max(0.0, event.seconds_left))} left")
    is_measured = math.isfinite(event.tokens_per_second)
    rate = format_count(round(event.tokens_per_second)) if is_measured else "?"
    parts += [f"{rate} tokens/s", f"{format_count(event.tokens)} seen"]
    if event.mfu is not None:
        parts.append(f"MFU {event.mfu * 100:.0f} %")
    parts += [_share_of_epoch(event.epoch), f"lr {event.learning_rate:.1e}"]
    if event.gpu_bytes is not None:
        parts.append(f"VRAM {format_bytes(event.gpu_bytes)}")
    parts.append(f"memory {format_bytes(event.private_bytes)}")
    return ", ".join(parts)


def training_lines(event: Evaluated | Sampled | Saved) -> list[str]:
    """Lines that stay: an evaluation, a checkpoint, or the beginning of a sample.

    A sample is indented, with what would move a cursor escaped.
    """
    if isinstance(event, Evaluated):
        perplexity = f", perplexity {math.exp(event.loss):.1f}" if event.loss < 100 else ""
        return [f"evaluation: step {event.step}, val loss {event.loss:.3f}{perplexity}"]
    if isinstance(event, Saved):
        path = printable(event.path)
        return [f"checkpoint: step {event.step} in {path}, {format_seconds(event.seconds)}"]
    shown: list[str] = []
    for line in event.text.split("\n"):
        visible = printable(line)
        shown += [
            visible[start : start + _SAMPLE_COLUMNS]
            for start in range(0, max(1, len(visible)), _SAMPLE_COLUMNS)
        ]
    if len(shown) > _SAMPLE_LINES:
        shown = [*shown[:_SAMPLE_LINES], "…"]
    return [f"sample: step {event.step}", *(f"  {line}".rstrip() for line in shown)]


def _share_of_epoch(epoch: float) -> str:
    """`37.5% of the epoch`; from the second on, `37.5% of epoch 2`."""
    if epoch <= 1:
        return f"{epoch:.1%} of the epoch"
    whole = math.ceil(epoch) - 1
    return f"{epoch - whole:.1%} of epoch {whole + 1}"
