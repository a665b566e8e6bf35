"""Choose the memory budget, once for a command, and check what is to be spent against it.

    limit (what the machine allows) → budget (what the user allows) → needs (what each package asks for)

Too small a budget is refused before anything starts, naming the smallest that works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lowtide.errors import DoesNotFitError, UsageError
from lowtide.memory.limits import MemoryLimit
from lowtide.units import GIB, MIB, format_bytes, parse_bytes, round_up_to_mib

DEFAULT_SHARE = 4
"""Without `--memory` a quarter of the limit is taken, which leaves the rest to other work."""
DEFAULT_MOST_BYTES = 2 * GIB
DEFAULT_LEAST_BYTES = 256 * MIB

_RULES = {
    "named": "as named",
    "default": "by default",
    "spare": "by default, which leaves a quarter of the memory free",
}
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much private memory the whole process tree may take."""

    total_bytes: int
    source: Literal["named", "default", "spare"]
    limit: MemoryLimit

    @property
    def in_words(self) -> str:
        """The budget and the limit behind it, such as `1.0 GiB as named (available memory: 8.0 GiB)`."""
        limit = f"{self.limit.source}: {format_bytes(self.limit.total_bytes)}"
        return f"{self.size_in_words} ({limit})"

    @property
    def size_in_words(self) -> str:
        """The size and the rule it follows from, such as `1.0 GiB as named`."""
        return f"{format_bytes(self.total_bytes)} {_RULES[self.source]}"


def choose_budget(text: str | int | None, limit: MemoryLimit, *, generous: bool = False) -> Budget:
    """`"1GiB"` or bytes, `"50%"` of the limit, or `None`: a quarter of it, at most 2 GiB. At most the limit.

    With `generous`, for work whose size the user has chosen already, such as a model, `None` leaves a
    quarter free.
    """
    if isinstance(text, int):
        text = f"{text} B"
    if text is not None and not isinstance(text, str):
        raise UsageError(
            f"memory cannot be {text!r}", remedy='pass a size such as "1GiB", a share, or bytes'
        )
    if text is None:
        if generous:
            return Budget(total_bytes=limit.spare_bytes, source="spare", limit=limit)
        quarter = min(limit.total_bytes // DEFAULT_SHARE, DEFAULT_MOST_BYTES)
        default = min(max(quarter, DEFAULT_LEAST_BYTES), limit.total_bytes)
        return Budget(total_bytes=default, source="default", limit=limit)
    total_bytes = _named_bytes(text, limit)
    if total_bytes > limit.total_bytes:
        raise DoesNotFitError(
            f"--memory {text} is more than the {format_bytes(limit.total_bytes)} "
            f"that {limit.source} allows",
            remedy=f"pass `--memory 90%` ({format_bytes(limit.total_bytes * 9 // 10)}) or less",
        )
    return Budget(total_bytes=total_bytes, source="named", limit=limit)


def check_needs(budget: Budget, needs: Mapping[str, int]) -> None:
    """Raise DoesNotFitError unless the needs together fit. It names the largest part and what would work."""
    wanted_bytes = sum(needs.values())
    if wanted_bytes <= budget.total_bytes:
        return
    largest = max(needs, key=lambda name: needs[name])
    raise DoesNotFitError(
        f"needs {format_bytes(wanted_bytes)} but the budget is {budget.size_in_words}; "
        f"the largest part is {largest} ({format_bytes(needs[largest])})",
        remedy=advise_memory(budget.limit, wanted_bytes),
    )


def advise_memory(limit: MemoryLimit, wanted_bytes: int) -> str:
    """A remedy: the `--memory` that is enough or, where the machine does not have it, to run elsewhere."""
    enough = round_up_to_mib(wanted_bytes)
    if parse_bytes(enough) <= limit.total_bytes:
        return f"pass `--memory {enough}` or more"
    return (
        f"run where `--memory {enough}` is allowed: "
        f"{limit.source} allows {format_bytes(limit.total_bytes)} here"
    )


def _named_bytes(text: str, limit: MemoryLimit) -> int:
    percent = _PERCENT.fullmatch(text)
    named = int(limit.total_bytes * float(percent[1]) / 100) if percent else parse_bytes(text)
    if named <= 0:
        raise UsageError(
            f"--memory {text} leaves nothing to work with",
            remedy="pass `--memory 256MiB` or more, or leave it out",
        )
    return named
