"""What decides a training run, as it is stored with it. No torch here: planning writes these too."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Literal, TypeAlias

import msgspec

from lowtide.dataset.settings import WindowKind
from lowtide.errors import UsageError
from lowtide.model.needs import AttentionKind, Precision, StepKind
from lowtide.model.shape import ModelShape
from lowtide.settings import Device, Recipe
from lowtide.storage.decode_json import convert_json, explain_field
from lowtide.storage.sealed_json import JsonObject

ScheduleKind: TypeAlias = Literal["cosine", "constant"]
"""How the learning rate goes on after the warm-up."""
EVALUATED_WINDOWS = 256
"""Of those held out, the most that one evaluation reads."""
FEWEST_WINDOWS = 16
"""Fewer held out are one or two documents, and their loss is the luck of which."""
_LEAST = sys.float_info.min
_MOST = 1e31
"""Of a rate: float32, which steps are taken in, ends a little above."""
_MOST_COUNT = 1 << 62
"""Of a seed and of counts, so that sums of them stay whole."""
MAY_CHANGE: Mapping[str, bool] = {"may change": True}
"""Marks a setting that a resumed run may have another value of; all others are fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Everything that decides the weights, but for rounding: `micro_batch`, recipe, device and compiler cut the
    same step into other micro-batches.
    """

    model: str
    shape: ModelShape
    data: str = field(metadata=MAY_CHANGE)
    batch_tokens: int
    """Of one step, over all ranks and parts."""
    micro_batch: int = field(metadata=MAY_CHANGE)
    """Windows that go through the model at a time, on each rank."""
    steps: int
    learning_rate: float
    final_learning_rate: float
    warmup_steps: int
    split: str = "train"
    val_split: str = field(default="val", metadata=MAY_CHANGE)
    val_fraction: float | None = None
    windows: WindowKind = "contiguous"
    tokenizer: str | None = field(default=None, metadata=MAY_CHANGE)
    seed: int = 0
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    recipe: Recipe = field(default="fast", metadata=MAY_CHANGE)
    compiled: bool = field(default=True, metadata=MAY_CHANGE)
    precision: Precision = field(default="bfloat16", metadata=MAY_CHANGE)
    device: Device = field(default="cuda", metadata=MAY_CHANGE)
    evaluate_every: int = field(default=250, metadata=MAY_CHANGE)
    evaluate_windows: int = field(default=EVALUATED_WINDOWS, metadata=MAY_CHANGE)
    checkpoint_every: int = field(default=1000, metadata=MAY_CHANGE)
    sample_every: int = field(default=1000, metadata=MAY_CHANGE)
    attention: AttentionKind = "window"
    """`document`: no position looks into another document, and positions restart at each."""
    schedule: ScheduleKind = "cosine"
    init: str | None = field(default=None, metadata=MAY_CHANGE)
    """What the weights come from at the very beginning; where a checkpoint stands, it is not looked at."""
    epochs: float | None = None
    """The data ends after so many, the last step perhaps short; None: it never does."""

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "micro_batch", "steps", "evaluate_windows"):
            _between(name, getattr(self, name), 1, _MOST_COUNT)
        for name in ("warmup_steps", "evaluate_every", "checkpoint_every", "sample_every"):
            _between(name, getattr(self, name), 0, math.inf)
        if self.batch_tokens % self.shape.context:
            raise UsageError(
                f"a step of {self.batch_tokens} tokens is not a multiple of a window's {self.shape.context}",
                remedy=f"pass `batch_tokens = {self.shape.whole_windows(self.batch_tokens)}`",
            )
        for name in ("learning_rate", "clip"):
            _between(name, getattr(self, name), _LEAST, _MOST)
        for name in ("final_learning_rate", "weight_decay"):
            _between(name, getattr(self, name), 0.0, _MOST)
        if self.epochs is not None:
            _between("epochs", self.epochs, _LEAST, _MOST)
        _between("seed", self.seed, -_MOST_COUNT, _MOST_COUNT)
        for name in ("beta1", "beta2"):
            _between(name, getattr(self, name), 0.0, 1.0)

    @property
    def windows_per_step(self) -> int:
        """Over all ranks."""
        return self.batch_tokens // self.shape.context

    @property
    def step_kind(self) -> StepKind:
        """How its steps are run, as far as memory is concerned."""
        return StepKind(
            recipe=self.recipe,
            compiled=self.compiled,
            precision=self.precision,
            accumulating=self.micro_batch < self.windows_per_step,
            device=self.device,
            attention=self.attention,
        )

    def as_record(self) -> JsonObject:
        """Plain values under their names."""
        return asdict(self)


FIXED_ON_RESUME = tuple(
    one.name for one in fields(TrainSettings) if not one.metadata.get("may change")
)
"""What a resumed run may not change: it would be another run."""


def steps_for(epochs: float, *, window_count: int, windows_per_step: int) -> int:
    """Steps that see every window so many times; the last may be short.

    >>> steps_for(3, window_count=10, windows_per_step=8)
    4
    """
    return -(-windows_for(epochs, window_count=window_count) // windows_per_step)


def windows_for(epochs: float, *, window_count: int) -> int:
    """Windows that those steps are trained on.

    >>> windows_for(2.5, window_count=11)
    28
    """
    return max(1, round(epochs * window_count))


def settings_of(record: JsonObject) -> TrainSettings:
    """Settings out of what `as_record` gave."""
    try:
        return convert_json(record, TrainSettings)
    except msgspec.ValidationError as cause:
        name, reason = explain_field(cause)
        raise UsageError(
            f"the setting {name} of the run is not valid: {reason}",
            remedy="start a new run in another folder",
        ) from cause


def differences(before: TrainSettings, now: TrainSettings) -> list[str]:
    """What differs of what may not."""
    found = [
        f"{name} was {getattr(before, name)} and is {getattr(now, name)}"
        for name in FIXED_ON_RESUME
        if getattr(before, name) != getattr(now, name)
    ]
    if before.recipe != now.recipe and "leanest" in (before.recipe, now.recipe):
        found.append(f"recipe was {before.recipe} and is {now.recipe}")  # states of other widths
    return found


def _between(name: str, value: float, least: float, below: float) -> None:
    if not least <= value < below:
        wanted = {_LEAST: "above zero", 0.0: "of zero or more"}.get(least, f"of {least} or more")
        limit = "" if below == math.inf else f", below {below:g}"
        raise UsageError(f"{name} cannot be {value}", remedy=f"pass a number {wanted}{limit}")
