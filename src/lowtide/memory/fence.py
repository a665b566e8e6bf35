"""Limit memory around risky decoding: a runaway allocation becomes a MemoryError, not a dead machine.

RLIMIT_DATA counts private writable memory only. RLIMIT_AS would count mapped files as well and
break every memory map.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowtide.memory.proc_files import kib_fields, read_text

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_IGNORED_FLAG = Path("/sys/module/kernel/parameters/ignore_rlimit_data")


@contextmanager
def fence(extra_bytes: int) -> Iterator[bool]:
    """Let this process grow by `extra_bytes` of data inside the block; beyond, allocations fail.

    Yields whether the limit is in force: only Linux has it. It holds for every thread, counts what is
    reserved even if never touched, and is inherited by children, so keep the block short and let
    one thread at a time use it. A fence inside a fence can only be tighter.
    """
    data_bytes = _data_bytes()
    if data_bytes is None:
        yield False
        return
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = data_bytes + extra_bytes
    if before != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, before)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _data_bytes() -> int | None:
    """Private writable memory reserved so far; `None` where a fence would not hold."""
    if sys.platform != "linux" or resource is None:
        return None
    if (read_text(_IGNORED_FLAG) or "").strip() == "Y":
        return None
    return kib_fields(read_text(Path("/proc/self/status")) or "").get("VmData")
