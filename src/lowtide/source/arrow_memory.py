"""How much memory Arrow holds, and how it is made to return it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


def arrow_bytes() -> int:
    """Memory that Arrow has allocated in this process: pages, dictionaries, batches of rows."""
    return int(pa.total_allocated_bytes())


@contextmanager
def plain_allocation() -> Iterator[None]:
    """A context in which Arrow uses malloc, which returns freed pages at once; its own pools keep them."""
    before = pa.default_memory_pool()
    # mimalloc reserves 1 GiB at its first use, which must come before a fence counts, not inside it.
    pa.allocate_buffer(1)
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
