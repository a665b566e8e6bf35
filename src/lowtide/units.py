"""Read and write numbers with a unit. Sizes are `int` bytes in the code, text only for people."""

from __future__ import annotations

import re

from lowtide.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_SCIENTIFIC = re.compile(r"\s*\d+(?:\.\d+)?[eE]\+?\d{1,3}\s*")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*\Z")
_MOST = 1e18
"""Larger than any real count or size; beyond it, digits would be lost or a number overflow."""


def parse_bytes(text: str) -> int:
    """Turn `"6GiB"` into bytes. `GB` is decimal and `GiB` binary: a budget must not be 7% off."""
    match = _NUMBER.match(text)
    factor = _BYTE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a size",
            remedy="write a number and a unit, such as 512MiB, 6GiB or 1.5GB",
        )
    return _whole(text, float(match.group(1)) * factor)


def printable(text: str, *, keep: str = "") -> str:
    """Escape control characters: the name of a file or of a process must not control a terminal."""
    return "".join(c if c in keep or c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Like `printable`, but the indented lines of an error's list stay lines. No name can start a line."""
    return "\n  ".join(map(printable, text.split("\n  ")))


def parse_count(text: str) -> int:
    """Turn `"100M"` or `"1e8"` into 100,000,000. Counts are decimal: `k`, `M`, `B`."""
    if _SCIENTIFIC.fullmatch(text):
        return _count(text, float(text))
    match = _NUMBER.match(text.replace("_", "").replace(",", ""))
    factor = _COUNT_UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a count", remedy="write a number such as 250000, 10k or 100M"
        )
    return _count(text, float(match.group(1)) * factor)


def _count(text: str, value: float) -> int:
    nearest = round(value) if value < _MOST else value
    if abs(value - nearest) > 1e-9 * value:  # 1.005k is 1004.9999999999999
        raise UsageError(f"{text} is not a whole number", remedy="write one such as 1500 or 1.5k")
    return _whole(text, nearest)


def _whole(text: str, value: float) -> int:
    if not value < _MOST:
        shown = text if len(text) <= 24 else f"{text[:20]}…"
        raise UsageError(f"{shown} is too large", remedy=f"write a number below {_MOST:.0e}")
    return int(value)


def format_bytes(size_bytes: int) -> str:
    """`format_bytes(268435456)` is `"256.0 MiB"`: binary units, one decimal."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(abs(size), 1) < 1024:  # 1,048,575 bytes are 1.0 MiB, not 1024.0 KiB
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: int) -> str:
    """`format_count(21800000)` is `"21.8M"`; below ten thousand every digit is shown."""
    if abs(count) < 10_000:
        return str(count)
    for unit, factor in (("k", 10**3), ("M", 10**6), ("B", 10**9)):
        if abs(count) < factor * 1000:
            return f"{count / factor:.1f}{unit}"
    return f"{count / 10**12:.1f}T"


def format_seconds(seconds: float) -> str:
    """`"0.4s"`, `"12s"`, `"3m 20s"`, `"5h 02m"`: two figures are enough to plan by."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def round_up_to_mib(size_bytes: int) -> str:
    """The size rounded up to whole MiB, as a flag's value: `"161MiB"`."""
    return f"{-(-size_bytes // MIB)}MiB"
