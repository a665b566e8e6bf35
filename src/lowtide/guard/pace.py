"""When to look again: usually, or sooner where the next line would be passed before that."""

from __future__ import annotations

from collections import deque

from lowtide.guard.reading import Reading
from lowtide.guard.stages import ASK_SHARE, END_SHARE, NOTE_SHARE, Lines

_SHORTEST_SECONDS = 0.05
_LOOK_BACK_SECONDS = 2.0
"""A job grows in jumps: between two looks it may not have grown at all."""
_AHEAD = 0.5
"""Of the time until the next line."""


class Pace:
    """Looks at the growth of the last moments."""

    def __init__(self, lines: Lines, usual_seconds: float) -> None:
        self._usual = usual_seconds
        limit = lines.limit_bytes or 0
        self._lines = [share * limit for share in (NOTE_SHARE, ASK_SHARE, END_SHARE) if limit]
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
        if not ahead or reading.at <= at or reading.used_bytes <= used_bytes:
            return self._usual
        growth = (reading.used_bytes - used_bytes) / (reading.at - at)
        return min(self._usual, max(_SHORTEST_SECONDS, _AHEAD * min(ahead) / growth))
