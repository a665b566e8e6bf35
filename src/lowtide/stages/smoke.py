"""The smoke test before a long run: ten steps, an evaluation, a checkpoint, a sample, in a process of its own.

What it finds is measured; what it says of the whole run is computed from that.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lowtide.child import WorkingChild, ran_out_of_memory
from lowtide.errors import DoesNotFitError, LowtideError, error_of_kind
from lowtide.events import Listener, Note, Stop, ignore
from lowtide.guard.process_folders import process_folder_name, remove_orphan_folders
from lowtide.plan.speed import MEASURED_HERE, Speed, hours_of_settings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import nearest_folder
from lowtide.stages.resolve_run import ResolvedRun
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.decode_json import convert_json
from lowtide.storage.publish import storage_errors
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.run_results import SmokeReport
from lowtide.training.settings import TrainSettings

STEPS = 10
_PREFIX = ".lowtide-smoke-"
_MOST_MICRO_BATCHES = 2
_FIRST_LOSS_NATS = 0.6
"""How far from ln(vocabulary) a model may begin: its first guesses are nearly even."""
_PEAK_SHARE = 0.05


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


def smoke(
    run: ResolvedRun,
    *,
    memory: str | None = None,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
) -> SmokeReport:
    """Try a run beside its folder, where nothing is left behind; LowtideError if it cannot be run.

    StoppedError soon after a stop is asked for: the test is killed.
    """
    short = _shortened(run.settings)
    with _place_beside(run.folder.absolute()) as place:
        request: JsonObject = {
            "settings": short.as_record(),
            "out": f"{place}/run",
            "memory": memory,
        }
        found = run_child(request, listen, should_stop)
    return _judge(run, short, found)


def _shortened(settings: TrainSettings) -> TrainSettings:
    """Ten steps of at most two micro-batches each: the memory of the whole run, in its first minute."""
    windows = settings.windows_per_step
    micro_batches = min(_MOST_MICRO_BATCHES, -(-windows // settings.micro_batch))
    return replace(
        settings,
        steps=STEPS,
        epochs=None,
        warmup_steps=2,
        batch_tokens=min(windows, micro_batches * settings.micro_batch) * settings.shape.context,
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


def run_child(
    request: JsonObject, listen: Listener, should_stop: ShouldStop = never_stop
) -> ChildReport:
    """What the child measured. It is killed when a stop is asked for: a step may take minutes, and nothing of
    the test is kept."""
    child, report = WorkingChild("lowtide.stages.smoke_child", json.dumps(request).encode()), None
    try:
        for message in child.messages():
            if reason := should_stop():
                sentence = "no step of the run itself was done"
                raise Stop(reason, sentence).error("during the smoke test")
            match message:
                case {"note": str(text)}:
                    listen(Note(text=text))
                case {"report": found}:
                    report = convert_json(found, ChildReport)
                case {"error": {"kind": str(kind), "problem": str(problem), "remedy": str(remedy)}}:
                    raise error_of_kind(kind, problem, remedy=remedy)
    finally:
        code, complaint = child.end()
    if report is not None:
        return report
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


def _judge(run: ResolvedRun, short: TrainSettings, found: ChildReport) -> SmokeReport:
    settings = run.settings
    usual = sorted(found.seconds[2:])[len(found.seconds[2:]) // 2]  # the first steps compile
    step_seconds = usual * settings.batch_tokens / short.batch_tokens
    speed = Speed(tokens_per_second=settings.batch_tokens / step_seconds, basis=MEASURED_HERE)
    mfu = None
    if run.peak_flops is not None:
        mfu = speed.tokens_per_second * settings.shape.flops_per_token / run.peak_flops
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
        predicted_gpu_bytes=run.predicted_gpu_bytes,
        problems=(*serious, *_other_memory(found, run.predicted_gpu_bytes)),
        serious=serious,
        notes=tuple(found.notes),
        mfu=mfu,
    )


def _bad_losses(settings: TrainSettings, found: ChildReport) -> Iterator[str]:
    """What is wrong with the losses. A model that knows something begins below even guesses, and what ten small
    steps change may be less than the noise."""
    even = math.log(settings.shape.vocabulary_size)
    first, last = found.losses[0], min(found.losses[-3:])
    is_tuned = settings.init is not None
    if is_tuned and not first < even + _FIRST_LOSS_NATS:
        yield (
            f"the first loss is {first:.3f}, worse than even guesses, {even:.3f}: the initial weights do not "
            "know such tokens"
        )
    elif is_tuned and not last < first + _FIRST_LOSS_NATS:
        yield f"the loss rises: {first:.3f} at first, {last:.3f} after {STEPS} steps"
    if not is_tuned and not abs(first - even) < _FIRST_LOSS_NATS:
        yield f"the first loss is {first:.3f}, and even guesses would have {even:.3f}"
    if not is_tuned and not last < first:
        yield f"the loss does not fall: {first:.3f} at first, {last:.3f} after {STEPS} steps"


def _other_memory(found: ChildReport, predicted: int | None) -> Iterator[str]:
    if predicted and found.gpu_bytes and abs(found.gpu_bytes / predicted - 1) > _PEAK_SHARE:
        yield f"the GPU's memory is off the prediction by {found.gpu_bytes / predicted - 1:+.0%}"
