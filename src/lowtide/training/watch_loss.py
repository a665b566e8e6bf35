"""Is it still learning? Looks at the loss of every step and says what a person would want to know.

A verdict is a value: the loop decides what follows from it. Nothing here reads a clock or draws a number, and
the state is a few hundred plain numbers: a resumed run judges as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from statistics import median
from typing import Annotated, Literal, Self, TypeAlias

import msgspec

RECENT_STEPS = 100
"""Losses that the median and its spread are taken from."""
FEWEST_STEPS = 20
"""Fewer than these say nothing about spikes."""
SPIKE_DEVIATIONS = 10.0
"""Robust standard deviations above the median: the noise of small batches has a tail that reaches 8."""
SPIKE_LEAST_NATS = 0.3
"""A smaller jump is not a spike, however quiet the losses were."""
MOST_SPIKES, SPIKE_STEPS = 10, 200
LONGEST_SPIKE_STEPS = 200
"""A loss that does not come down again is not a spike: the run has diverged."""
MOST_NOT_FINITE, NOT_FINITE_STEPS = 20, 100
UNLEARNT_SHARE = 0.9
"""A loss above this share of ln(vocabulary) is what guessing gives."""
UNLEARNT_STEPS = 200
"""Steps after the warm-up that a model has to leave guessing behind."""
PARTS_PER_OCTAVE = 4
PLATEAU_FIRST_STEP = 500
PLATEAU_LEAST_NATS = 0.01
"""Less than this while the steps double is not an improvement. A natural curve gains several times as much."""
PLATEAU_CERTAINTY = 3.0
"""Standard errors that have to agree before a plateau is told."""
_MAD_OF_NORMAL = 0.6745

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""Of steps or windows, as a record may say it."""
Action = Literal["skip", "tell", "end"]
"""skip: leave this step's gradients out. tell: a note is enough. end: stop at the last good checkpoint."""


class Trouble(Enum):
    """What was seen."""

    NOT_FINITE = "not finite"
    SPIKE = "spike"
    TOO_MANY_NOT_FINITE = "too many not finite"
    TOO_MANY_SPIKES = "too many spikes"
    DIVERGED = "diverged"
    NOT_FALLING = "not falling"
    PLATEAU = "plateau"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One thing that was seen at a step, and what to do about it."""

    trouble: Trouble
    action: Action
    step: int
    sentence: str
    """For a person; whole, without a full stop."""
    since: int
    """The first step after which the weights may be bad. Skipped steps move none."""


@dataclass(slots=True, kw_only=True)
class _Part:
    """The losses of a stretch of steps: each a quarter of a doubling."""

    number: Count
    first_step: Count
    count: Count = 0
    mean: float = 0.0
    squares: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Sum of squared distances from the mean (Welford)."""

    def add(self, loss: float) -> None:
        self.count += 1
        distance = loss - self.mean
        self.mean += distance / self.count
        self.squares += distance * (loss - self.mean)

    @property
    def error_squared(self) -> float:
        """Of the mean. The fall within the part counts as noise: rather silent than wrong."""
        return self.squares / max(1, self.count) / max(1, self.count - 1)


@dataclass(slots=True, kw_only=True)
class WatchState:
    """What the next verdicts depend on."""

    losses: list[float] = field(default_factory=list)
    not_finite: list[Count] = field(default_factory=list)
    """Steps, of the last 100."""
    spikes: list[Count] = field(default_factory=list)
    """First steps of spikes, of the last 200."""
    spike_since: Count | None = None
    parts: list[_Part] = field(default_factory=list)
    """The open one last; before it those of the last octave."""
    told_not_falling: Count = 0
    told_plateau: Count = 0
    not_finite_count: Count = 0
    spike_count: Count = 0


