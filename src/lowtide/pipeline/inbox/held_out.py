"""One yardstick for the whole run: the held-out examples of the first file that has any, kept as a dataset.

Which examples are held out is decided by a hash of their text, so one that comes again in a later file is on
the same side. What later files hold out is never trained on either.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.events import Listener, Note
from lowtide.pipeline.run_source import HELD_OUT_NAME
from lowtide.shards.layout import MANIFEST_NAME
from lowtide.shards.manifest import (
    DatasetManifest,
    SplitRecord,
    file_names,
    read_manifest,
    write_manifest,
)
from lowtide.storage.publish import publish, storage_errors, sync_file, sync_folder
from lowtide.training.settings import RunSettings

FEWEST_WINDOWS = 16
"""Fewer held out are a few examples, and their loss is the luck of which."""


def keep_held_out(run: Path, shards: Path, work: Path, settings: RunSettings) -> bool:
    """Keep the shards' held-out part in the run, unless one is kept already; whether it was kept now.

    Less than a window is no yardstick: a later file may have more.
    """
    if (run / HELD_OUT_NAME / MANIFEST_NAME).exists():
        return False
    manifest = read_manifest(shards)
    if not manifest.splits["val"].tokens:
        return False
    part, partial = _held_out_part(manifest), work / HELD_OUT_NAME
    with storage_errors(partial):
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed here
        partial.mkdir()
        for name in file_names(part):
            with (shards / name).open("rb") as source, (partial / name).open("xb") as copy:
                shutil.copyfileobj(source, copy)
                copy.flush()
                sync_file(copy.fileno())
    write_manifest(partial, part)
    sync_folder(partial)
    found = _open(partial, settings)
    if found is None:
        with storage_errors(partial):
            shutil.rmtree(partial)
        return False
    found.close()
    publish(partial, run / HELD_OUT_NAME)
    return True


def open_held_out(run: Path, settings: RunSettings) -> TokenDataset | None:
    """The windows that every evaluation of the run looks at; None while nothing is held out."""
    folder = run / HELD_OUT_NAME
    return _open(folder, settings) if (folder / MANIFEST_NAME).exists() else None


def _open(folder: Path, settings: RunSettings) -> TokenDataset | None:
    try:
        return TokenDataset(
            folder,
            settings.val_split,
            settings.shape.context,
            order="sequential",
            windows=settings.windows,
        )
    except UsageError:  # shorter than a window
        return None


def tell_held_out(run: Path, settings: RunSettings, listen: Listener) -> None:
    """How much the yardstick is worth."""
    found = open_held_out(run, settings)
    windows = 0 if found is None else found.window_count
    text = f"{windows} windows are held out in {run / HELD_OUT_NAME}: every evaluation is on them"
    if windows >= FEWEST_WINDOWS:
        listen(Note(text=text))
    else:
        advice = "so few say little; a larger `val` in lowtide.toml holds out more, in a new run"
        listen(Note(text=f"{text}; {advice}", level="warning"))
    if found is not None:
        found.close()


def _held_out_part(manifest: DatasetManifest) -> DatasetManifest:
    val = manifest.splits["val"]
    examples = manifest.examples
    if examples is not None:
        learnt = val.learnt.tokens if val.learnt else 0
        examples = replace(examples, examples=val.documents, learnt_tokens=learnt)
    return replace(
        manifest,
        splits={"train": SplitRecord(), "val": val},
        text_bytes=None,
        examples=examples,
        bad_rows=0,
        first_bad_rows=(),
        empty_documents=0,
    )
