"""The process of the smoke test: `python -m lowtide.stages.smoke_child`, a request on its standard input.

A process of its own, because a run that dies, or a GPU whose memory is full, must not take the real run along.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from lowtide.child import run_child, tell_parent
from lowtide.errors import LowtideError
from lowtide.events import Evaluated, Event, Note, Sampled, Saved, Stepped
from lowtide.stages.smoke import ChildReport
from lowtide.stages.watch_run import never_stop
from lowtide.training.settings import settings_of


class Collector:
    """Keeps what a few steps say, and tells the parent of each."""

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
                done = f"step {event.step} of {event.steps}"
                tell_parent(note=f"{done}, loss {event.loss:.3f}, {event.seconds:.2f}s")
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


def run(request: dict[str, object]) -> ChildReport:
    """Ten steps in a folder that the parent made, and removes even if this process is killed."""
    from lowtide.stages.train import train

    record, out, memory = request["settings"], Path(str(request["out"])), request["memory"]
    assert isinstance(record, dict), "as `smoke` sends it"
    assert isinstance(memory, str | None), "as `smoke` sends it"
    settings, seen = settings_of(record), Collector()
    result = train(out, settings, memory=memory, listen=seen, should_stop=never_stop)
    return ChildReport(
        micro_batch=result.micro_batch,
        losses=[one.loss for one in seen.steps],
        seconds=[one.seconds for one in seen.steps],
        checkpoint_seconds=seen.checkpoint_seconds,
        val_loss=seen.val_loss,
        sample=seen.sample,
        gpu_bytes=result.gpu_bytes,
        notes=seen.notes,
    )


def main() -> None:
    request = json.loads(sys.stdin.readline())
    try:
        tell_parent(report=asdict(run(request)))
    except LowtideError as error:
        told = {"kind": type(error).__name__, "problem": error.problem, "remedy": error.remedy}
        tell_parent(error=told)


if __name__ == "__main__":
    run_child(main)
