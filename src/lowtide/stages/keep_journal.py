"""A run's journal: its start, its events, and how it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lowtide import __version__
from lowtide.errors import InterruptedRun, LowtideError, StoppedError, StorageError
from lowtide.events import Advanced, Event, Learnt, Listener, MemoryRead, Note
from lowtide.journal import LOG_NAME, Journal, Kind, Outcome

_LEAST_SECONDS = 1.0
_RECORDS_A_RUN = 500
"""Records of one kind before their distance grows with the run's length: a run of days has a few thousand."""


@contextmanager
def keep_journal(
    folder: Path,
    kind: Kind,
    listen: Listener,
    *,
    settings: Mapping[str, object],
    budget_bytes: int,
    started: float,
) -> Iterator[Kept]:
    """A listener that writes each event down before it passes it on. The end is written whatever it is.

    `started` is when the run began, by the monotonic clock: preparing may have taken a while.
    """
    began_at = round(time.time() - (time.monotonic() - started), 3)
    with open_journal(folder, listen) as journal:
        begin_journal(journal, kind, settings=settings, budget_bytes=budget_bytes, at=began_at)
        thinned = Thinned(lambda event, at: journal.write_event(event, at=at))

        def follow(event: Event) -> None:
            thinned(event)
            listen(event)

        kept = Kept(follow)
        with ending(
            journal,
            before=thinned.finish,
            facts=lambda: {
                "peak_private_bytes": kept.peak_private_bytes(),
                "elapsed_seconds": round(time.monotonic() - started, 3),
            },
        ):
            yield kept


@dataclass(slots=True)
class Kept:
    """The listener of a run, and what asks for its peak memory at the end."""

    listen: Listener
    peak_private_bytes: Callable[[], int | None] = lambda: None


def open_journal(folder: Path, listen: Listener) -> Journal:
    """The log of a folder. If it cannot be written, a warning says so and the run goes on without it."""

    def tell(error: StorageError) -> None:
        listen(Note(text=f"nothing more is logged: {error.problem}", level="warning"))

    return Journal(folder / LOG_NAME, on_failure=tell)


def begin_journal(
    journal: Journal,
    kind: Kind,
    *,
    settings: Mapping[str, object],
    budget_bytes: int | None,
    **more: object,
) -> None:
    """Write the first record of a session: the command, its process, its settings and its budget."""
    journal.write(
        "start",
        kind=kind,
        version=__version__,
        pid=os.getpid(),
        budget_bytes=budget_bytes,
        settings=settings,
        **more,
    )


@contextmanager
def ending(
    journal: Journal,
    *,
    before: Callable[[], None],
    facts: Callable[[], Mapping[str, object]] = dict,
) -> Iterator[None]:
    """Write the last record: how the block ended, and the `facts` of that moment."""
    end = _end_fields("done", 0)
    try:
        yield
    except BaseException as error:
        end = _end_of(error)
        raise
    finally:
        before()
        journal.write("end", **end, **facts())


def _end_fields(
    outcome: Outcome, exit_code: int, problem: str | None = None, remedy: str | None = None
) -> dict[str, object]:
    return {"outcome": outcome, "exit_code": exit_code, "problem": problem, "remedy": remedy}


def _end_of(error: BaseException) -> dict[str, object]:
    if isinstance(error, KeyboardInterrupt):
        return _end_fields("interrupted", InterruptedRun.exit_code)
    if not isinstance(error, LowtideError):
        return _end_fields("failed", 1, f"{type(error).__name__}: {error}")
    outcome: Outcome = "failed"
    if isinstance(error, StoppedError):
        outcome = "interrupted" if isinstance(error, InterruptedRun) else "stopped"
    return _end_fields(outcome, error.exit_code, error.problem, error.remedy)


class Thinned:
    """Passes on events with their times; progress and memory only now and then, to keep a long log small.

    The last event of each kind is always passed on.
    """

    def __init__(
        self, write: Callable[[Event, float], None], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._write = write
        self._clock = clock
        self._began = clock()
        self._written: dict[type, float] = {}
        self._held: dict[type, tuple[Event, float]] = {}

    def __call__(self, event: Event) -> None:
        kind, now = type(event), round(self._clock(), 3)
        if kind not in (Advanced, Learnt, MemoryRead):
            self._write(event, now)
            return
        distance = max(_LEAST_SECONDS, (now - self._began) / _RECORDS_A_RUN)
        if kind in self._written and 0 <= now - self._written[kind] < distance:
            self._held[kind] = event, now
            return
        self._written[kind] = now
        self._held.pop(kind, None)
        self._write(event, now)

    def finish(self) -> None:
        """Pass on the last events that were held back."""
        for event, at in self._held.values():
            self._write(event, at)
        self._held.clear()
