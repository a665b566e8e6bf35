"""Linux's own files, read without surprises: what vanished, or is not there, is `None`."""

from __future__ import annotations

from pathlib import Path

from lowtide.units import KIB


def read_text(path: Path) -> str | None:
    """The file's text; `None` where it is missing, forbidden, or its process ended meanwhile."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def kib_fields(text: str) -> dict[str, int]:
    """`{"RssAnon": 8192}` out of `RssAnon:  8 kB`: every line that carries kB, in bytes."""
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            fields[name] = int(rest[:-3]) * KIB
    return fields


def available_bytes(root: Path) -> int | None:
    """MemAvailable: what can be taken without swapping. `None` without a Linux `/proc`."""
    return kib_fields(read_text(root / "proc/meminfo") or "").get("MemAvailable")


def total_ram_bytes(root: Path) -> int | None:
    """MemTotal: what the kernel manages. `None` without a Linux `/proc`."""
    return kib_fields(read_text(root / "proc/meminfo") or "").get("MemTotal")
