"""The smoke test: ten steps, an evaluation, a checkpoint and a sample, in a process of their own.

It comes before the days begin. What it finds is measured; what it says of the whole run is computed from that.
"""

from __future__ import annotations

import json
import math
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from lowtide.child import kill_session, python_command, ran_out_of_memory
from lowtide.errors import (
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    StoppedError,
    UsageError,
    VerificationError,
)
from lowtide.events import Listener, Note, ignore
from lowtide.guard.process_folders import process_folder_name, remove_orphan_folders
from lowtide.plan.speed import MEASURED_HERE, Speed, hours_of_settings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import nearest_folder
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.publish import storage_errors
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.run_results import SmokeReport
from lowtide.training.settings import TrainSettings

STEPS = 10
SAID = "said: "
"""Before lines of the child that are for people."""
_PREFIX = ".lowtide-smoke-"
_MOST_PARTS = 2
_LAST_OF_STDERR = 4000
_LOOK_SECONDS = 0.2
_FIRST_LOSS_NATS = 0.6
"""How far from ln(vocabulary) a model may begin: its first guesses are nearly even."""
_PEAK_SHARE = 0.05
_Received: TypeAlias = "queue.SimpleQueue[str | None]"
"""Lines of the child; None after the last."""
_KINDS = {kind.exit_code: kind for kind in (UsageError, DoesNotFitError, VerificationError)}


