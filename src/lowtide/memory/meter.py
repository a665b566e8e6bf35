"""Measure the memory that is used: private memory apart from page cache, for this process or a whole tree.

Private is anonymous plus shared-memory pages. A 6 GB file scanned through a map shows 4.9 GB of
resident memory and 14 MB private: the kernel takes file pages back whenever it likes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from lowtide.memory.proc_files import kib_fields, read_text
from lowtide.memory.reading import ProcessUse

_PROC = Path("/proc")
_STATUS_BYTES = 1 << 13
_REREAD_SECONDS = 1.0
"""How long after the first walk a new one may begin."""
_EXEC_SECONDS = 0.01
"""A child has started its program within this time, as a rule."""
_KCMP_NUMBERS = {"x86_64": 312, "aarch64": 272, "riscv64": 272}
"""The system call that compares what two processes share; the C library has no function for it."""
_KCMP_VM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The memory of a process, or of several together."""

    private_bytes: int
    """Anonymous and shared-memory pages; pages that processes share are counted once."""
    mapped_file_bytes: int
    """Page cache the tree has mapped: given back by the kernel under pressure, not counted."""
    swapped_bytes: int
    process_count: int
    exact: bool
    """False for an estimate: all that macOS and Windows offer."""


NOTHING_USED = MemoryUse(
    private_bytes=0, mapped_file_bytes=0, swapped_bytes=0, process_count=0, exact=True
)


def private_bytes() -> int:
    """Private memory of this process alone; 13 µs on Linux, so a hot loop may ask once per block."""
    try:
        status = os.open("/proc/self/status", os.O_RDONLY)
    except OSError:
        estimate = estimate_process(os.getpid())
        return estimate.private_bytes if estimate else 0
    try:
        text = os.read(status, _STATUS_BYTES)
    finally:
        os.close(status)
    return _kib_after(text, b"RssAnon:") + _kib_after(text, b"RssShmem:")


def measure_tree(pid: int | None = None, *, without: Collection[int] = ()) -> MemoryUse:
    """Memory of the process and all its descendants, `NOTHING_USED` when it has ended.

    Children in `without`, and their descendants, are left out.

    Walks page tables: about a millisecond per process and 100 MB, so once a second is often enough.
    """
    return measure_processes(list(tree_of(os.getpid() if pid is None else pid, without)))


def measure_processes(pids: Sequence[int]) -> MemoryUse:
    """Memory of these processes together; pages that they share are counted once.

    The kernel divides a shared page among the processes that have it at that moment. When one of them ends
    between two readings, its share is counted again with the others: then those that are left are read again.
    After a second of that the last figure stays. It can only be too high.
    """
    if len(pids) > 1:
        pids = with_own_memory(pids)
    last = None
    while True:
        uses = {pid: found for pid in pids if (found := _measure_one(pid))}
        left = [pid for pid in uses if _is_alive(pid)]
        last = last or time.monotonic() + _REREAD_SECONDS
        if len(pids) <= 1 or len(left) == len(pids) or time.monotonic() > last:
            return MemoryUse(
                private_bytes=sum(use.private_bytes for use, _ in uses.values()),
                mapped_file_bytes=sum(use.mapped_bytes for use, _ in uses.values()),
                swapped_bytes=sum(use.swapped_bytes for use, _ in uses.values()),
                process_count=len(uses),
                exact=all(exact for _, exact in uses.values()),
            )
        pids = left  # fewer each time, so this ends


def with_own_memory(pids: Collection[int], root: Path = Path("/")) -> list[int]:
    """Those of the processes that have memory of their own.

    Left out are processes that have ended, zombies, and children between vfork and exec, as `subprocess` starts
    them: such a child runs in its parent's memory, and the system shows all of it for both.
    """
    if sys.platform != "linux":
        return list(pids)
    texts = {pid: read_text(root / f"proc/{pid}/status") or "" for pid in pids}
    found = {pid: text for pid, text in texts.items() if "\nRssAnon:" in text}
    own, is_unsure = [], False
    for pid, text in found.items():
        parent = int(text.partition("\nPPid:")[2].partition("\n")[0] or 0)
        is_same = _is_same_memory(pid, parent) if parent in found else False
        if is_same is None:
            is_unsure |= _sizes(text) == _sizes(found[parent])
        if not is_same:
            own.append(pid)
    if is_unsure:
        time.sleep(_EXEC_SECONDS)  # a child between vfork and exec has its own memory then
    return own


def _is_same_memory(pid: int, other: int) -> bool | None:
    """None where the system does not say: Docker's seccomp filter forbids the question."""
    number = _KCMP_NUMBERS.get(os.uname().machine)
    if number is None:
        return None
    order = _system_call()(number, pid, other, _KCMP_VM, 0, 0)
    if order < 0:
        return False if ctypes.get_errno() == errno.ESRCH else None
    return bool(order == 0)


