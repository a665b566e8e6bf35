"""Times out of records, read with care: a log may be old, cut, or written by someone else."""

from __future__ import annotations

from datetime import UTC, datetime

from lowtide.journal import Record, number, text

_LAST_UNIX_SECONDS = 253_402_300_799
"""The end of the year 9999."""
_HELD_BACK = ("advanced", "learnt", "memory")
"""Kinds of records of which a run writes the last one late."""
_LEAST_SECONDS = 0.001
_NEARLY_NOW_SECONDS = 1.0


def unix_seconds(record: Record) -> float | None:
    """When the record was written; None in older logs."""
    found = number(record, "at")
    return found if found is not None and 0 < found < _LAST_UNIX_SECONDS else None


def clock_text(at: float | None) -> str:
    """`2026-03-01 14:05:59 UTC`: the same page on every machine."""
    if at is None:
        return "an unknown time"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class WorkClock:
    """Seconds of work out of the times of records: without pauses, and never backwards.

    A system clock that was set back in the middle of a run shifts what follows, so that time moves on. A record
    that was held back and written late looks the same; its own count of seconds, or its kind, identifies it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last_at: float | None = None
        self._offset_seconds = 0.0
        self._counted_from = 0.0

    def open_session(self) -> None:
        """The time until the next record is a pause."""
        self._last_at = None
        self._counted_from = self.seconds

    def move(self, record: Record) -> float | None:
        """Move on to the record's time; for a record written late, return when it happened instead."""
        at = unix_seconds(record)
        if at is None:
            self.seconds += _own_seconds(record)
            return None
        if self._last_at is None:
            self._offset_seconds = self.seconds - at
        elif at < self._last_at:
            if self._is_late(record):
                return at + self._offset_seconds
            elapsed = _elapsed(record)
            counted = 0.0 if elapsed is None else self._counted_from + elapsed - self.seconds
            self.seconds += max(_own_seconds(record), counted, _LEAST_SECONDS)
            self._offset_seconds = self.seconds - at
        self.seconds = max(self.seconds, at + self._offset_seconds)
        self._last_at = at
        elapsed = _elapsed(record)
        if elapsed is not None:
            self._counted_from = self.seconds - elapsed
        return None

    def is_nearly_now(self, happened_seconds: float) -> bool:
        """Whether a chart hardly shows the difference; a long run holds records back longer."""
        return self.seconds - happened_seconds <= max(_NEARLY_NOW_SECONDS, self.seconds / 200)

    def _is_late(self, record: Record) -> bool:
        if text(record, "event") not in _HELD_BACK:
            return False
        elapsed = _elapsed(record)
        return elapsed is None or self._counted_from + elapsed <= self.seconds


def _elapsed(record: Record) -> float | None:
    """Seconds since the session began, by a clock that nobody sets."""
    found = number(record, "elapsed_seconds")
    return found if found is not None and 0 <= found < 1e10 else None


def _own_seconds(record: Record) -> float:
    """The duration that the record names; the seconds of a forecast have not passed."""
    if text(record, "event") == "forecast":
        return 0.0
    return max(0.0, number(record, "seconds") or 0.0)
