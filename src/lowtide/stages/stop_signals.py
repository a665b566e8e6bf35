"""Stops by signals, which the work asks for now and then; a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lowtide.events import StopReason


@contextmanager
def listen_for_stops() -> Iterator[Callable[[], StopReason | None]]:
    """Yields a function that returns the first stop that was asked for. The old handlers come back afterwards.

    Only the main thread gets signals: in another one the function always returns None.
    """
    asked: list[StopReason] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        reason: StopReason = "interrupted" if number == signal.SIGINT else "terminated"
        if reason == "interrupted" and reason in asked:
            raise KeyboardInterrupt  # not for a scheduler, which warns first and then terminates
        asked.append(reason)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGUSR1"):  # what a scheduler sends before its time is up
        numbers.append(signal.SIGUSR1)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)  # a session that was lost; `nohup` has it ignored
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
