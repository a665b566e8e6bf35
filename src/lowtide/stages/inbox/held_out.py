"""One validation set for the whole run: the held-out examples of the first file that has any.

Which examples are held out is decided by a hash of their text, so one that comes again in a later file is on
the same side. What later files hold out is never trained on either.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError, VerificationError
from lowtide.events import Note
from lowtide.shards.layout import MANIFEST_NAME
from lowtide.shards.manifest import (
    DatasetManifest,
    SplitRecord,
    file_names,
    read_manifest,
    write_manifest,
)
from lowtide.shards.verify import verify_dataset
from lowtide.stages.inbox.ledger import remedy_for
from lowtide.stages.run_source import HELD_OUT_NAME
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.publish import publish, storage_errors, sync_file, sync_folder
from lowtide.training.settings import FEWEST_WINDOWS, TrainSettings

_ADVICE = "a larger `val` in lowtide.toml holds out more, in a new run"


def keep_held_out(run: Path, shards: Path, work: Path, settings: TrainSettings) -> str | None:
    """Keep the shards' held-out part in the run; the digest to know it by, or None.

    Less than a window is not a validation set: a later file may have more. One that is there was kept by a run
    that was killed before it could record it.
    """
    if (run / HELD_OUT_NAME / MANIFEST_NAME).exists():
        if verify_dataset(run / HELD_OUT_NAME).sound:
            return _digest(run)
        with storage_errors(run / HELD_OUT_NAME):
            shutil.rmtree(run / HELD_OUT_NAME)
    manifest = read_manifest(shards)
    if not manifest.splits["val"].tokens:
        return None
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
        return None
    found.close()
    publish(partial, run / HELD_OUT_NAME)
    return _digest(run)


def open_held_out(run: Path, settings: TrainSettings, digest: str | None) -> TokenDataset | None:
    """The windows that every evaluation of the run looks at; None while nothing is held out."""
    if digest is None:
        return None
    check_held_out(run, digest)
    return _open(run / HELD_OUT_NAME, settings)


def check_held_out(run: Path, digest: str) -> None:
    """VerificationError unless it is there, whole, and the one that the run began with. Reads all of it."""
    folder = run / HELD_OUT_NAME
    if not (folder / MANIFEST_NAME).exists():
        problem = f"{folder} is missing"
    elif _digest(run) != digest:
        problem = f"{folder} is another than the one that the run is measured on"
    else:
        found = verify_dataset(folder)
        if found.sound:
            return
        problem = f"{folder} is damaged: {found.problems[0]}"
    raise VerificationError(
        f"{problem}; losses could not be compared with those before",
        remedy=remedy_for(run, HELD_OUT_NAME),
    )


def _digest(run: Path) -> str:
    """Of the manifest, which holds the digests of the rest."""
    return digest_file(run / HELD_OUT_NAME / MANIFEST_NAME)


def _open(folder: Path, settings: TrainSettings) -> TokenDataset | None:
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


def describe_held_out(run: Path, settings: TrainSettings, digest: str) -> Note:
    """How much the validation set is worth."""
    found = open_held_out(run, settings, digest)
    count = 0 if found is None else found.window_count
    if found is not None:
        found.close()
    held = "1 window is" if count == 1 else f"{count} windows are"
    text = f"{held} held out in {run / HELD_OUT_NAME}: no evaluation is on any other"
    if count >= FEWEST_WINDOWS:
        return Note(text=text)
    return Note(text=f"{text}; so few say little; {_ADVICE}", level="warning")


def no_held_out(val: float) -> Note:
    """That there are no evaluations, and so no best checkpoint."""
    if not val:
        return Note(text="nothing is held out (val = 0 in lowtide.toml), so nothing is evaluated")
    text = f"nothing is held out so far, so nothing is evaluated: the files are small; {_ADVICE}"
    return Note(text=text, level="warning")


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
