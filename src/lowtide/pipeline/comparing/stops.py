"""Being asked to end: a comparison keeps nothing and never resumes where it stopped, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowtide.errors import InterruptedRun, StoppedError
from lowtide.pipeline.stop_signals import listen_for_stops

if TYPE_CHECKING:
    from lowtide.events import StopReason
    from lowtide.pipeline.watch_run import ShouldStop

_REMEDY = "run the same command again: it begins anew, for nothing of it was kept"


@contextmanager
def listen_for_the_end() -> Iterator[ShouldStop]:
    """As `listen_for_stops`; a second Ctrl-C ends at once, with words that are true of a comparison."""
    try:
        with listen_for_stops() as should_stop:
            yield should_stop
    except KeyboardInterrupt as cause:
        raise InterruptedRun("interrupted", remedy=_REMEDY) from cause


def refuse_to_go_on(reason: StopReason | None) -> None:
    """Raise what ends the whole comparison, if somebody asked for it."""
    if reason == "interrupted":
        raise InterruptedRun("interrupted; all ways were ended and removed", remedy=_REMEDY)
    if reason is not None:
        raise StoppedError("asked to end; all ways were ended and removed", remedy=_REMEDY)
