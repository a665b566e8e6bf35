"""Events while a run lasts: a bar on a terminal, a plain line now and then elsewhere. All of it on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from lowtide.events import Advanced, Checkpointed, Event, Listener, Note, ignore
from lowtide.units import format_bytes, format_count, format_seconds

_LINE_SECONDS = 10.0


@contextmanager
def show_progress(*, quiet: bool, stream: TextIO | None = None) -> Iterator[Listener]:
    """A listener that suits the stream: nothing, lines, or a bar that is gone when the block ends."""
    stream = stream or sys.stderr
    if quiet:
        yield ignore
    elif stream.isatty():
        with _bar(stream) as listen:
            yield listen
    else:
        yield _PlainLines(stream)


class _PlainLines:
    """For log files and pipes: notes at once, progress every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_seconds = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self._say(note_line(event))
        elif isinstance(event, Advanced) and self._is_due(event):
            self._last_seconds = event.elapsed_seconds
            self._say(progress_line(event))

    def _is_due(self, event: Advanced) -> bool:
        return event.elapsed_seconds - self._last_seconds >= _LINE_SECONDS

    def _say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


@contextmanager
def _bar(stream: TextIO) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=stream)
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("starting", total=None)

        def listen(event: Event) -> None:
            if isinstance(event, Note):
                progress.console.print(note_line(event), markup=False, highlight=False)
            elif isinstance(event, Advanced):
                progress.update(
                    task,
                    total=event.total_bytes or None,
                    completed=event.done_bytes,
                    description=progress_line(event),
                )
            elif isinstance(event, Checkpointed):
                progress.refresh()

        yield listen


def note_line(note: Note) -> str:
    """`note: …` or `warning: …`."""
    return f"{'warning' if note.level == 'warning' else 'note'}: {note.text}"


def progress_line(event: Advanced) -> str:
    """`412.0 MiB of 953.7 MiB, 98.1M tokens, 251 MB/s, memory 161.0 MiB of 256.0 MiB, 2.3s left`."""
    done = format_bytes(event.done_bytes)
    parts = [f"{done} of {format_bytes(event.total_bytes)}" if event.total_bytes else done]
    parts.append(f"{format_count(event.tokens)} tokens")
    worked = event.done_bytes - event.resumed_bytes
    if event.elapsed_seconds > 0:
        rate = worked / event.elapsed_seconds
        parts.append(f"{rate / 1e6:.0f} MB/s")
    parts.append(
        f"memory {format_bytes(event.private_bytes)} of {format_bytes(event.budget_bytes)}"
    )
    if event.total_bytes and worked > 0:
        left = (event.total_bytes - event.done_bytes) * event.elapsed_seconds / worked
        parts.append(f"{format_seconds(max(0.0, left))} left")
    return ", ".join(parts)
