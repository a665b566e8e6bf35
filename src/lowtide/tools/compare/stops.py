"""Stopping a comparison: it keeps nothing and cannot be resumed, and its messages say so.

Imports little, because the command must listen for signals before it loads the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowtide.errors import InterruptedRun, StoppedError
from lowtide.stages.stop_signals import listen_for_stops

if TYPE_CHECKING:
    from lowtide.events import StopReason
    from lowtide.stages.watch_run import ShouldStop

_REMEDY = "run the same command again: it starts from the beginning, since nothing was kept"


@contextmanager
def listen_for_the_end() -> Iterator[ShouldStop]:
    """Listen for stops; a second Ctrl-C ends the comparison at once, and does not promise that it resumes."""
    try:
        with listen_for_stops() as should_stop:
            yield should_stop
    except KeyboardInterrupt as cause:
        raise InterruptedRun("interrupted", remedy=_REMEDY) from cause


def refuse_to_go_on(reason: StopReason | None) -> None:
    """Raise the error that ends the whole comparison, if somebody asked for a stop."""
    if reason == "interrupted":
        raise InterruptedRun("interrupted; all ways were ended and removed", remedy=_REMEDY)
    if reason is not None:
        raise StoppedError("asked to stop; all ways were ended and removed", remedy=_REMEDY)
