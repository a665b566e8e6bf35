"""Is torch there? Asked without loading it."""

from __future__ import annotations

import importlib.util

from lowtide.errors import UsageError


def need_torch(
    why: str = "a loader gives torch tensors",
    *,
    instead: str = ", or use `batch`, which gives numpy arrays",
) -> None:
    """UsageError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"{why}, and torch is not installed", remedy=f"`pip install 'lowtide[train]'`{instead}"
        )
