"""Judge how close a process tree is to running out of memory. What follows is up to the caller.

    CALM → NOTE (say so) → GIVE_BACK (pause intake, drop caches) → STOP (seal and leave, resumable)

Never wait for the kernel: it kills without asking, and only after the machine has been slow for minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path

from lowtide.memory.budget import Budget
from lowtide.memory.meter import measure_tree
from lowtide.memory.proc_files import machine_memory, read_text
from lowtide.units import MIB, format_bytes

NOTE_SHARE = 0.80
GIVE_BACK_SHARE = 0.85
STOP_SHARE = 0.97

STALL_PERCENT = 40.0
"""When all work waited for memory for this share of the last ten seconds, the machine is thrashing."""


class Stage(IntEnum):
    """How grave a verdict is. Ordered: `max` of two is the one to follow."""

    CALM = 0
    NOTE = 1
    GIVE_BACK = 2
    STOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureSample:
    """Memory that the process tree uses and that the machine has left."""

    private_bytes: int
    mapped_bytes: int
    """Mapped page cache: shown, never judged."""
    swapped_bytes: int
    available_bytes: int
    total_ram_bytes: int
    stalled_percent: float | None
    """PSI `full avg10`; `None` where the kernel does not report it."""


def take_sample(*, root: Path = Path("/"), without: Collection[int] = ()) -> PressureSample:
    """Measure this process tree and the machine; milliseconds, so about once a second.

    Child processes in `without`, and their descendants, are left out.
    """
    use = measure_tree(without=without)
    available, total = machine_memory(root)
    return PressureSample(
        private_bytes=use.private_bytes,
        mapped_bytes=use.mapped_file_bytes,
        swapped_bytes=use.swapped_bytes,
        available_bytes=available,
        total_ram_bytes=total,
        stalled_percent=stalled_percent(read_text(root / "proc/pressure/memory")),
    )


def judge(sample: PressureSample, budget: Budget) -> tuple[Stage, str]:
    """The gravest verdict and its reason; a pure function. CALM's reason is empty."""
    verdicts = (
        _judge_use(sample, budget.total_bytes),
        _judge_available(sample),
        _judge_stall(sample),
    )
    return max(verdicts, key=itemgetter(0))


def floor_bytes(total_ram_bytes: int) -> int:
    """Memory that must stay free on a machine: 2 % of it, 512 MiB at most."""
    return min(total_ram_bytes // 50, 512 * MIB)


def _judge_use(sample: PressureSample, budget_bytes: int) -> tuple[Stage, str]:
    """Swapped pages count as well: they left memory only because there was not enough of it."""
    used_bytes = sample.private_bytes + sample.swapped_bytes
    stage = Stage.CALM
    for share, reached in (
        (NOTE_SHARE, Stage.NOTE),
        (GIVE_BACK_SHARE, Stage.GIVE_BACK),
        (STOP_SHARE, Stage.STOP),
    ):
        stage = reached if used_bytes >= share * budget_bytes else stage
    reason = f"{format_bytes(used_bytes)} of the budget of {format_bytes(budget_bytes)} are used"
    return stage, reason if stage else ""


def _judge_available(sample: PressureSample) -> tuple[Stage, str]:
    """Below the floor stop; below twice the floor give back; below three times say so."""
    floor = floor_bytes(sample.total_ram_bytes)
    times = sample.available_bytes / floor if floor else 3.0
    if times >= 3:
        return Stage.CALM, ""
    stage = Stage.STOP if times < 1 else Stage.GIVE_BACK if times < 2 else Stage.NOTE
    return stage, f"only {format_bytes(sample.available_bytes)} of the machine's memory are left"


def _judge_stall(sample: PressureSample) -> tuple[Stage, str]:
    """A stall alone may be page cache reclaimed in a tight cgroup; with little free memory it is not."""
    if sample.stalled_percent is None or sample.stalled_percent < STALL_PERCENT:
        return Stage.CALM, ""
    scarce = sample.available_bytes < 4 * floor_bytes(sample.total_ram_bytes)
    reason = f"the machine stood still for memory {sample.stalled_percent:.0f} % of ten seconds"
    return (Stage.STOP if scarce else Stage.NOTE), reason


def stalled_percent(text: str | None) -> float | None:
    """12.5 out of `full avg10=12.50 avg60=… `."""
    for line in (text or "").splitlines():
        kind, _, rest = line.partition(" avg10=")
        if kind == "full":
            return float(rest.split(" ")[0])
    return None
