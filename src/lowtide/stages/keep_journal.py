"""A run's journal: begun, written beside the work, and ended with how it came out."""

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
"""Of one kind, before their distance grows with the run's length: a run of days has a few thousand."""


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
    """A listener that writes everything down before it passes it on. The end is written however it comes.

    `started` is when the run began, by the monotonic clock: it may have prepared itself for a while.
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
    """What a run says goes to `listen`; its peak is asked for at the end."""

    listen: Listener
    peak_private_bytes: Callable[[], int | None] = lambda: None


def open_journal(folder: Path, listen: Listener) -> Journal:
    """A log that cannot be written is told, and the run goes on without."""

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
    """The first record of a session: who works, on what, in how much memory."""
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
    """Write how the block came out as the last record, and the `facts` of that moment."""
    end = _End(outcome="done", exit_code=0)
    try:
        yield
    except BaseException as error:
        end = _end_of(error)
        raise
    finally:
        before()
        journal.write(
            "end",
            outcome=end.outcome,
            exit_code=end.exit_code,
            problem=end.problem,
            remedy=end.remedy,
            **facts(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    outcome: Outcome
    exit_code: int
    problem: str | None = None
    remedy: str | None = None


def _end_of(error: BaseException) -> _End:
    if isinstance(error, KeyboardInterrupt):
        return _End(outcome="interrupted", exit_code=InterruptedRun.exit_code)
    if not isinstance(error, LowtideError):
        return _End(outcome="failed", exit_code=1, problem=f"{type(error).__name__}: {error}")
    outcome: Outcome = "failed"
    if isinstance(error, StoppedError):
        outcome = "interrupted" if isinstance(error, InterruptedRun) else "stopped"
    return _End(
        outcome=outcome, exit_code=error.exit_code, problem=error.problem, remedy=error.remedy
    )


class Thinned:
    """Passes on what matters, and of progress so much that a log of days stays small; always the last.

    Each with the time when it came.
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
        """Write what was held back."""
        for event, at in self._held.values():
            self._write(event, at)
        self._held.clear()
