"""What a record says, looked at with care: a log may be old, cut, or written by someone else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

Record = Mapping[str, object]
_LAST_UNIX_SECONDS = 253_402_300_799
"""The end of the year 9999."""
_MOST_CHARACTERS = 20_000
_MOST_VALUE = 1e30
"""Sums of larger ones would not be finite."""


def number(record: Record, name: str) -> float | None:
    """A number that may have been measured, or None."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < _MOST_VALUE else None  # what is not a number is not less either


def whole(record: Record, name: str) -> int | None:
    """A whole number that is not negative, or None."""
    value = number(record, name)
    return int(value) if value is not None and 0 <= value < 1e18 else None


def text(record: Record, name: str) -> str:
    """A string, its beginning where it is long; empty where there is none."""
    value = record.get(name)
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def mapping(record: Record, name: str) -> Mapping[str, object]:
    """An object; empty where there is none."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def mappings(record: Record, name: str, most: int) -> list[Mapping[str, object]]:
    """The first objects of a list."""
    value = record.get(name)
    return [one for one in value[:most] if isinstance(one, dict)] if isinstance(value, list) else []


def unix_seconds(record: Record) -> float | None:
    """When the record was written; None in older logs."""
    found = number(record, "at")
    return found if found is not None and 0 < found < _LAST_UNIX_SECONDS else None


def clock_text(at: float | None) -> str:
    """`2026-03-01 14:05:59 UTC`: the same page on every machine."""
    if at is None:
        return "an unknown time"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
