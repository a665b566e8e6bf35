"""The story of `export --to huggingface`: a checkpoint as a folder that transformers opens."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lowtide.dataset.find_tokens import MODEL_RECORD
from lowtide.errors import LowtideError, UsageError, VerificationError
from lowtide.events import Listener, Note, ignore
from lowtide.guard.process_folders import process_folder_name, remove_orphan_folders
from lowtide.model.hugging_face import config_of, to_hugging_face
from lowtide.model.tensor_files import WEIGHTS_NAME
from lowtide.source.examples.templates import TEMPLATE_FILE
from lowtide.stages.chat import make_chat_prompt
from lowtide.stages.open_model import CONFIG_NAME, OpenedModel, choose_checkpoint, open_run
from lowtide.storage.decode_json import FileName, convert_json, explain
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors, sync_file, sync_folder
from lowtide.storage.sealed_json import JsonObject, JsonValue, read_sealed, write_sealed
from lowtide.training.checkpoint import model_digest
from lowtide.training.run_folder import read_run_record
from lowtide.training.tensor_file import write_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A folder that transformers opens."""

    folder: Path
    already_done: bool
    """Whether it held this very export before; then nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What MODEL_RECORD holds."""

    checkpoint: str
    weights: str
    """Digest of the checkpoint's weights."""
    files: dict[FileName, str]
    """The digest of every other file."""


def export_model(
    run: str | Path, out: str | Path, *, step: int | None = None, listen: Listener = ignore
) -> Path:
    """Write the newest checkpoint of a run, or that of `step`, as a GPT2LMHeadModel with its tokenizer.

    `out` appears whole or not at all, and must not exist or be empty. Where it holds this export already,
    nothing is changed. Holds one copy of the model in memory.
    """
    return export_checkpoint(run, out, step=step, listen=listen).folder


def export_checkpoint(
    run: str | Path, out: str | Path, *, step: int | None = None, listen: Listener = ignore
) -> ExportedModel:
    """The same, and whether there was anything to do."""
    folder, target = as_path(run), as_path(out).resolve()  # a link to a folder stays one
    read_run_record(folder)
    if (target / MODEL_RECORD).is_file():
        _compare(target, choose_checkpoint(folder, step))
        return ExportedModel(folder=Path(out), already_done=True)
    _check_target(target)
    opened = open_run(folder, step=step, device="cpu")
    weights = model_digest(
        opened.source
    )  # training may remove the checkpoint while files are written
    listen(Note(text=f"the weights are those of {opened.source.name}"))
    prefix = f".{target.name}."
    partial = target.with_name(f"{process_folder_name(prefix)}.tmp")
    try:
        with storage_errors(partial):
            remove_orphan_folders(target.parent, prefix)
            shutil.rmtree(partial, ignore_errors=True)  # of a call in this process that failed
            partial.mkdir(parents=True)
        _write_files(partial, opened, listen)
        _write_record(partial, opened.source.name, weights)
        _publish(partial, target)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            shutil.rmtree(partial)
        raise
    return ExportedModel(folder=Path(out), already_done=False)


def _write_record(folder: Path, checkpoint: str, weights: str) -> None:
    with storage_errors(folder):
        files: JsonObject = {
            path.name: digest_file(path, 0, path.stat().st_size)
            for path in sorted(folder.iterdir())
        }
    record: JsonObject = {"checkpoint": checkpoint, "weights": weights, "files": files}
    write_sealed(folder / MODEL_RECORD, record)


def _compare(target: Path, checkpoint: Path) -> None:
    """UsageError unless the folder holds the export of this checkpoint, unchanged."""
    record = _read_record(target / MODEL_RECORD)
    if record.weights != model_digest(checkpoint):
        raise UsageError(
            f"{target} holds the export of another model, {record.checkpoint}, and not of {checkpoint}",
            remedy="pass a new or empty folder as `--out`, or the `--step` that was exported",
        )
    for name, digest in record.files.items():
        path = target / name
        with storage_errors(path, doing="read"):
            is_same = path.is_file() and digest_file(path, 0, path.stat().st_size) == digest
        if not is_same:
            raise UsageError(
                f"{target} holds this export, and {name} was changed or removed since",
                remedy="pass a new or empty folder as `--out`",
            )


