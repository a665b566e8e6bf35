"""One look at a process tree, its machine and NVIDIA's cards, cheap enough for once a second.

Exact figures (PSS) cost the kernel a walk through page tables: a second for some 100 GB, during which the job's
own allocations may wait. So every look reads the counters in `status`, which are always at hand. Now and then,
as often as it costs less than a two-hundredth of the time, an exact look finds how much was counted twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lowtide.guard.box import Box
from lowtide.memory.cgroups import MemoryCgroup, cgroup_limits, memory_cgroups
from lowtide.memory.meter import measure_processes, read_process, tree_of, with_own_memory
from lowtide.memory.proc_files import machine_memory, read_text, stalled_percent
from lowtide.memory.reading import GpuReading, ProcessUse, Reading

_EXACT_SHARE = 1 / 200
"""Share of the time that exact looks may take."""
_TOP_COUNT = 5


@dataclass(slots=True)
class Reader:
    """Reads one tree again and again."""

    pid: int
    box: Box | None = None
    find_members: Callable[[], list[int]] | None = None
    """Lists the processes better than the tree below `pid`, as a `Job` does."""
    read_gpus: Callable[[], Sequence[GpuReading]] = tuple
    root: Path = Path("/")
    _counted_twice: int = 0
    _counted: frozenset[int] = frozenset()
    """The processes that `_counted_twice` is about."""
    _next_exact: float = 0.0
    _swap: tuple[float, int] | None = None
    _groups: list[MemoryCgroup] | None = None

    def read(self, *, exactly: bool = False) -> Reading | None:
        """One reading; None when nothing of the tree is left. `exactly` before something is done about it."""
        now = time.monotonic()
        members = self.find_members() if self.find_members else list(tree_of(self.pid))
        pids = with_own_memory(members, self.root)
        uses = [use for pid in pids if (use := read_process(pid, self.root))]
        if not uses:
            return None
        private = self._private(now, uses, exactly=exactly)
        cgroup_bytes, cgroup_limit = self._cgroup()
        return Reading(
            at=now,
            private_bytes=private,
            shared_bytes=sum(use.shared_bytes for use in uses),
            mapped_bytes=sum(use.mapped_bytes for use in uses),
            swapped_bytes=sum(use.swapped_bytes for use in uses),
            process_count=len(uses),
            available_bytes=machine_memory(self.root)[0],
            swapped_in_bytes=self._swapped_in(now),
            stalled_percent=stalled_percent(self.root),
            cgroup_bytes=cgroup_bytes,
            cgroup_limit_bytes=cgroup_limit,
            gpus=tuple(self.read_gpus()),
            top=tuple(sorted(uses, key=lambda use: -use.private_bytes)[:_TOP_COUNT]),
        )

    def _private(self, now: float, uses: Sequence[ProcessUse], *, exactly: bool) -> int:
        """A box that holds all of them counts every page once. Else: the counters, minus what the last exact
        look at these very processes found counted twice; a single process shares with nobody."""
        counters, pids = sum(use.private_bytes for use in uses), frozenset(use.pid for use in uses)
        if self.box is not None and pids <= set(self.box.members()):
            boxed = self.box.private_bytes()
            if boxed is not None:
                return boxed
        if len(uses) > 1 and (exactly or now >= self._next_exact):
            exact = measure_processes(list(pids)).private_bytes
            self._counted_twice, self._counted = max(0, counters - exact), pids
            self._next_exact = now + max(1.0, (time.monotonic() - now) / _EXACT_SHARE)
        return counters - (self._counted_twice if self._counted == pids else 0)

    def _cgroup(self) -> tuple[int | None, int | None]:
        """Use and limit of the cgroup nearest to its limit: the job's own box, or one of those above us."""
        if self.box is not None and self.box.limit_bytes() is not None:
            return self.box.charged_bytes(), self.box.limit_bytes()
        if self._groups is None:
            self._groups = memory_cgroups(self.root)
        found = cgroup_limits(self._groups)
        known = [(one.used_bytes, one.limit_bytes) for one in found if one.used_bytes is not None]
        return min(known, key=lambda pair: pair[1] - pair[0], default=(None, None))

    def _swapped_in(self, now: float) -> float:
        text = read_text(self.root / "proc/vmstat") or ""
        pages = sum(int(line[7:]) for line in text.splitlines() if line.startswith("pswpin "))
        before, self._swap = self._swap, (now, pages)
        if before is None or now <= before[0]:
            return 0.0
        return (pages - before[1]) * os.sysconf("SC_PAGE_SIZE") / (now - before[0])


@contextmanager
def open_gpus() -> Iterator[tuple[Callable[[], Sequence[GpuReading]], str | None]]:
    """A function that reads every card through nvidia-ml-py, and why none can be read, or None."""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        yield tuple, "GPUs are not read: `pip install 'lowtide[gpu]'` brings nvidia-ml-py"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as reason:
        yield tuple, f"no GPU is read: {reason}"
        return
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]

        def read() -> list[GpuReading]:
            try:
                return [_read(pynvml, index, handle) for index, handle in enumerate(handles)]
            except pynvml.NVMLError:  # a card that was lost on the way
                return []

        yield read, None
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: object, index: int, handle: object) -> GpuReading:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    name = nvml.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    return GpuReading(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
    )
