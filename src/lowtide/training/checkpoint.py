"""Checkpoints: a folder that is absent or whole, holds no code, and costs the memory of one tensor.

    checkpoints/.step-00001000.4711.tmp/  →  model, optimizer, state (with digests of both)  →  rename

Kept are the last two and the one with the best evaluation.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from lowtide.errors import UsageError, VerificationError
from lowtide.model.gpt import GPT
from lowtide.model.tensor_files import TensorFiles
from lowtide.storage.decode_json import convert_json
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.publish import publish, storage_errors, sync_folder
from lowtide.storage.sealed_json import JsonObject, JsonValue, read_sealed, write_sealed
from lowtide.training.optimizer import make_empty_state, state_tensors
from lowtide.training.run_folder import CHECKPOINTS
from lowtide.training.tensor_file import read_tensors, write_tensors
from lowtide.training.watch_loss import Count, WatchState

MODEL_NAME, OPTIMIZER_NAME, STATE_NAME = "model.safetensors", "optimizer.safetensors", "state.json"
_KEPT = 2
_NOBODY = 0
"""Stands where the number of a process would: what is being removed is written by none."""
_STEP = re.compile(r"step-(\d{8,})\Z")
_PARTIAL = re.compile(r"\.step-\d+\.\d+\.tmp\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands, but for its tensors."""

    step: int
    """Steps done."""
    loader: JsonObject
    best_loss: float | None = None
    best_step: int | None = None
    loss_watch: JsonObject = field(default_factory=dict)
    skipped_steps: int = 0
    owes_evaluation: bool = False
    """Whether an evaluation was due after this step, and a stop came first."""

    @property
    def position(self) -> int:
        """Windows of the data that were trained on, over all ranks; a short last step counts as what it was."""
        found = self.loader.get("position")
        return found if isinstance(found, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredLoader:
    version: int
    position: Count
    stream: dict[str, str | int | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredState:
    """What `state.json` must hold beside the digests, which are compared with the files."""

    step: Count
    loader: _StoredLoader
    best_loss: float | None
    best_step: Count | None
    loss_watch: WatchState
    skipped_steps: Count
    owes_evaluation: bool = False


def find_checkpoints(run: Path) -> list[Path]:
    """Whole ones, oldest first."""
    folder = run / CHECKPOINTS
    with storage_errors(folder, doing="read"):
        names = list(folder.iterdir()) if folder.is_dir() else []
    found = [entry for entry in names if _STEP.match(entry.name) and entry.is_dir()]
    return sorted(found, key=step_of)


def checkpoint_of(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint, whether it is there or not."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """`step_of(Path("RUN/checkpoints/step-00001000"))` is 1000."""
    match = _STEP.match(checkpoint.name)
    if match is None:
        raise UsageError(
            f"{checkpoint} is not a checkpoint", remedy="name a folder such as `step-00001000`"
        )
    return int(match.group(1))


def write_checkpoint(
    run: Path, model: GPT, optimizer: torch.optim.Optimizer, state: RunState
) -> Path:
    """Publish the state as a checkpoint of its own; older ones stand until it does."""
    folder = run / CHECKPOINTS
    final = checkpoint_of(run, state.step)
    partial = folder / f".{final.name}.{os.getpid()}.tmp"
    with storage_errors(partial):
        folder.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        partial.mkdir()
    try:
        _write_parts(partial, model, optimizer, state)
        with storage_errors(final):
            _retire(final)  # of the same step, where that is done again
        publish(partial, final)
    except BaseException:
        with suppress(OSError):
            _remove(partial)
        raise
    return final


def write_state(run: Path, state: RunState) -> None:
    """Put another state beside the tensors of this step's checkpoint, which did not change."""
    path = checkpoint_of(run, state.step) / STATE_NAME
    _write_state(path, state, read_sealed(path).get("digests"))


def remove_partial(run: Path) -> None:
    """Clear away what a killed run was writing or removing."""
    folder = run / CHECKPOINTS
    with storage_errors(folder):
        for entry in list(folder.iterdir()) if folder.is_dir() else []:
            if _PARTIAL.match(entry.name):
                _remove(entry)


def prune(run: Path, best_step: int | None) -> None:
    """Remove all but the last two and the best."""
    found = find_checkpoints(run)
    for checkpoint in found[:-_KEPT]:
        if step_of(checkpoint) != best_step:
            with storage_errors(checkpoint):
                _retire(checkpoint)


def load_model(checkpoint: Path, model: GPT) -> None:
    """The weights, straight into the model's own memory; VerificationError for a damaged file."""
    _check_digests(checkpoint, (MODEL_NAME,))
    read_tensors(checkpoint / MODEL_NAME, _model_tensors(model))


def open_weights(checkpoint: Path) -> TensorFiles:
    """The weights by their names, verified, and read when they are asked for."""
    _check_digests(checkpoint, (MODEL_NAME,))
    return TensorFiles([checkpoint / MODEL_NAME])


def load_checkpoint(checkpoint: Path, model: GPT, optimizer: torch.optim.Optimizer) -> RunState:
    """Weights, optimizer and where the run stood."""
    load_model(checkpoint, model)
    _check_digests(checkpoint, (OPTIMIZER_NAME,))
    make_empty_state(model, optimizer)
    read_tensors(checkpoint / OPTIMIZER_NAME, state_tensors(model, optimizer))
    stored = _read_state(checkpoint)
    return RunState(
        step=stored.step,
        loader=msgspec.to_builtins(stored.loader),
        best_loss=stored.best_loss,
        best_step=stored.best_step,
        loss_watch=msgspec.to_builtins(stored.loss_watch),
        skipped_steps=stored.skipped_steps,
        owes_evaluation=stored.owes_evaluation,
    )


def _write_parts(
    folder: Path, model: GPT, optimizer: torch.optim.Optimizer, state: RunState
) -> None:
    digests: JsonObject = {
        MODEL_NAME: write_tensors(folder / MODEL_NAME, _model_tensors(model)),
        OPTIMIZER_NAME: write_tensors(folder / OPTIMIZER_NAME, state_tensors(model, optimizer)),
    }
    _write_state(folder / STATE_NAME, state, digests)
    sync_folder(folder)


def _write_state(path: Path, state: RunState, digests: JsonValue) -> None:
    write_sealed(
        path,
        {
            "step": state.step,
            "loader": state.loader,
            "best_loss": state.best_loss,
            "best_step": state.best_step,
            "loss_watch": state.loss_watch,
            "skipped_steps": state.skipped_steps,
            "owes_evaluation": state.owes_evaluation,
            "digests": digests,
        },
    )


def _read_state(checkpoint: Path) -> _StoredState:
    try:
        stored = convert_json(read_sealed(checkpoint / STATE_NAME), _StoredState)
    except msgspec.ValidationError as cause:
        raise bad_state(checkpoint, str(cause)) from cause
    if stored.step != step_of(checkpoint):
        raise bad_state(checkpoint, f"it is of step {stored.step}")
    if stored.best_step is not None and stored.best_step > stored.step:
        raise bad_state(checkpoint, f"its best evaluation is of step {stored.best_step}")
    return stored


def bad_state(checkpoint: Path, said: str) -> VerificationError:
    """For a `state.json` whose seal matches, and which this run has not written."""
    return VerificationError(
        f"{checkpoint / STATE_NAME} does not hold what it should: {said}",
        remedy=_go_on_from(checkpoint),
    )


def model_digest(checkpoint: Path) -> str:
    """The recorded digest of a checkpoint's weights, which are not read."""
    digests = read_sealed(checkpoint / STATE_NAME).get("digests")
    return str(digests.get(MODEL_NAME)) if isinstance(digests, dict) else ""


def _check_digests(checkpoint: Path, names: tuple[str, ...]) -> None:
    try:
        digests = read_sealed(checkpoint / STATE_NAME).get("digests")
    except VerificationError as cause:
        raise VerificationError(cause.problem, remedy=_go_on_from(checkpoint)) from cause
    for name in names:
        path = checkpoint / name
        wanted = digests.get(name) if isinstance(digests, dict) else None
        with storage_errors(path, doing="read"):
            size = path.stat().st_size if path.exists() else 0
        if not size or digest_file(path, 0, size) != wanted:
            raise VerificationError(
                f"{path} is not what was written: it is cut, damaged or gone",
                remedy=_go_on_from(checkpoint),
            )


def load_newest(run: Path, model: GPT, optimizer: torch.optim.Optimizer) -> RunState:
    """The newest checkpoint of a run; its very beginning where there is none."""
    found = find_checkpoints(run)
    return load_checkpoint(found[-1], model, optimizer) if found else RunState(step=0, loader={})


def resume_hint(run: Path, *, before: int) -> str:
    """How to go on from the newest checkpoint that is older than a trouble; for a remedy."""
    found = find_checkpoints(run)
    good = [one for one in found if step_of(one) < before]
    again = "start a new run with a lower learning rate or a longer warm-up"
    if not good:
        return again if not found else f"no checkpoint is older than step {before}: {again}"
    later = ", ".join(one.name for one in found if one not in good)
    then = f"remove {later} in {run / CHECKPOINTS}, and the same" if later else "the same"
    return (
        f"the last good checkpoint is {good[-1].name}: {then} command goes on from it; should it happen "
        f"again, {again}"
    )


def _go_on_from(checkpoint: Path) -> str:
    found = find_checkpoints(checkpoint.parent.parent)
    earlier = [one for one in found if step_of(one) < step_of(checkpoint)]
    if not earlier:
        return f"remove {checkpoint} to begin again"
    return f"remove {checkpoint} to go on from {earlier[-1].name}"


def _model_tensors(model: GPT) -> Iterator[tuple[str, Tensor]]:
    return ((name, parameter) for name, parameter in model.named_parameters())


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _retire(checkpoint: Path) -> None:
    """Gone at once for all who look: half of one must not bear its name when this is killed."""
    if checkpoint.exists():
        gone = checkpoint.with_name(f".{checkpoint.name}.{_NOBODY}.tmp")
        _remove(gone)
        checkpoint.replace(gone)
        _remove(gone)
