"""What a training run says, written down: one line of JSON for each event, and curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lowtide.events import Evaluated, Event, Listener, Note, Sampled, Saved, Stepped
from lowtide.training.run_log import LOG_NAME, LogEvent, RunLog
from lowtide.training.settings import RunSettings
from lowtide.training.tensorboard import Board, EventFile

_NAMES: dict[type, LogEvent] = {
    Stepped: "step",
    Evaluated: "evaluation",
    Sampled: "sample",
    Saved: "checkpoint",
    Note: "note",
}


@contextmanager
def follow_run(
    folder: Path,
    settings: RunSettings,
    listen: Listener,
    *,
    after_step: int,
    boards: Sequence[Board] = (),
) -> Iterator[Listener]:
    """A listener that writes everything down before it passes it on."""
    curves: tuple[Board, ...] = (EventFile(folder, after_step=after_step), *boards)
    with RunLog(folder / LOG_NAME) as log:
        log.write("start", step=after_step, settings=settings.as_record())
        last_step = after_step

        def follow(event: Event) -> None:
            nonlocal last_step
            last_step = getattr(event, "step", last_step)
            name = _NAMES.get(type(event))
            if name is not None:
                log.write(name, **{"step": last_step, **asdict(event)})
            for board in curves:
                _draw(board, event)
            listen(event)

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
