"""How fast this machine is at the moment, for limits of CPU time that were set on a faster one."""

from __future__ import annotations

import time

_SECONDS = 0.03
"""What a million additions took where the limits were set."""


def slowness() -> float:
    """How many times slower this machine is now, at least 1; a limit is multiplied by it."""
    return max(1.0, min(_add_a_million() for _ in range(3)) / _SECONDS)


def _add_a_million() -> float:
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - started
