"""What stands where there is no target."""

from __future__ import annotations

IGNORED = -100
"""The target of padding, and of a position that nothing follows; `cross_entropy` leaves it out too."""