@cache
def _system_call() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.argtypes, function.restype = [ctypes.c_long] * 6, ctypes.c_long
    return function


def _sizes(status: str) -> list[int | None]:
    """Figures that a child has in common with its parent between vfork and exec."""
    fields = kib_fields(status)
    return [fields.get("VmSize"), fields.get("RssAnon")]


class PeakMeter:
    """Samples a process tree from a thread of its own and keeps the highest sample.

    >>> with PeakMeter() as meter:
    ...     block = bytearray(1 << 20)
    >>> meter.peak.private_bytes > 1 << 20
    True

    A peak shorter than the interval may be missed: a cgroup limit proves what this only measures.
    """

    def __init__(self, pid: int | None = None, *, interval_seconds: float = 0.05) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-meter", daemon=True)
        self.peak = NOTHING_USED
        self.last = NOTHING_USED
        self.sample_count = 0

    def __enter__(self) -> PeakMeter:
        """Take a first sample and continue in the background."""
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Take a last sample; the figures do not change afterwards."""
        self._stopped.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            self._sample()

    def _sample(self) -> None:
        use = measure_tree(self._pid)
        if use.process_count == 0:
            return
        self.last = use
        self.sample_count += 1
        if use.private_bytes > self.peak.private_bytes:
            self.peak = use


def _kib_after(text: bytes, name: bytes) -> int:
    """`RssAnon:      512 kB` is 524288; zero where the line is missing."""
    start = text.find(name)
    if start < 0:
        return 0
    start += len(name)
    return int(text[start : text.index(b"kB", start)]) * 1024


def tree_of(pid: int, without: Collection[int] = ()) -> Iterator[int]:
    """The process and all its descendants, parents first."""
    yield pid
    for child in child_pids(pid):
        if child not in without:
            yield from tree_of(child, without)


def child_pids(pid: int) -> list[int]:
    """The process's own children that have not ended."""
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        tasks = []
    lists = [read_text(task / "children") for task in tasks]
    if any(found is not None for found in lists):
        return [int(child) for found in lists if found is not None for child in found.split()]
    try:  # another system, or a kernel built without these lists
        return [int(child.pid) for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _measure_one(pid: int) -> tuple[ProcessUse, bool] | None:
    """Memory of one process, and whether that is exact; `None` when it has ended."""
    rollup = kib_fields(read_text(_PROC / str(pid) / "smaps_rollup") or "")
    if "Pss_Anon" in rollup:
        shared = rollup.get("Pss_Shmem", 0)
        use = ProcessUse(
            pid=pid,
            name="",
            private_bytes=rollup["Pss_Anon"] + shared,
            shared_bytes=shared,
            mapped_bytes=rollup.get("Pss_File", 0),
            swapped_bytes=rollup.get("SwapPss", 0),
        )
        return use, True
    # A process of another user, or an older kernel: pages shared in the tree count twice.
    counted = read_process(pid)
    return None if counted is None else (counted, False)


def read_process(pid: int, root: Path = Path("/")) -> ProcessUse | None:
    """One process by the counters of its `status`; None when it has ended or holds no memory."""
    if sys.platform != "linux":
        return estimate_process(pid)
    text = read_text(root / f"proc/{pid}/status") or ""
    fields = kib_fields(text)
    if "RssAnon" not in fields:
        return None  # it has ended, or it is a zombie or a thread of the kernel
    shared = fields.get("RssShmem", 0)
    return ProcessUse(
        pid=pid,
        name=text.partition("\n")[0].removeprefix("Name:").strip(),
        private_bytes=fields["RssAnon"] + shared,
        shared_bytes=shared,
        mapped_bytes=fields.get("RssFile", 0),
        swapped_bytes=fields.get("VmSwap", 0),
    )


def estimate_process(pid: int) -> ProcessUse | None:
    """What psutil knows about one process: private bytes on Windows, the unique set size elsewhere.

    `None` when the process has ended or may not be looked at.
    """
    try:
        process = psutil.Process(pid)
        info = process.memory_info()
        private = getattr(info, "private", None)
        if private is None:
            private = getattr(process.memory_full_info(), "uss", info.rss)
    except psutil.Error:
        return None
    mapped_bytes = max(0, int(info.rss) - int(private))
    return ProcessUse(pid=pid, name=str(pid), private_bytes=int(private), mapped_bytes=mapped_bytes)


def _is_alive(pid: int) -> bool:
    """Whether the process still holds memory; a zombie does not."""
    if sys.platform != "linux":
        return True
    return "\nRssAnon:" in (read_text(_PROC / str(pid) / "status") or "")