def _read_record(path: Path) -> _Record:
    try:
        return convert_json(read_sealed(path), _Record)
    except msgspec.ValidationError as error:
        raise VerificationError(
            f"{path} does not hold what it should: {explain(error)}",
            remedy="pass a new or empty folder as `--out`",
        ) from error


def _write_files(folder: Path, opened: OpenedModel, listen: Listener) -> None:
    shape, tokenizer = opened.model.shape, opened.tokenizer
    end_of_text = tokenizer.end_of_text if tokenizer is not None else None
    write_tensors(folder / WEIGHTS_NAME, to_hugging_face(opened.model.state_dict(), shape).items())
    if tokenizer is not None:
        tokenizer.save(folder)
        _tell_context(folder / "tokenizer_config.json", shape.context)
    _write_json(folder / CONFIG_NAME, config_of(shape, end_of_text=end_of_text))
    stops = _copy_chat_template(opened, folder, listen)
    ends: JsonObject = {"bos_token_id": end_of_text, "eos_token_id": stops or end_of_text}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})


def _copy_chat_template(opened: OpenedModel, folder: Path, listen: Listener) -> list[JsonValue]:
    """The tokens that end an answer, where there is a template and the tokenizer has a token for that."""
    if opened.tokenizer is None or opened.tokenizer_folder is None:
        return []
    template = opened.tokenizer_folder / TEMPLATE_FILE
    if not template.is_file():
        return []
    with storage_errors(folder):
        shutil.copyfile(template, folder / TEMPLATE_FILE)
    stop = None
    with suppress(
        LowtideError
    ):  # a template that wants more than a question is copied all the same
        prompt = make_chat_prompt(opened.tokenizer_folder, opened.tokenizer, "")
        stop = prompt.stop_token
        if prompt.stop_text:
            listen(Note(text=_stop_text_note(prompt.stop_text), level="warning"))
    return [*dict.fromkeys(x for x in (opened.tokenizer.end_of_text, stop) if x is not None)]


def _stop_text_note(stop_text: str) -> str:
    """What `generate` must be told. In the configuration it would make every call without a tokenizer fail."""
    return (
        f"the tokenizer has no token for {stop_text!r}, which ends a turn: pass "
        f"`stop_strings=[{stop_text!r}], tokenizer=tokenizer` to transformers' `generate`"
    )


def _tell_context(path: Path, context: int) -> None:
    """transformers then warns of a text that is longer than the model's positions."""
    if path.exists():
        config: JsonObject = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, {**config, "model_max_length": context})


def _write_json(path: Path, value: JsonObject) -> None:
    with storage_errors(path):
        path.write_text(json.dumps(value, indent=2) + "\n")


def _publish(partial: Path, target: Path) -> None:
    """Every byte on the disk before the folder gets its name."""
    with storage_errors(target):
        for path in partial.iterdir():
            with path.open("rb+") as file:
                sync_file(file.fileno())
        sync_folder(partial)
        if target.exists():
            target.rmdir()  # it is empty; else this refuses, and what came meanwhile stays
        partial.replace(target)
    sync_folder(target.parent)


def _check_target(target: Path) -> None:
    with storage_errors(target, doing="read"):
        if target.exists() and not target.is_dir():
            raise UsageError(f"{target} is a file", remedy="pass a folder as `--out`")
        names = [entry.name for entry in target.iterdir()] if target.exists() else []
    if names:
        raise UsageError(
            f"{target} already holds something, such as {min(names)}",
            remedy="pass a new or empty folder as `--out`",
        )
