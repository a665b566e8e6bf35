"""When to look again: usually, or sooner where the next line would be passed before that."""

from __future__ import annotations

from collections import deque

from lowtide.guard.reading import Reading
from lowtide.guard.stages import ASK_SHARE, END_SHARE, NOTE_SHARE, Lines

_SHORTEST_SECONDS = 0.05
_LOOK_BACK_SECONDS = 2.0
"""A job grows in jumps: between two looks it may not have grown at all."""
_FIRST_SECONDS, _FIRST_WAIT_SECONDS = 2.0, 0.1
"""What a short job takes is not missed."""
_AHEAD = 0.5
"""Of the time until the next line."""


class Pace:
    """Looks at the growth of the last moments."""

    def __init__(self, lines: Lines, usual_seconds: float) -> None:
        self._usual = usual_seconds
        shares = (NOTE_SHARE, ASK_SHARE, END_SHARE)
        self._lines = [share * lines.limit_bytes for share in shares]
        self._first: float | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def wait_seconds(self, reading: Reading | None) -> float:
        """How long to wait after this reading. A job that has just begun is looked at soon."""
        if reading is None:
            return _SHORTEST_SECONDS
        self._seen.append((reading.at, reading.used_bytes))
        while reading.at - self._seen[0][0] > _LOOK_BACK_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        ahead = [line - reading.used_bytes for line in self._lines if line > reading.used_bytes]
        at, used_bytes = self._seen[0]
        if self._first is None:
            self._first = reading.at
        if reading.at - self._first < _FIRST_SECONDS:
            return min(self._usual, _FIRST_WAIT_SECONDS)
        if not ahead or reading.at <= at or reading.used_bytes <= used_bytes:
            return self._usual
        growth = (reading.used_bytes - used_bytes) / (reading.at - at)
        return min(self._usual, max(_SHORTEST_SECONDS, _AHEAD * min(ahead) / growth))
