"""The numbers in an out-of-memory message: what was asked for, and how full the card was.

torch prints sizes with two decimals, and of what it asked the card for: blocks of 2 MiB for a large tensor,
20 MiB for anything of 1 to 10 MiB, 2 MiB for what is smaller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lowtide.units import GIB, KIB, MIB

_MOST_BYTES = 2.0**62
"""A log may say anything."""
_UNITS = {
    "b": 1,
    "bytes": 1,
    "kib": KIB,
    "kb": KIB,
    "mib": MIB,
    "mb": MIB,
    "gib": GIB,
    "gb": GIB,
    "tib": GIB << 10,
}
"""`MB` is in these messages what others write as `MiB`."""  # fmt: skip
_SIZE = r"(\d+(?:\.\d*)?) ?(bytes|[KMGT]i?B)\b"
_TORCH = re.compile(r"Tried to allocate " + _SIZE)
_OTHERS = (
    re.compile(r"(?:you tried to allocate|trying to allocate|memory allocating|Unable to allocate) " + _SIZE),
    re.compile(r"(?:malloc of size|memory allocation of) (\d+)( |$)"),
)  # fmt: skip
_FIGURES = {
    "total_bytes": (rf"{_SIZE} total capacity", rf"total capac?i?ty of {_SIZE}", rf"max allowed: {_SIZE}"),
    "free_bytes": (rf"{_SIZE} free\b", rf"of which {_SIZE} is free"),
    "allocated_bytes": (
        rf"{_SIZE} already allocated",
        rf"Of the allocated memory {_SIZE} is allocated",
        rf"MPS allocated: {_SIZE}",
    ),
    "reserved_bytes": (rf"{_SIZE} reserved in total", rf"{_SIZE} cached"),
    "unused_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
}  # fmt: skip
_COMPILED = {name: [re.compile(text) for text in texts] for name, texts in _FIGURES.items()}
_OTHER_PROCESS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")

SMALL_BLOCK = 2 * MIB
MIDDLE_BLOCK = 20 * MIB
_OWN_OVERHEAD_BYTES = GIB
"""A process holds about this much on a card beside torch's tensors, and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A size as it was printed: somewhere between two numbers of bytes."""

    text: str
    low_bytes: int
    high_bytes: int
    in_blocks: bool
    """torch's: rounded up to whole blocks before it was printed."""

    def fits(self, size_bytes: int) -> bool:
        """Whether a tensor of that size would have been printed so."""
        rounded = round_as_torch(size_bytes) if self.in_blocks else size_bytes
        return self.low_bytes <= rounded <= self.high_bytes

    @property
    def tells_nothing(self) -> bool:
        """The block that torch takes for any small tensor."""
        blocks = (SMALL_BLOCK, MIDDLE_BLOCK)
        return self.in_blocks and any(self.low_bytes <= one <= self.high_bytes for one in blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """How the card stood; `None` where the message does not say."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """In tensors that are alive."""
    unused_bytes: int | None = None
    """Held by torch in pieces that were all too small, or not in one place."""
    other_pid: int | None = None
    other_bytes: int | None = None
    """Another process on the same card."""


def round_as_torch(size_bytes: int) -> int:
    """What torch's allocator asks the card for when a tensor needs that much."""
    if size_bytes <= MIB:
        return SMALL_BLOCK
    if size_bytes < 10 * MIB:
        return MIDDLE_BLOCK
    return -(-size_bytes // SMALL_BLOCK) * SMALL_BLOCK


def read_asked(line: str) -> Asked | None:
    """The size that was refused."""
    if match := _TORCH.search(line):
        return _asked(match, in_blocks="MPS" not in line)
    for pattern in _OTHERS:
        if match := pattern.search(line):
            return _asked(match, in_blocks=False)
    return None


def read_gpu_figures(line: str) -> GpuFigures:
    """All figures of torch's messages, from release 1.0 to 2.11."""
    found = {name: _first_size(line, patterns) for name, patterns in _COMPILED.items()}
    allocated, reserved, unused = (
        found[f"{name}_bytes"] for name in ("allocated", "reserved", "unused")
    )
    if unused is None and allocated is not None and reserved is not None:
        # "cached" of the first releases was the unused part alone
        unused = reserved if "cached" in line else max(0, reserved - allocated)
    other_pid, other_bytes = _other_process(line, found["process_bytes"], allocated, unused)
    return GpuFigures(
        total_bytes=found["total_bytes"],
        free_bytes=found["free_bytes"],
        allocated_bytes=allocated,
        unused_bytes=unused,
        other_pid=other_pid,
        other_bytes=other_bytes,
    )


def _other_process(
    line: str, own_bytes: int | None, allocated: int | None, unused: int | None
) -> tuple[int | None, int | None]:
    """Someone else on the card. In a container torch calls the process itself by a number: that is none."""
    ours = (allocated or 0) + (unused or 0) + _OWN_OVERHEAD_BYTES
    others = [
        (int(match[1]), _bytes(match[2], match[3])) for match in _OTHER_PROCESS.finditer(line)
    ]
    if own_bytes is None:
        itself = next((one for one in others if (allocated or 0) <= one[1] <= ours), None)
        others = [one for one in others if one is not itself]
    return max(others, key=lambda one: one[1], default=(None, None))


def _first_size(line: str, patterns: list[re.Pattern[str]]) -> int | None:
    for pattern in patterns:
        if match := pattern.search(line):
            return _bytes(match[1], match[2])
    return None


def _bytes(number: str, unit: str) -> int:
    return int(min(float(number) * _UNITS[unit.strip().lower() or "b"], _MOST_BYTES))


def _asked(match: re.Match[str], *, in_blocks: bool) -> Asked:
    number, unit = match[1], match[2].strip() or "bytes"
    factor = _UNITS[unit.lower()]
    size = min(float(number) * factor, _MOST_BYTES)
    decimals = len(number.partition(".")[2])
    slack = 0.5 * 10**-decimals * factor if factor > 1 else 0.0
    return Asked(
        text=f"{number.rstrip('.')} {unit}",
        low_bytes=int(size - slack),
        high_bytes=int(size + slack) + (factor > 1),
        in_blocks=in_blocks,
    )
