"""Training runs so small that a test can have many: a dataset, settings, the run, and what it left."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import torch

from lowtide.events import Evaluated, Event, Note, Saved, Stepped
from lowtide.journal import LOG_NAME, read_journal
from lowtide.model.shape import ModelShape
from lowtide.shards.layout import ShardLayout
from lowtide.stages.train import TrainResult, train
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.settings import TrainSettings
from tests.commands import Outcome
from tests.shards.streams import Stream, make_dataset, make_stream

VOCABULARY = 131
SHAPE = ModelShape(layers=2, heads=2, width=16, context=16, vocabulary_size=VOCABULARY)
STEPS = 24
DiskUsage = namedtuple("DiskUsage", "total used free")
_CLOCKED = ("at", "seconds", "tokens_per_second", "seconds_left", "private_bytes", "mfu")
_LONGEST_SECONDS = 300
torch.set_num_threads(
    1
)  # on a busy machine, threads that wait for each other take 100 times as long
spawner = multiprocessing.get_context("forkserver")
spawner.set_forkserver_preload(
    ["lowtide.stages.train", "lowtide.cli.main", "torch._dynamo", "safetensors.torch"]
)


def make_tokens(folder: Path, *, vocabulary_size: int = VOCABULARY, seed: int = 0) -> Path:
    """Some 2,600 tokens to train on and 400 to evaluate, in documents of many lengths."""
    layout = ShardLayout(format="npy", vocabulary_size=vocabulary_size, shard_tokens=1000)
    train_part = _uneven(make_stream([5, 31, 12, 60, 2, 19, 130] * 10, vocabulary_size, seed=seed))
    val_part = _uneven(make_stream([40, 60] * 4, vocabulary_size, seed=seed + 1))
    make_dataset(folder, layout, train=train_part, val=val_part)
    return folder


def _uneven(stream: Stream) -> Stream:
    """Small ids are common and large ones rare, so that there is something to learn at once."""
    last = stream.ids.max()
    return replace(stream, ids=np.where(stream.ids < last, stream.ids**2 // last, last))


def make_settings(data: Path, **changed: object) -> TrainSettings:
    """A run of 24 steps with 8 windows each: evaluated, saved and sampled now and then."""
    usual: dict[str, object] = {
        "model": "custom",
        "shape": SHAPE,
        "data": str(data),
        "batch_tokens": 8 * SHAPE.context,
        "micro_batch": 3,
        "steps": STEPS,
        "learning_rate": 3e-3,
        "final_learning_rate": 3e-4,
        "warmup_steps": 4,
        "compiled": False,
        "precision": "float32",
        "device": "cpu",
        "evaluate_every": 6,
        "evaluate_windows": 16,
        "checkpoint_every": 5,
        "sample_every": 0,
    }
    return TrainSettings(**{**usual, **changed})  # type: ignore[arg-type]


def write_plan(path: Path, settings: TrainSettings) -> Path:
    """The settings as a person would write them, for `--plan`."""
    lines, tables = [], ["[shape]"]
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name != "shape" and value is not None:
            lines.append(f"{one.name} = {json.dumps(value)}")
    tables += [f"{one.name} = {getattr(settings.shape, one.name)}" for one in fields(ModelShape)]
    path.write_text("\n".join(lines + tables) + "\n")
    return path


@dataclass
class Heard:
    """Everything that a run said."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def losses(self) -> list[float]:
        return [event.loss for event in self.events if isinstance(event, Stepped)]

    @property
    def evaluations(self) -> list[float]:
        return [event.loss for event in self.events if isinstance(event, Evaluated)]

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    @property
    def saved_steps(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, Saved)]


def run_heard(out: Path, settings: TrainSettings, **more: object) -> tuple[TrainResult, Heard]:
    """A run in this process, and what it said."""
    heard = Heard()
    return train(out, settings, listen=heard, **more), heard  # type: ignore[arg-type]


def tensors_of(run: Path) -> dict[str, bytes]:
    """The bytes of weights and optimizer in the newest checkpoint, and which one it is."""
    newest = find_checkpoints(run)[-1]
    files = {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}
    return {"checkpoint": newest.name.encode(), **files}


def told_of(run: Path, event: str = "step") -> list[dict[str, object]]:
    """The log's records of one kind, but for what a clock or a meter decides."""
    return [
        {name: value for name, value in record.items() if name not in _CLOCKED}
        for record in read_journal(run / LOG_NAME)
        if record["event"] == event
    ]


def losses_told(run: Path) -> list[float]:
    return [float(str(record["loss"])) for record in told_of(run)]


def hidden_in(run: Path) -> list[str]:
    """Names of files that only a killed or failed write leaves behind."""
    return sorted(path.name for path in run.rglob("*.tmp"))


class Command:
    """`lowtide …` in a process that is forked from one which knows torch already: it starts at once."""

    def __init__(
        self,
        said: Path,
        *arguments: str | Path,
        environment: dict[str, str] | None = None,
        file_limit_bytes: int | None = None,
    ) -> None:
        self._said = said
        asked = ([str(one) for one in arguments], said, environment or {}, file_limit_bytes)
        self.process: BaseProcess = spawner.Process(target=_run_command, args=asked)
        self.process.start()

    def wait_for_step(self, run: Path, step: int) -> None:
        """Until the log tells of it; fails when the command has ended before."""
        for _ in _while_waiting():
            if (run / LOG_NAME).exists() and f'"step": {step},' in (run / LOG_NAME).read_text():
                return
            assert self.process.is_alive(), self.end().err

    def send(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> Outcome:
        """What it came to; a kill is a negative code, as everywhere."""
        self.process.join(_LONGEST_SECONDS)
        code = self.process.exitcode
        assert code is not None, "it does not end"
        out, err = (self._said.with_suffix(end) for end in (".out", ".err"))
        return Outcome(code=code, out=out.read_text(), err=err.read_text())


def _run_command(
    arguments: list[str], said: Path, environment: dict[str, str], file_limit_bytes: int | None
) -> None:
    for number, end in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(said.with_suffix(end), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    if file_limit_bytes is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit_bytes, resource.RLIM_INFINITY))
    from lowtide.cli.main import main

    torch.set_num_threads(1)
    try:
        main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _while_waiting() -> Iterator[None]:
    until = monotonic() + _LONGEST_SECONDS
    while monotonic() < until:
        yield
        sleep(0.002)
    raise AssertionError("waited in vain")
