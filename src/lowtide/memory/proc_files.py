"""Linux's own files, read without surprises, and psutil's figures on systems that have none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lowtide.units import KIB

_OCTAL = re.compile(r"\\([0-7]{3})")


def read_text(path: Path) -> str | None:
    """The file's text; `None` where it is missing, forbidden, or its process has just ended."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of `/proc/self/mountinfo`: `31 23 0:28 TOP PLACE rw … - KIND source OPTIONS`."""

    top: str
    """The folder of the mounted tree that is seen at `place`."""
    place: str
    kind: str
    options: str


def read_mounts(root: Path) -> Iterator[Mount]:
    """All mounts that this process sees; none without a Linux `/proc`."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if len(before) >= 5 and len(after) >= 3:
            top, place = (
                _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in before[3:5]
            )
            yield Mount(top, place, after[0], after[2])


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
