"""Events that a stage sends while it works. The listener decides whether one is a bar, a line or a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from lowtide.errors import InterruptedRun, StoppedError
from lowtide.memory.reading import MemoryRead as MemoryRead  # sent about once a second

StopReason: TypeAlias = Literal["interrupted", "terminated"]
"""Why a stage was asked to stop: by Ctrl-C, or by a signal from someone who needs the machine."""


class Stop(NamedTuple):
    """Why a stage stops, and how it is resumed."""

    reason: StopReason
    sentence: str
    remedy: str = "run the same command again to resume"

    def error(self, where: str) -> StoppedError:
        """The error to leave with: `stopped after step 3 of 10: interrupted`."""
        kind = InterruptedRun if self.reason == "interrupted" else StoppedError
        return kind(f"stopped {where}: {self.sentence}", remedy=self.remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A message for people: a choice made for them, a verdict about memory, a fallback."""

    text: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """Progress of a stage; sent a few times a second at most."""

    done_bytes: int
    total_bytes: int
    """0 when the end is not known, as for a stream."""
    documents: int
    tokens: int
    private_bytes: int
    budget_bytes: int
    elapsed_seconds: float
    resumed_bytes: int = 0
    """The part of `done_bytes` that was done before this run; rates must not count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """A checkpoint was taken: everything up to here survives any crash."""

    done_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """How much of a dataset is verified or exported; sent for every piece of it."""

    done: int
    total: int
    unit: Literal["bytes", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Number of merges a tokenizer has learnt; sent a few times a second at most."""

    merges: int
    most_merges: int
    private_bytes: int
    budget_bytes: int
    elapsed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A training step is done. All figures are measured, except for the time left."""

    step: int
    """Number of steps done so far, this one included."""
    steps: int
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: float
    """Duration of this step."""
    tokens: int
    """Number of tokens trained on so far, over all ranks."""
    tokens_per_second: float
    epoch: float
    """Number of passes over the training data so far."""
    private_bytes: int
    seconds_left: float
    gpu_bytes: int | None = None
    """Peak of allocated GPU memory so far; None without a GPU."""
    mfu: float | None = None
    """Share of the GPU's peak arithmetic speed; None where that is not known."""
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The loss on the validation set."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Text that the model generates at this step."""

    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint was written: everything up to this step survives any crash."""

    step: int
    path: str
    seconds: float


Event = (
    Note
    | Advanced
    | MemoryRead
    | Checkpointed
    | Processed
    | Learnt
    | Stepped
    | Evaluated
    | Sampled
    | Saved
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that does nothing."""
