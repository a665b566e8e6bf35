"""The story of `export --to huggingface`: a checkpoint as a folder that transformers opens."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.model.hugging_face import config_of, to_hugging_face
from lowtide.model.tensor_files import WEIGHTS_NAME
from lowtide.pipeline.open_model import CONFIG_NAME, OpenedModel, open_run
from lowtide.storage.leftovers import name_of_ours, remove_folders_of_the_dead
from lowtide.storage.publish import storage_errors, sync_file, sync_folder
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.run_folder import read_run_record
from lowtide.training.tensor_file import write_tensors


def export_model(
    run: str | Path, out: str | Path, *, step: int | None = None, listen: Listener = ignore
) -> Path:
    """Write the newest checkpoint of a run, or that of `step`, as a GPT2LMHeadModel with its tokenizer.

    `out` appears whole or not at all, and must not exist or be empty. Holds one copy of the model in memory.
    """
    folder, target = Path(run), Path(out).resolve()  # a link to a folder stays one
    read_run_record(folder)
    _check_target(target)
    opened = open_run(folder, step=step, device="cpu")
    listen(Note(text=f"the weights are those of {opened.source.name}"))
    prefix = f".{target.name}."
    partial = target.with_name(f"{name_of_ours(prefix)}.tmp")
    try:
        with storage_errors(partial):
            remove_folders_of_the_dead(target.parent, prefix)
            shutil.rmtree(partial, ignore_errors=True)  # of a call in this process that failed
            partial.mkdir(parents=True)
        _write_files(partial, opened)
        _publish(partial, target)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            shutil.rmtree(partial)
        raise
    return Path(out)


def _write_files(folder: Path, opened: OpenedModel) -> None:
    shape, tokenizer = opened.model.shape, opened.tokenizer
    end_of_text = tokenizer.end_of_text if tokenizer is not None else None
    write_tensors(folder / WEIGHTS_NAME, to_hugging_face(opened.model.state_dict(), shape).items())
    if tokenizer is not None:
        tokenizer.save(folder)
        _tell_context(folder / "tokenizer_config.json", shape.context)
    _write_json(folder / CONFIG_NAME, config_of(shape, end_of_text=end_of_text))
    ends: JsonObject = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})


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
