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
    """Memory that can be taken without swapping, and installed memory, in bytes.

    From `/proc/meminfo` or, where that is missing, from psutil.
    """
    fields = kib_fields(read_text(root / "proc/meminfo") or "")
    if "MemAvailable" in fields and "MemTotal" in fields:
        return fields["MemAvailable"], fields["MemTotal"]
    import psutil  # type: ignore[import-untyped, unused-ignore] # seldom needed, slow to load

    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def stalled_percent(root: Path = Path("/")) -> float | None:
    """12.5 out of `full avg10=12.50 avg60=…` in `/proc/pressure/memory`; None where the kernel has no PSI."""
    for line in (read_text(root / "proc/pressure/memory") or "").splitlines():
        kind, _, rest = line.partition(" avg10=")
        if kind == "full":
            return float(rest.split(" ")[0])
    return None
