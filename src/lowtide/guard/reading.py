"""One look at a process tree, its machine and NVIDIA's cards, cheap enough for once a second.

Exact figures (PSS) cost the kernel a walk through page tables: a second for some 100 GB, during which the job's
own allocations may wait. So every look reads the counters in `status`, which are always at hand. Now and then,
as often as it costs less than a two-hundredth of the time, an exact look tells how much was counted twice.
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
from lowtide.memory.meter import measure_processes, tree_of, with_own_memory
from lowtide.memory.pressure import stalled_percent
from lowtide.memory.proc_files import available_bytes, available_ram_bytes, kib_fields, read_text

_EXACT_SHARE = 1 / 200
"""Of the time, for exact looks."""
_TOP_COUNT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Memory of one card; what is used belongs to all processes on it."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What one process holds; memory that several share is counted for each."""

    pid: int
    name: str
    private_bytes: int
    """Anonymous and shared-memory pages."""
    shared_bytes: int
    """Of these, shared memory."""
    mapped_bytes: int
    """Page cache that it has mapped."""
    swapped_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Memory of the tree and of its machine at one moment."""

    at: float
    """Monotonic seconds."""
    private_bytes: int
    """The whole tree's, with shared pages counted once; between exact looks it may be too high."""
    shared_bytes: int
    mapped_bytes: int
    swapped_bytes: int
    process_count: int
    available_bytes: int
    swapped_in_bytes: float
    """Bytes a second that the whole machine swapped in since the last reading."""
    stalled_percent: float | None
    """How much of the last ten seconds all work stood still for memory; None where the kernel does not tell."""
    cgroup_bytes: int | None
    cgroup_limit_bytes: int | None
    gpus: tuple[GpuReading, ...] = ()
    top: tuple[ProcessUse, ...] = ()
    """The heaviest, heaviest first."""

    @property
    def used_bytes(self) -> int:
        """What counts against a limit: swapped pages left memory only because there was not enough of it."""
        return self.private_bytes + self.swapped_bytes


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
        available = available_bytes(self.root)
        return Reading(
            at=now,
            private_bytes=private,
            shared_bytes=sum(use.shared_bytes for use in uses),
            mapped_bytes=sum(use.mapped_bytes for use in uses),
            swapped_bytes=sum(use.swapped_bytes for use in uses),
            process_count=len(uses),
            available_bytes=available_ram_bytes() if available is None else available,
            swapped_in_bytes=self._swapped_in(now),
            stalled_percent=stalled_percent(read_text(self.root / "proc/pressure/memory")),
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


def read_process(pid: int, root: Path = Path("/")) -> ProcessUse | None:
    """One process by the counters of its `status`; None when it has ended or holds no memory."""
    text = read_text(root / f"proc/{pid}/status")
    if text is None:
        return _estimate(pid)
    fields = kib_fields(text)
    if "RssAnon" not in fields:
        return None  # a zombie, or a thread of the kernel
    shared = fields.get("RssShmem", 0)
    return ProcessUse(
        pid=pid,
        name=text.partition("\n")[0].removeprefix("Name:").strip(),
        private_bytes=fields["RssAnon"] + shared,
        shared_bytes=shared,
        mapped_bytes=fields.get("RssFile", 0),
        swapped_bytes=fields.get("VmSwap", 0),
    )


def _estimate(pid: int) -> ProcessUse | None:
    """A process on a system without /proc."""
    if Path("/proc/self").exists():
        return None
    use = measure_processes([pid])
    if not use.process_count:
        return None
    return ProcessUse(
        pid=pid,
        name=str(pid),
        private_bytes=use.private_bytes,
        shared_bytes=0,
        mapped_bytes=use.mapped_file_bytes,
        swapped_bytes=use.swapped_bytes,
    )


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
