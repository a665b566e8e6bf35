"""Signals that reach the watch and are meant for its job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from lowtide.guard.job import Job


@contextmanager
def signals_go_to(job: Job) -> Iterator[None]:
    """What is sent to us is meant for the job. A terminal's Ctrl-C has reached it already."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number not in (signal.SIGINT, signal.SIGQUIT) or not _has_terminal():
            job.send(number)

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _has_terminal() -> bool:
    """Whether we are in the foreground of one."""
    for stream in (0, 1, 2):
        with suppress(OSError, AttributeError):
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False
