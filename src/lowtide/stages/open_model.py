"""A model that was trained, opened to be used: from a run of `lowtide train`, or a Hugging Face folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import DataError, StorageError, UsageError, VerificationError
from lowtide.model.gpt import GPT
from lowtide.model.hugging_face import fill_from_hugging_face, shape_of
from lowtide.model.tensor_files import TensorFiles, check_size, weight_files
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors
from lowtide.storage.sealed_json import JsonObject
from lowtide.tokenizer.tokenizer import Tokenizer
from lowtide.training.build import empty_model
from lowtide.training.checkpoint import MODEL_NAME, find_checkpoints, load_model, step_of
from lowtide.training.run_folder import RUN_NAME, read_run_record

CONFIG_NAME = "config.json"
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """Weights on their device, and what turns text into tokens, if anything is known to."""

    model: GPT
    tokenizer: Tokenizer | None
    tokenizer_folder: Path | None
    """Holds the tokenizer's files, and the chat template if there is one; None where `tokenizer` is."""
    source: Path
    """The checkpoint, or the folder, that the weights came from."""


def open_model(
    path: str | Path, *, step: int | None = None, device: str | None = None
) -> OpenedModel:
    """The model of a run (its newest checkpoint, or that of `step`) or of a GPT-2 folder with safetensors.

    Without a device: the GPU, if there is one with plenty of free memory, so that training is not disturbed.
    """
    folder = as_path(path)
    if (folder / RUN_NAME).exists():
        return open_run(folder, step=step, device=device)
    if not (folder / CONFIG_NAME).exists():
        raise _no_model(folder)
    if step is not None:
        raise UsageError(
            f"{folder} holds one model and no steps", remedy="leave out `--step`, or pass a run"
        )
    return _open_hugging_face(folder, device)


def open_run(run: Path, *, step: int | None = None, device: str | None = None) -> OpenedModel:
    """The model of a run of `lowtide train`, which may go on meanwhile."""
    record = read_run_record(run)
    checkpoint = choose_checkpoint(run, step)
    check_size(record.shape, [checkpoint / MODEL_NAME], described_by=run / RUN_NAME)
    model = empty_model(record.shape, device)
    source = _load_checkpoint(run, step, model)
    there = record.tokenizer_path
    tokenizer = Tokenizer.load(there) if there is not None else None
    return OpenedModel(model=model, tokenizer=tokenizer, tokenizer_folder=there, source=source)


def _load_checkpoint(run: Path, step: int | None, model: GPT) -> Path:
    """Training removes old checkpoints: one that vanishes in our hands is replaced by the newest there is."""
    failed: Path | None = None
    while True:
        checkpoint = choose_checkpoint(run, step)
        try:
            load_model(checkpoint, model)
        except (VerificationError, StorageError):
            if checkpoint == failed:  # nobody is removing it: it is damaged
                raise
            failed = checkpoint
            time.sleep(_PAUSE_SECONDS)
        else:
            return checkpoint


def _open_hugging_face(folder: Path, device: str | None) -> OpenedModel:
    shape = shape_of(read_config(folder / CONFIG_NAME))
    files = weight_files(folder)
    state = TensorFiles(files)
    check_size(shape, files, described_by=folder / CONFIG_NAME)
    model = empty_model(shape, device)
    fill_from_hugging_face(model, state)
    named = any((folder / name).exists() for name in TOKENIZER_FILES)
    tokenizer = Tokenizer.load(folder) if named else None
    return OpenedModel(
        model=model,
        tokenizer=tokenizer,
        tokenizer_folder=folder if named else None,
        source=folder,
    )


def choose_checkpoint(run: Path, step: int | None) -> Path:
    """The newest checkpoint of a run, or that of `step`; UsageError where there is none."""
    there = find_checkpoints(run)
    if not there:  # while one is listed, the only one may give way to the next
        time.sleep(_PAUSE_SECONDS)
        there = find_checkpoints(run)
    if not there:
        raise UsageError(
            f"{run} holds no checkpoint yet",
            remedy="wait for the first one, or stop the run with a `.stop` file: it saves one then",
        )
    if step is None:
        return there[-1]
    by_step = {step_of(path): path for path in there}
    if step not in by_step:
        raise UsageError(
            f"{run} holds no checkpoint of step {step}",
            remedy=f"pass `--step {max(by_step)}`; there are {', '.join(map(str, sorted(by_step)))}",
        )
    return by_step[step]


def read_config(path: Path) -> JsonObject:
    """What a config.json says; DataError for what is none."""
    try:
        with storage_errors(path, doing="read"):
            found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return found
        problem = "is not a JSON object"
    except (ValueError, RecursionError) as error:
        problem = f"is not whole JSON ({error})"
    raise DataError(f"{path} {problem}", remedy="put it back from a copy")


def _no_model(folder: Path) -> UsageError:
    if not folder.exists():
        return UsageError(
            f"{folder} does not exist", remedy="pass the `--out` folder of `lowtide train`"
        )
    return UsageError(
        f"{folder} holds neither {RUN_NAME} nor {CONFIG_NAME}",
        remedy="pass the `--out` folder of `lowtide train`, or a Hugging Face folder of GPT-2",
    )
