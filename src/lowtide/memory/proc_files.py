"""Linux's own files, read without surprises, and psutil's figures on systems that have none."""

from __future__ import annotations

from pathlib import Path

from lowtide.units import KIB


def read_text(path: Path) -> str | None:
    """The file's text; `None` where it is missing, forbidden, or its process has just ended."""
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


def machine_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Available and installed memory in bytes, from `/proc/meminfo` or, where that is missing, from psutil."""
    available, installed = available_bytes(root), total_ram_bytes(root)
    if available is None or installed is None:
        return available_ram_bytes(), installed_ram_bytes()
    return available, installed


def available_bytes(root: Path) -> int | None:
    """MemAvailable: what can be taken without swapping. `None` without a Linux `/proc`."""
    return kib_fields(read_text(root / "proc/meminfo") or "").get("MemAvailable")


def total_ram_bytes(root: Path) -> int | None:
    """MemTotal: what the kernel manages. `None` without a Linux `/proc`."""
    return kib_fields(read_text(root / "proc/meminfo") or "").get("MemTotal")


def available_ram_bytes() -> int:
    """Memory that can be taken without swapping, as far as psutil can tell."""
    import psutil  # type: ignore[import-untyped, unused-ignore] # seldom needed, slow to load

    return int(psutil.virtual_memory().available)


def installed_ram_bytes() -> int:
    """The machine's memory, as psutil tells it."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    return int(psutil.virtual_memory().total)
