"""The folder of a run, taken: locked, cleared of what a kill left, compared, or begun anew.

A run that is begun anew replaces the old one when it has a checkpoint of its own. Until then the old one lies
aside, and comes back should the new one fail: what is refused costs nothing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowtide import __version__
from lowtide.errors import DoesNotFitError, LowtideError, UsageError
from lowtide.events import Event, Listener, Note, Saved
from lowtide.journal import LOG_NAME
from lowtide.model.needs import bytes_of_checkpoint
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.examples.templates import TEMPLATE_FILE
from lowtide.stages import folder as out_folder
from lowtide.stages.run_source import OWN_NAMES, RunSource, stream_differences
from lowtide.storage.publish import remove_path, storage_errors, sync_folder, write_atomically
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.checkpoint import find_checkpoints, remove_partial
from lowtide.training.run_folder import (
    CHECKPOINTS,
    RUN_NAME,
    TOKENIZER,
    RunRecord,
    read_run_record,
    write_run_record,
)
from lowtide.training.settings import TrainSettings, differences
from lowtide.units import format_bytes

_CHECKPOINTS_AT_ONCE = 4
"""The last two, the best, and the one being written."""
_LEFTOVER = re.compile(rf"\.({re.escape(RUN_NAME)}|{re.escape(LOG_NAME)}|{TOKENIZER})\.\d+\.tmp\Z")


def check_run(folder: Path, settings: TrainSettings, source: RunSource, *, restart: bool) -> None:
    """What `take_run` would refuse, said before a large model is built; nothing is changed."""
    out_folder.check_folder(folder, out_folder.RUN)
    if (
        restart or not folder.exists() or _OldRun(folder).is_aside
    ):  # whose it is, the lock's holder finds
        return
    with storage_errors(folder, doing="read"):
        _compare(folder, settings, source.stream)


@contextmanager
def take_run(
    folder: Path,
    settings: TrainSettings,
    source: RunSource,
    *,
    restart: bool,
    listen: Listener,
    start: str | None = None,
) -> Iterator[Listener]:
    """The folder is this process's alone inside. Yields a listener that lets go of the old run in time.

    `start` is the digest of the weights that a new run starts from.
    """
    if not folder.exists():  # what is refused leaves none behind
        _check_disk(folder, settings)
    out_folder.make_folder(folder, out_folder.RUN)
    with out_folder.hold_lock(folder):
        old = _OldRun(folder)
        _clear(folder, old)
        try:
            if restart:
                old.set_aside()
            _try_checkpoints(folder)
            _check_disk(folder, settings, freed=old.bytes)
            _begin(folder, settings, source, listen, start)
            yield old.listening(listen)
        finally:
            old.end()


class _OldRun:
    """What a run leaves in its folder, laid aside: renamed where it is.

    A mark stands from when all of it lies aside until it begins to come back: without the mark, whatever is in
    its place is the old run's, however far a kill let us come.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asides = (folder / out_folder.ASIDE, folder / CHECKPOINTS / out_folder.ASIDE)
        self._mark = folder / WORK_FOLDER / "replacing"
        self.bytes = 0

    @property
    def is_aside(self) -> bool:
        return any(aside.is_dir() for aside in self._asides)

    def set_aside(self) -> None:
        with storage_errors(self._folder):
            for path in _left_by_a_run(self._folder):
                self.bytes += _size(path)
                aside = path.parent / out_folder.ASIDE
                aside.mkdir(exist_ok=True)
                path.replace(aside / path.name)
                sync_folder(aside)
            self._mark.touch()
        sync_folder(self._mark.parent)

    def listening(self, listen: Listener) -> Listener:
        """The first checkpoint of the new run ends the old one."""

        def heard(event: Event) -> None:
            if isinstance(event, Saved):
                self.forget()
            listen(event)

        return heard

    def end(self) -> None:
        """Back to its place, unless the new run stands."""
        if self._mark.exists() and find_checkpoints(self._folder):
            self.forget()
            return
        with storage_errors(self._folder):
            for path in _left_by_a_run(self._folder) if self._mark.exists() else []:
                remove_path(path)
            self._mark.unlink(missing_ok=True)
            sync_folder(self._mark.parent)
            for aside in (one for one in self._asides if one.is_dir()):
                for path in aside.iterdir():
                    path.replace(aside.parent / path.name)
                aside.rmdir()

    def forget(self) -> None:
        with storage_errors(self._folder):
            for aside in self._asides:
                if aside.is_dir():
                    shutil.rmtree(aside)
            self._mark.unlink(missing_ok=True)


