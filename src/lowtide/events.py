"""What a stage says while it works. Whoever listens decides whether an event is a bar, a line or a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

StopReason: TypeAlias = Literal["interrupted", "terminated"]
"""Ctrl-C, or someone who wants the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something a person should know: a choice made for them, a stage of the guard, a fallback."""

    text: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """How far a stage has come; sent a few times a second at most."""

    done_bytes: int
    total_bytes: int
    """0 when the end is not known, as for standard input."""
    documents: int
    tokens: int
    private_bytes: int
    budget_bytes: int
    elapsed_seconds: float
    resumed_bytes: int = 0
    """How much of `done_bytes` stood before this run; rates must not count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRead:
    """What the run occupies, and how the machine fares; about once a second."""

    private_bytes: int
    mapped_bytes: int
    """Page cache that is mapped: shown, never counted."""
    swapped_bytes: int
    available_bytes: int
    stalled_percent: float | None = None
    """Of the last ten seconds, all work stood still for memory; None where the kernel does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """Everything up to here survives any crash."""

    done_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """How many merges a tokenizer has learnt; sent a few times a second at most."""

    merges: int
    most_merges: int
    private_bytes: int
    budget_bytes: int
    elapsed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A step of training is done. All of it was measured, but for the time left."""

    step: int
    """Steps done so far, this one included."""
    steps: int
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    """That this step took."""
    tokens: int
    """Seen so far, over all ranks."""
    tokens_per_second: float
    epoch: float
    """How often the training data was gone through so far."""
    private_bytes: int
    seconds_left: float
    gpu_bytes: int | None = None
    """The most that was allocated so far; None without a GPU."""
    mfu: float | None = None
    """Share of the card's own peak; None where that is not known."""
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The loss on held-out windows."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the model writes at this point."""

    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint stands: everything up to here survives any crash."""

    step: int
    path: str
    seconds: float


Event = Note | Advanced | MemoryRead | Checkpointed | Learnt | Stepped | Evaluated | Sampled | Saved
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener that listens to nothing."""