class LossWatch:
    """Fed once a step. Holds 100 losses and a few dozen numbers."""

    def __init__(self, *, vocabulary_size: int, warmup_steps: int) -> None:
        self._guess = math.log(vocabulary_size)
        self._warmup_steps = warmup_steps
        self._state = WatchState()

    @classmethod
    def from_record(
        cls, record: Mapping[str, object], *, vocabulary_size: int, warmup_steps: int
    ) -> Self:
        """A watch that goes on where `as_record` was taken."""
        watch = cls(vocabulary_size=vocabulary_size, warmup_steps=warmup_steps)
        watch._state = msgspec.convert(record, WatchState)
        return watch

    def as_record(self) -> dict[str, object]:
        """Plain numbers and lists of them, for a checkpoint."""
        return asdict(self._state)

    @property
    def not_finite_count(self) -> int:
        """Steps skipped so far."""
        return self._state.not_finite_count

    @property
    def spike_count(self) -> int:
        """Spikes so far; one that lasts for many steps is one."""
        return self._state.spike_count

    @property
    def is_spiking(self) -> bool:
        """Whether the last loss was far above the usual: no time for a checkpoint."""
        return self._state.spike_since is not None

    def see(self, step: int, loss: float, gradient_norm: float) -> tuple[Verdict, ...]:
        """What is to be said about this step: mostly nothing. Steps come in rising order."""
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            return self._see_not_finite(step, loss, gradient_norm)
        verdicts = self._see_spike(step, loss)
        if self._state.spike_since is not None:
            return verdicts  # what a spike does to means and medians says nothing about learning
        self._state.losses = [*self._state.losses[1 - RECENT_STEPS :], loss]
        return verdicts + self._see_guessing(step, loss) + self._see_plateau(step, loss)

    def _see_not_finite(self, step: int, loss: float, norm: float) -> tuple[Verdict, ...]:
        state = self._state
        state.not_finite_count += 1
        state.not_finite = [*(s for s in state.not_finite if s > step - NOT_FINITE_STEPS), step]
        found = f"the loss is {loss} and the gradient's norm {norm} at step {step}"
        skip = _verdict(Trouble.NOT_FINITE, "skip", step, f"{found}; the step is skipped")
        if len(state.not_finite) < MOST_NOT_FINITE:
            return (skip,)
        many = f"{MOST_NOT_FINITE} of the last {NOT_FINITE_STEPS} steps were not finite"
        return (skip, _verdict(Trouble.TOO_MANY_NOT_FINITE, "end", step, many))

    def _see_spike(self, step: int, loss: float) -> tuple[Verdict, ...]:
        state = self._state
        usual = median(state.losses) if len(state.losses) >= FEWEST_STEPS else math.inf
        if not self._is_far_above(loss, usual):
            state.spike_since = None
            return ()
        if state.spike_since is not None:
            if step - state.spike_since < LONGEST_SPIKE_STEPS:
                return ()
            lasting = f"the loss rose from {usual:.3f} at step {state.spike_since} and is still {loss:.3f}"
            sentence, since = f"{lasting} at step {step}", state.spike_since
            return (_verdict(Trouble.DIVERGED, "end", step, sentence, since=since),)
        state.spike_since = step
        state.spike_count += 1
        state.spikes = [*(s for s in state.spikes if s > step - SPIKE_STEPS), step]
        jump = f"the loss jumped from {usual:.3f} to {loss:.3f} at step {step}"
        spike = _verdict(Trouble.SPIKE, "tell", step, jump)
        if len(state.spikes) < MOST_SPIKES:
            return (spike,)
        many = f"the loss jumped {MOST_SPIKES} times within {SPIKE_STEPS} steps"
        first = state.spikes[0]
        return (spike, _verdict(Trouble.TOO_MANY_SPIKES, "end", step, many, since=first))

    def _is_far_above(self, loss: float, usual: float) -> bool:
        if loss <= usual + SPIKE_LEAST_NATS:
            return False  # nearly always: the spread need not be known
        distances = (abs(one - usual) for one in self._state.losses)
        return loss > usual + SPIKE_DEVIATIONS * median(distances) / _MAD_OF_NORMAL

    def _see_guessing(self, step: int, loss: float) -> tuple[Verdict, ...]:
        """Told once, and again when the steps have doubled and nothing has changed."""
        due = max(self._warmup_steps + UNLEARNT_STEPS, 2 * self._state.told_not_falling)
        guessed = UNLEARNT_SHARE * self._guess
        if step < due or loss < guessed:
            return ()
        usual = median(self._state.losses)
        if usual < guessed:
            return ()
        self._state.told_not_falling = step
        sentence = (
            f"the loss is still {usual:.3f} at step {step}; guessing gives {self._guess:.3f}. The learning "
            "rate may be far too small or too large, or the data may be noise"
        )
        return (_verdict(Trouble.NOT_FALLING, "tell", step, sentence),)

    def _see_plateau(self, step: int, loss: float) -> tuple[Verdict, ...]:
        """Judged when a part is full: against the part that ended half as many steps ago."""
        first = max(PLATEAU_FIRST_STEP, self._warmup_steps + 1)
        if step < first:
            return ()
        parts = self._state.parts
        number = math.floor(PARTS_PER_OCTAVE * math.log2(step))
        verdicts: tuple[Verdict, ...] = ()
        if not parts or parts[-1].number != number:
            verdicts = self._judge_full_part(step)
            parts.append(_Part(number=number, first_step=step))
            del parts[: -PARTS_PER_OCTAVE - 1]
        parts[-1].add(loss)
        return verdicts

    def _judge_full_part(self, step: int) -> tuple[Verdict, ...]:
        parts = self._state.parts
        if not parts or parts[0].number != parts[-1].number - PARTS_PER_OCTAVE:
            return ()
        before, now = parts[0], parts[-1]
        gain = before.mean - now.mean
        error = math.sqrt(before.error_squared + now.error_squared)
        certain = gain + PLATEAU_CERTAINTY * error < PLATEAU_LEAST_NATS
        if not certain or step < 2 * self._state.told_plateau:
            return ()
        self._state.told_plateau = step
        sentence = (
            f"the loss has not fallen while the steps doubled: {before.mean:.3f} from step "
            f"{before.first_step}, {now.mean:.3f} from step {now.first_step}"
        )
        return (_verdict(Trouble.PLATEAU, "tell", step, sentence),)


def _verdict(
    trouble: Trouble, action: Action, step: int, sentence: str, *, since: int | None = None
) -> Verdict:
    began = step if since is None else since
    return Verdict(trouble=trouble, action=action, step=step, sentence=sentence, since=began)
