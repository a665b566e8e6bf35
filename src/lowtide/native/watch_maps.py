"""A mapped file that a library reads, and that somebody may cut meanwhile: zeros and a flag, not a SIGBUS."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lowtide.native import load_native


@contextmanager
def watch_map(address: int, size_bytes: int) -> Iterator[Callable[[], bool]]:
    """Inside, pages that the file has lost are read as zeros. Yields what tells whether one was.

    What is computed from the map counts only once that was asked afterwards. `address` is where the map begins.
    """
    native = load_native()
    slot: int = native.lt_watch_map(address, size_bytes)
    if slot < 0:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
    try:
        yield lambda: bool(native.lt_map_broken(slot))
    finally:
        native.lt_let_map_go(slot)
