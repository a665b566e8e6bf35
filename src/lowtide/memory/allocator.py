"""Choose which freed memory glibc keeps for the next use and which it returns to the system.

By itself glibc raises the size from which it returns memory whenever a large piece is freed, until tables of
tens of megabytes stay in its arenas for good. Measured on 1 GB of text with two encoders that were renewed 13
times: 165 MiB at the peak with a fixed size, 211 MiB without.
"""

from __future__ import annotations

import ctypes
import sys

from lowtide.units import GIB, MIB

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES = 6 * MIB
"""Above the buffers of a block (2 MiB of ids), which must be reused: fresh pages cost 18 × a warm copy."""
_KEPT_BYTES = 8 * MIB


def return_large_pieces() -> bool:
    """Return pieces above 6 MiB to the system when freed, from now on. False where there is no glibc."""
    settings = ((_M_MMAP_THRESHOLD, _LARGE_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES))
    return all(_call("mallopt", *pair) for pair in settings)


def keep_large_pieces() -> bool:
    """From now on, pieces up to 64 MiB are kept for the next use. False where there is no glibc.

    For steps that need the same large tensors again and again: fresh pages took a fifth of a CPU's time.
    Pieces above, which are logits, go back: the gap that a kept one leaves is taken by smaller pieces, and
    another is made beside it. gpt2-pico took 270 MiB more with them, and 15.0 CPU seconds instead of 17.1.
    """
    settings = ((_M_MMAP_THRESHOLD, 64 * MIB), (_M_TRIM_THRESHOLD, GIB))
    return all(_call("mallopt", *pair) for pair in settings)


def give_back() -> bool:
    """Return freed heap pages to the system (glibc's malloc_trim); whether any went back.

    Freeing 98 % of many small objects returns nothing by itself. Collects no garbage.
    """
    return _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> bool:
    """Call a function of glibc's allocator, where there is one."""
    if sys.platform != "linux":
        return False
    function = getattr(ctypes.CDLL(None), name, None)
    return bool(function(*arguments)) if function is not None else False