def smoke(
    settings: TrainSettings,
    out: str | Path,
    *,
    memory: str | None = None,
    predicted_gpu_bytes: int | None = None,
    peak_flops: float | None = None,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
) -> SmokeReport:
    """Try the planned settings beside `out`, where nothing is left behind; LowtideError if they cannot run.

    StoppedError soon after a stop is asked for: the trial is killed.
    """
    short = _shortened(settings)
    with _place_beside(Path(out).absolute()) as folder:
        asked: JsonObject = {
            "settings": short.as_record(),
            "out": f"{folder}/run",
            "memory": memory,
        }
        found = _read_report(*talk_to_child(asked, listen, should_stop))
    report = _judge(settings, short, found, predicted_gpu_bytes)
    if peak_flops is None:
        return report
    flops = report.tokens_per_second * settings.shape.flops_per_token
    return replace(report, mfu=flops / peak_flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """What the child process measured."""

    micro_batch: int
    losses: list[float]
    seconds: list[float]
    checkpoint_seconds: float
    val_loss: float | None = None
    sample: str | None = None
    gpu_bytes: int | None = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    remedy: str | None = None
    exit_code: int = 1


def _shortened(settings: TrainSettings) -> TrainSettings:
    """Ten steps of at most two parts each: the memory of the whole run, in its first minute."""
    windows = settings.windows_per_step
    parts = min(_MOST_PARTS, -(-windows // settings.micro_batch))
    tokens = min(windows, parts * settings.micro_batch) * settings.shape.context
    return replace(
        settings,
        steps=STEPS,
        epochs=None,
        warmup_steps=2,
        batch_tokens=tokens,
        evaluate_every=STEPS,
        evaluate_windows=2 * settings.micro_batch,
        checkpoint_every=STEPS,
        sample_every=STEPS,
    )


@contextmanager
def _place_beside(out: Path) -> Iterator[str]:
    """A folder on the same disk; what killed tests have left there goes first.

    Inside `out` it is where a run has its own hidden things: else a killed test would make the folder look like
    somebody else's.
    """
    place, made = nearest_folder(out), False
    with storage_errors(place):
        if place == out:
            place = out / WORK_FOLDER
            made = not place.exists()
            place.mkdir(exist_ok=True)
        remove_orphan_folders(place, _PREFIX)
        temporary = tempfile.TemporaryDirectory(
            prefix=f"{process_folder_name(_PREFIX)}-", dir=place
        )
    try:
        with temporary as folder:  # also gone when the child is killed
            yield folder
    finally:
        if made:
            with suppress(OSError):  # somebody has begun something there meanwhile
                place.rmdir()


def talk_to_child(
    asked: JsonObject, listen: Listener, should_stop: ShouldStop = never_stop
) -> tuple[list[str], str, int]:
    """The child's last lines, what it complained of, and its code. What it says on the way is passed on."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as complaints,
        subprocess.Popen(
            python_command("-m", "lowtide.stages.smoke_child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal must reach the parent alone
        ) as child,
    ):
        assert child.stdin is not None, "as asked for"
        assert child.stdout is not None, "as asked for"
        received: _Received = queue.SimpleQueue()
        reader = threading.Thread(target=_pass_on, args=(child.stdout, received), daemon=True)
        reader.start()
        try:
            with suppress(BrokenPipeError):  # it died at once: its code says so
                child.stdin.write(json.dumps(asked))
                child.stdin.close()
            lines: list[str] = []
            for line in _lines_as_they_come(received, should_stop):
                if line.startswith(SAID):
                    listen(Note(text=line.removeprefix(SAID).strip()))
                else:
                    lines.append(line)
            code = child.wait()
        finally:
            kill_session(child)  # a step may take minutes, and nothing of the trial is kept
            reader.join()  # leaving the `with` closes the pipe that it reads
        complaints.seek(0)
        return lines, complaints.read()[-_LAST_OF_STDERR:].strip(), code


def _pass_on(pipe: IO[str], received: _Received) -> None:
    for line in pipe:
        received.put(line)
    received.put(None)


def _lines_as_they_come(received: _Received, should_stop: ShouldStop) -> Iterator[str]:
    """Every line of the child; StoppedError within a moment of a stop, however long the child is silent."""
    while True:
        _leave_if_asked(should_stop)
        with suppress(queue.Empty):
            line = received.get(timeout=_LOOK_SECONDS)
            if line is None:
                return
            yield line


def _leave_if_asked(should_stop: ShouldStop) -> None:
    reason = should_stop()
    if reason is not None:
        kind = InterruptedRun if reason == "interrupted" else StoppedError
        raise kind(
            "stopped during the smoke test: no step of the run itself was done",
            remedy="run the same command again to begin",
        )


def _read_report(lines: list[str], complaint: str, code: int) -> ChildReport:
    if not lines:
        said = complaint or "it said nothing"
        if ran_out_of_memory(code):
            raise DoesNotFitError(
                f"the smoke test ran out of memory (code {code}: {said})",
                remedy="pass a smaller `--micro-batch` or `--model`",
            )
        raise LowtideError(
            f"the smoke test ended with code {code}: {said}",
            remedy="mend what it names; `lowtide doctor` checks torch and the machine",
        )
    found = msgspec.convert(json.loads(lines[-1]), ChildReport)
    if found.error is not None:
        kind = _KINDS.get(found.exit_code, LowtideError)
        raise kind(found.error, remedy=found.remedy or "see the log of the run")
    return found


def _judge(
    settings: TrainSettings, short: TrainSettings, found: ChildReport, predicted: int | None
) -> SmokeReport:
    usual = sorted(found.seconds[2:])[len(found.seconds[2:]) // 2]  # the first steps compile
    step_seconds = usual * settings.batch_tokens / short.batch_tokens
    speed = Speed(tokens_per_second=settings.batch_tokens / step_seconds, basis=MEASURED_HERE)
    serious = tuple(_bad_losses(settings, found))
    return SmokeReport(
        micro_batch=found.micro_batch,
        first_loss=found.losses[0],
        last_loss=found.losses[-1],
        val_loss=found.val_loss,
        sample=found.sample,
        step_tokens=settings.batch_tokens,
        tried_tokens=short.batch_tokens,
        step_seconds=step_seconds,
        tokens_per_second=speed.tokens_per_second,
        hours=hours_of_settings(settings, speed),
        checkpoint_seconds=found.checkpoint_seconds,
        gpu_bytes=found.gpu_bytes,
        predicted_gpu_bytes=predicted,
        problems=(*serious, *_other_memory(found, predicted)),
        serious=serious,
        notes=tuple(found.notes),
    )


def _bad_losses(settings: TrainSettings, found: ChildReport) -> list[str]:
    problems = []
    even = math.log(settings.shape.vocabulary_size)
    first, last = found.losses[0], min(found.losses[-3:])
    if settings.init is not None:
        return _bad_losses_of_start(even, first, last)
    if not abs(first - even) < _FIRST_LOSS_NATS:
        problems.append(f"the first loss is {first:.3f}, and even guesses would have {even:.3f}")
    if not last < first:
        problems.append(
            f"the loss does not fall: {first:.3f} at first, {last:.3f} after {STEPS} steps"
        )
    return problems


def _bad_losses_of_start(even: float, first: float, last: float) -> list[str]:
    """Who knows something begins below even guesses, and ten small steps need not show in the noise."""
    if not first < even + _FIRST_LOSS_NATS:
        return [
            f"the first loss is {first:.3f}, worse than even guesses, {even:.3f}: what it starts from does not "
            "know such tokens"
        ]
    if not last < first + _FIRST_LOSS_NATS:
        return [f"the loss rises: {first:.3f} at first, {last:.3f} after {STEPS} steps"]
    return []


def _other_memory(found: ChildReport, predicted: int | None) -> list[str]:
    if not predicted or not found.gpu_bytes:
        return []
    share = found.gpu_bytes / predicted - 1
    if abs(share) <= _PEAK_SHARE:
        return []
    return [f"the GPU's memory is off the prediction by {share:+.0%}"]