def _left_by_a_run(folder: Path) -> list[Path]:
    """What a run wrote there, and nothing that somebody else did."""
    named = [folder / name for name in (TOKENIZER, RUN_NAME, LOG_NAME, *OWN_NAMES)]
    there = [path for path in named if path.exists()]
    return [*there, *folder.glob("events.out.tfevents.*.lowtide"), *find_checkpoints(folder)]


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())


def _clear(folder: Path, old: _OldRun) -> None:
    """What a killed run was writing, removing or replacing."""
    with storage_errors(folder):
        (folder / WORK_FOLDER / out_folder.RUN.work_name).touch()
        for path in folder.iterdir():
            if _LEFTOVER.match(path.name):
                remove_path(path)
    remove_partial(folder)
    old.end()


def _try_checkpoints(folder: Path) -> None:
    """A place that takes no files is found out now, not at the first checkpoint."""
    place = folder / CHECKPOINTS
    with storage_errors(place):
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")


def _check_disk(folder: Path, settings: TrainSettings, *, freed: int = 0) -> None:
    """`freed` comes back when the first checkpoint stands."""
    there = len(find_checkpoints(folder))
    each = bytes_of_checkpoint(settings.shape, settings.step_kind)
    most = _CHECKPOINTS_AT_ONCE if settings.checkpoint_every else 1
    wanted = each * max(1, most - there)
    free = shutil.disk_usage(out_folder.nearest_folder(folder / CHECKPOINTS)).free
    if free + freed < wanted or free < each:
        raise DoesNotFitError(
            f"checkpoints need {format_bytes(wanted)} on the disk of {folder}, and {format_bytes(free)} "
            "are free",
            remedy="free space there, or pass an `--out` on a larger disk",
        )


def _begin(
    folder: Path, settings: TrainSettings, source: RunSource, listen: Listener, start: str | None
) -> None:
    """The record of the run, or a comparison with the one that stands."""
    if find_checkpoints(folder):
        _compare(folder, settings, source.stream)
        if settings.tokenizer is not None and not (folder / TOKENIZER).is_dir():  # named only now
            _copy_tokenizer(folder, source, listen)
        return
    # Nothing has been learnt by what an earlier start has written.
    _copy_tokenizer(folder, source, listen)
    write_run_record(
        RunRecord(
            folder=folder,
            settings=settings,
            stream=source.stream,
            tool_version=__version__,
            start=start,
        )
    )


def _compare(folder: Path, settings: TrainSettings, stream: JsonObject) -> None:
    """UsageError unless the checkpoints there, if any, are of the same run."""
    if not find_checkpoints(folder):
        return
    if not (folder / RUN_NAME).exists():
        raise UsageError(
            f"{folder} has checkpoints, and {RUN_NAME}, which says what they are of, is gone",
            remedy=f"put it back, remove {folder / CHECKPOINTS}, or pass another `--out`",
        )
    before = read_run_record(folder)
    changed = differences(before.settings, settings)
    changed += stream_differences(before.stream, stream)
    if changed:
        raise UsageError(
            f"{folder} holds another run: {'; '.join(changed)}",
            remedy="pass the settings as they were; `--init` with this folder and another `--out` to train its "
            "weights further; or `--restart` to begin again",
        )


def _copy_tokenizer(folder: Path, source: RunSource, listen: Listener) -> None:
    """So that the run can be sampled and exported without the data."""
    if (folder / TOKENIZER).is_dir():  # of a start that failed, perhaps for other data
        remove_path(folder / TOKENIZER)
    if source.tokenizer is None:
        text = "nothing names the tokenizer of this data, so nothing is sampled: `--tokenizer` names it"
        listen(Note(text=text))
        return
    from lowtide.tokenizer.tokenizer import Tokenizer
    from lowtide.tokenizer.vocabulary import load_vocabulary, name_end_of_text

    try:
        vocabulary = load_vocabulary(source.tokenizer)
    except LowtideError as reason:  # it lay somewhere else
        text = f"no tokenizer is copied into the run, so nothing is sampled: {reason.problem}"
        listen(Note(text=text, level="warning"))
        return
    if vocabulary.fingerprint == source.fingerprint:
        if source.eot_token is not None:
            vocabulary = name_end_of_text(vocabulary, source.eot_token)
        Tokenizer(vocabulary).save(folder / TOKENIZER)
        if source.chat_template is not None:
            write_atomically(folder / TOKENIZER / TEMPLATE_FILE, source.chat_template.encode())
