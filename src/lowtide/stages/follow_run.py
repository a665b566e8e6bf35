"""What a training run says, written down: one line of JSON for each event, and curves for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lowtide.events import Evaluated, Event, Listener, Note, Sampled, Stepped
from lowtide.stages.keep_journal import Thinned, begin_journal, ending, open_journal
from lowtide.training.settings import TrainSettings
from lowtide.training.tensorboard import Board, EventFile

_EVERY_STEP_TO = 10_000
"""Steps up to here are all written; a million then take some 19,000 records instead of 500 MB of them."""


@contextmanager
def follow_run(
    folder: Path,
    settings: TrainSettings,
    listen: Listener,
    *,
    after_step: int,
    budget_bytes: int | None = None,
    boards: Sequence[Board] = (),
) -> Iterator[Listener]:
    """A listener that writes everything down before it passes it on; of the steps those that `is_logged` names.

    A warning brings the step that it follows.
    """
    curves: tuple[Board, ...] = (EventFile(folder, after_step=after_step), *boards)
    last_step = after_step
    with open_journal(folder, listen) as log:
        begin_journal(
            log,
            "train",
            settings=settings.as_record(),
            budget_bytes=budget_bytes,
            step=after_step,
        )
        thinned = Thinned(lambda event, at: log.write_event(event, at=at, step=last_step))
        left_out: tuple[Stepped, float] | None = None

        def follow(event: Event) -> None:
            nonlocal last_step, left_out
            last_step = getattr(event, "step", last_step)
            if isinstance(event, Stepped):
                left_out = None if is_logged(event, settings) else (event, round(time.time(), 3))
            if left_out is not None and isinstance(event, Note) and event.level == "warning":
                step, at = left_out
                log.write_event(step, at=at)
                left_out = None
            if left_out is None or event is not left_out[0]:
                thinned(event)
                for board in curves:
                    _draw(board, event)
            listen(event)

        with ending(log, before=thinned.finish):
            try:
                yield follow
            finally:
                for board in curves:
                    board.close()


def is_logged(event: Stepped, settings: TrainSettings) -> bool:
    """Whether a step is written down. Its number decides, so that an interrupted run has the same steps."""
    number = event.step
    thin = 1 if number <= _EVERY_STEP_TO else 2 * 10 ** (len(str(number)) - 4)
    every = (thin, settings.evaluate_every, settings.sample_every, settings.checkpoint_every)
    return event.skipped or number == event.steps or any(one and number % one == 0 for one in every)


def _draw(board: Board, event: Event) -> None:
    match event:
        case Stepped():
            values = {
                "loss/train": event.loss,
                "learning_rate": event.learning_rate,
                "gradient_norm": event.gradient_norm,
                "speed/tokens_per_second": event.tokens_per_second,
                "memory/private_bytes": float(event.private_bytes),
            }
            if event.gpu_bytes is not None:
                values["memory/gpu_bytes"] = float(event.gpu_bytes)
            if event.mfu is not None:
                values["speed/mfu"] = event.mfu
            board.scalars(event.step, values)
        case Evaluated():
            board.scalars(event.step, {"loss/val": event.loss})
        case Sampled():
            board.text(event.step, "sample", event.text)
        case _:
            pass
