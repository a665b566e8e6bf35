"""Settings for data without end.

Nobody knows how much will come, so nothing depends on it: the learning rate is flat after its warm-up, and no
step is the last.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lowtide.plan.make_plan import PlanData
from lowtide.stages.inbox.settings import InboxSettings, beside, naming_the_line
from lowtide.tokenizer.vocabulary import load_vocabulary
from lowtide.training.settings import TrainSettings

NO_LAST_STEP = 10**9
"""Stands for the steps of a run without end."""
_PLENTY_OF_TOKENS = 10**15
_TUNING_WARMUP_STEPS = 100
_MOST_WARMUP_STEPS = 500
"""Of a new model: a plan's share of a long run would be most of a short one."""


def endless_data(reading: InboxSettings, inbox: Path) -> PlanData:
    """The data as a plan for it sees it: plenty."""
    with naming_the_line(inbox):
        vocabulary_size = load_vocabulary(beside(reading.tokenize.tokenizer, inbox)).size
    return PlanData(
        path=str(inbox.absolute()),
        train_tokens=_PLENTY_OF_TOKENS,
        vocabulary_size=vocabulary_size,
        vocabulary_known=True,
        tokenizer=None,
        val_fraction=None,
        learnt_tokens=None if reading.tokenize.examples is None else _PLENTY_OF_TOKENS,
    )


def shorten_warmup(planned: TrainSettings) -> TrainSettings:
    """A new run's settings with a warm-up that does not follow from the number of steps."""
    steps = min(planned.warmup_steps, _MOST_WARMUP_STEPS)
    return replace(planned, warmup_steps=steps if planned.init is None else _TUNING_WARMUP_STEPS)


def without_end(base: TrainSettings, reading: InboxSettings, inbox: Path) -> TrainSettings:
    """The settings of a run or a plan, for an inbox."""
    settings = replace(
        base,
        data=str(inbox.absolute()),
        steps=NO_LAST_STEP,
        schedule="constant",
        epochs=None,
        val_fraction=None,
        tokenizer=None,
    )
    if reading.tokenize.examples is None:
        return settings
    return replace(settings, windows="document", attention="document")
