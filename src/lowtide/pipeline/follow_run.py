"""What a training run says, written down: one line of JSON for each event, and curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lowtide.events import Evaluated, Event, Listener, Sampled, Stepped
from lowtide.pipeline.keep_journal import Thinned, begin_journal, ending, open_journal
from lowtide.training.settings import RunSettings
from lowtide.training.tensorboard import Board, EventFile


@contextmanager
def follow_run(
    folder: Path,
    settings: RunSettings,
    listen: Listener,
    *,
    after_step: int,
    budget_bytes: int | None = None,
    boards: Sequence[Board] = (),
) -> Iterator[Listener]:
    """A listener that writes everything down before it passes it on."""
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

        def follow(event: Event) -> None:
            nonlocal last_step
            last_step = getattr(event, "step", last_step)
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
