"""What a journal records about its run, as plain values. Nothing here grows with the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lowtide.guard.forecast import Forecast
from lowtide.journal import RecordedEnd
from lowtide.memory.reading import ProcessUse
from lowtide.series import Series

MOST_SESSIONS = 60
Item = TypeVar("Item")


@dataclass(slots=True, kw_only=True)
class Session:
    """From one start to the next. Seconds are of work, without the pauses between sessions."""

    number: int
    from_seconds: float
    to_seconds: float
    at: float | None
    last_at: float | None
    budget_bytes: int | None = None
    outcome: str | None = None
    elapsed_seconds: float | None = None
    """As recorded at its end."""

    @property
    def worked_seconds(self) -> float:
        seen = self.to_seconds - self.from_seconds
        return seen if self.elapsed_seconds is None else max(0.0, self.elapsed_seconds)


@dataclass(slots=True, kw_only=True)
class Band:
    """A stage of the work, such as tokenizing, shown as a coloured band."""

    name: str
    from_seconds: float
    to_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """A row of the table of events."""

    seconds: float
    at: float | None
    label: str
    text: str
    grave: bool = False


@dataclass(slots=True, kw_only=True)
class Counts:
    """How far the run came; None for what it never recorded."""

    step: int | None = None
    steps: int | None = None
    tokens: int | None = None
    more_tokens: bool = False
    """The run finished after the last count, so there are more tokens than counted."""
    documents: int | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    new_bytes: int = 0
    """Bytes of input read in the recorded sessions, for the mean rate."""
    merges: int | None = None
    most_merges: int | None = None
    epoch: float | None = None
    seconds_left: float | None = None
    """Predicted by the run itself."""
    mfu: float | None = None
    last_loss: float | None = None
    best_evaluation: tuple[float, int | None] | None = None
    last_evaluation: float | None = None
    not_finite: int = 0
    skipped: int = 0


@dataclass(slots=True, kw_only=True)
class Peaks:
    """The highest values of any record."""

    private_bytes: int | None = None
    gpu_bytes: int | None = None
    swapped_bytes: int = 0
    top: tuple[ProcessUse, ...] = ()
    """The largest processes at the peak of private memory."""


class FirstAndLast(Generic[Item]):
    """The first and the last items of a stream, and how many were left out between them."""

    def __init__(self, first: int, last: int) -> None:
        self._most_first = first
        self._first: list[Item] = []
        self._last: deque[Item] = deque(maxlen=last)
        self.count = 0

    def add(self, item: Item) -> None:
        self.count += 1
        if len(self._first) < self._most_first:
            self._first.append(item)
        else:
            self._last.append(item)

    @property
    def left_out(self) -> int:
        return self.count - len(self._first) - len(self._last)

    def __iter__(self) -> Iterator[Item]:
        yield from self._first
        yield from self._last


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """Everything that the page shows of a run, whether it finished, died or still runs."""

    kind: str = ""
    version: str = ""
    command: tuple[str, ...] = ()
    how: str = ""
    limit_bytes: int | None = None
    floor_bytes: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    first_settings: Mapping[str, object] = field(default_factory=dict)
    records: int = 0
    unread_lines: int = 0
    """Lines of the log that are not records."""
    dated: bool = False
    """False for logs from before records had a time."""
    seconds: float = 0.0
    """Seconds of work over all sessions, as the charts show them."""
    session: Session | None = None
    """The last session."""
    worked_seconds_before: float = 0.0
    """Seconds of work in the sessions before the last."""
    started_at: float | None = None
    last_at: float | None = None
    end: RecordedEnd | None = None
    counts: Counts = field(default_factory=Counts)
    peaks: Peaks = field(default_factory=Peaks)
    series: dict[str, Series] = field(default_factory=dict)
    gpus: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Name and size of each card that a watch saw."""
    sessions: FirstAndLast[Session] = field(default_factory=lambda: FirstAndLast(MOST_SESSIONS, 1))
    bands: FirstAndLast[Band] = field(default_factory=lambda: FirstAndLast(40, 80))
    events: FirstAndLast[Happening] = field(default_factory=lambda: FirstAndLast(20, 50))
    checkpoints: FirstAndLast[Happening] = field(default_factory=lambda: FirstAndLast(1, 4))
    samples: FirstAndLast[tuple[int | None, str]] = field(
        default_factory=lambda: FirstAndLast(2, 6)
    )
    """Steps, and the texts that the model generated then."""
    alerts: FirstAndLast[tuple[float, str]] = field(default_factory=lambda: FirstAndLast(10, 20))
    """Seconds of work and stages: `note`, `ask` or `end`."""
    forecast: tuple[float, Forecast] | None = None
    """The newest prediction, and the seconds of work when it was made."""

    @property
    def worked_seconds(self) -> float:
        """Seconds of work, as recorded at the end of sessions, else as seen."""
        return self.worked_seconds_before + (self.session.worked_seconds if self.session else 0.0)

    @property
    def unread_words(self) -> str:
        """How many lines could not be read, in words."""
        plural = "" if self.unread_lines == 1 else "s"
        return f"{self.unread_lines:,} line{plural} of the log could not be read"

    @property
    def budget_bytes(self) -> int | None:
        """Budget of the last session that names one; for a watch, its limit."""
        named = [one.budget_bytes for one in self.sessions if one.budget_bytes]
        return self.limit_bytes or (named[-1] if named else None)
