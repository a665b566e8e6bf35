"""What decides the batches of a dataset, checked before anything is opened."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal, SupportsIndex, TypeAlias

from lowtide.errors import UsageError

WindowKind: TypeAlias = Literal["contiguous", "document"]
OrderKind: TypeAlias = Literal["shuffled", "sequential"]

IGNORE_INDEX = -100
"""The target that `torch.nn.functional.cross_entropy` ignores by default."""
LARGEST_CONTEXT = 1 << 24
LAST_POSITION = 1 << 61
"""Windows after it cannot be counted in 64 bits; at a million a second that is 70,000 years away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of a `TokenDataset`, which decide its batches: equal settings give equal batches."""

    path: str
    split: str
    context: int
    seed: int
    windows: WindowKind
    order: OrderKind
    val_fraction: float | None
    tokenizer: str | None
    ignore_index: int

    def __post_init__(self) -> None:
        if not 1 <= self.context <= LARGEST_CONTEXT:
            raise UsageError(
                f"a context of {self.context} tokens is out of range",
                remedy=f"pass one of 1 to {LARGEST_CONTEXT}",
            )
        if self.ignore_index >= 0:
            raise UsageError(
                f"{self.ignore_index} may be a token id, so it cannot mark positions without a target",
                remedy="pass `ignore_index=-100`, or another number below zero",
            )
        if self.val_fraction is not None and not isinstance(self.val_fraction, int | float):
            raise UsageError(
                f"`val_fraction` is {self.val_fraction!r}, which is not a number",
                remedy="pass `val_fraction=0.1`",
            )
        if self.windows not in ("contiguous", "document"):
            raise UsageError(
                f"there are no {self.windows!r} windows",
                remedy="pass `windows='contiguous'` or `windows='document'`",
            )
        if self.order not in ("shuffled", "sequential"):
            raise UsageError(
                f"there is no {self.order!r} order",
                remedy="pass `order='shuffled'` or `order='sequential'`",
            )


def check_position(first: SupportsIndex, count: int) -> int:
    """Position of the first of `count` windows as a Python int; UsageError if it is out of range."""
    found = whole("first", first, at_least=0)
    if found + count > LAST_POSITION:
        raise UsageError(
            f"position {found} is beyond the last one, {LAST_POSITION}",
            remedy="positions count windows from 0: pass a smaller one",
        )
    return found


def whole(name: str, value: SupportsIndex, *, at_least: int | None = None) -> int:
    """Any kind of integer as a Python int; UsageError if it is not one, or too small."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(
            f"{name} is {value!r}, which is not a whole number",
            remedy=f"pass a whole number as {name}",
        ) from None
    if at_least is not None and number < at_least:
        raise UsageError(
            f"{name} is {number}, which is too small", remedy=f"pass {at_least} or more as {name}"
        )
    return number
