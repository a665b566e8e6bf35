"""The process of the smoke test: `python -m lowtide.stages.smoke_child`, settings on its standard input.

What it measured goes to standard output as one line of JSON. A process of its own, because a run that dies, or
a GPU whose memory is full, must not take the real run with it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from lowtide.child import run_child
from lowtide.errors import LowtideError
from lowtide.events import Evaluated, Event, Note, Sampled, Saved, Stepped
from lowtide.stages.smoke import SAID, ChildReport
from lowtide.stages.watch_run import never_stop
from lowtide.training.settings import settings_of


class Collector:
    """Keeps what a few steps say."""

    def __init__(self) -> None:
        self.steps: list[Stepped] = []
        self.val_loss: float | None = None
        self.sample: str | None = None
        self.checkpoint_seconds = 0.0
        self.notes: list[str] = []

    def __call__(self, event: Event) -> None:
        match event:
            case Stepped():
                self.steps.append(event)
                say(
                    f"step {event.step} of {event.steps}, loss {event.loss:.3f}, {event.seconds:.2f}s"
                )
            case Evaluated():
                self.val_loss = event.loss
            case Sampled():
                self.sample = event.text
            case Saved():
                self.checkpoint_seconds = event.seconds
            case Note():
                self.notes.append(event.text)
            case _:
                pass


def say(text: str) -> None:
    """For whoever waits."""
    sys.stdout.write(f"{SAID}{text}\n")
    sys.stdout.flush()


def run(asked: dict[str, object]) -> ChildReport:
    """Ten steps in a folder that the parent made, and removes even if this process is killed."""
    from lowtide.stages.train import train

    record, out, memory = asked["settings"], Path(str(asked["out"])), asked["memory"]
    assert isinstance(record, dict), "as `smoke` sends it"
    assert isinstance(memory, str | None), "as `smoke` sends it"
    settings, collector = settings_of(record), Collector()
    result = train(out, settings, memory=memory, listen=collector, should_stop=never_stop)
    return ChildReport(
        micro_batch=result.micro_batch,
        losses=[one.loss for one in collector.steps],
        seconds=[one.seconds for one in collector.steps],
        checkpoint_seconds=collector.checkpoint_seconds,
        val_loss=collector.val_loss,
        sample=collector.sample,
        gpu_bytes=result.gpu_bytes,
        notes=collector.notes,
    )


def main() -> None:
    asked = json.loads(sys.stdin.read())
    try:
        found = run(asked)
    except LowtideError as error:
        found = ChildReport(
            micro_batch=0,
            losses=[],
            seconds=[],
            checkpoint_seconds=0.0,
            error=error.problem,
            remedy=error.remedy,
            exit_code=error.exit_code,
        )
    sys.stdout.write(json.dumps(asdict(found)) + "\n")  # knows NaN, and a loss may be that


if __name__ == "__main__":
    run_child(main)
