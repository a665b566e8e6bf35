"""A run that is begun again replaces the old one when it has a checkpoint of its own.

Until then the old one lies aside, and comes back should the new one fail: what is refused costs nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lowtide.events import Event, Listener, Saved
from lowtide.journal import LOG_NAME
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import ASIDE
from lowtide.stages.run_source import OWN_NAMES
from lowtide.storage.publish import remove_path, storage_errors, sync_folder
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.run_folder import CHECKPOINTS, RUN_NAME, TOKENIZER


class OldRun:
    """What a run left in its folder, laid aside: renamed where it is.

    A mark stands from when all of it lies aside until it begins to come back: without the mark, whatever is in
    its place is the old run's, however far a kill let us come.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asides = (folder / ASIDE, folder / CHECKPOINTS / ASIDE)
        self._mark = folder / WORK_FOLDER / "replacing"
        self.bytes = 0
        """Size of what was laid aside."""

    @property
    def is_aside(self) -> bool:
        """Whether a run lies aside."""
        return any(aside.is_dir() for aside in self._asides)

    def set_aside(self) -> None:
        """Rename all that a run wrote."""
        with storage_errors(self._folder):
            for path in _written_by_a_run(self._folder):
                files = [one for one in (path, *path.rglob("*")) if one.is_file()]
                self.bytes += sum(one.stat().st_size for one in files)
                aside = path.parent / ASIDE
                aside.mkdir(exist_ok=True)
                path.replace(aside / path.name)
                sync_folder(aside)
            self._mark.touch()
        sync_folder(self._mark.parent)

    def removed_by(self, listen: Listener) -> Listener:
        """A listener that removes the old run when the new one has saved its first checkpoint."""

        def follow(event: Event) -> None:
            if isinstance(event, Saved):
                self._remove()
            listen(event)

        return follow

    def settle(self) -> None:
        """Bring the old run back to its place, or remove it if the new one stands."""
        if self._mark.exists() and find_checkpoints(self._folder):
            self._remove()
            return
        with storage_errors(self._folder):
            for path in _written_by_a_run(self._folder) if self._mark.exists() else []:
                remove_path(path)
            self._mark.unlink(missing_ok=True)
            sync_folder(self._mark.parent)
            for aside in (one for one in self._asides if one.is_dir()):
                for path in aside.iterdir():
                    path.replace(aside.parent / path.name)
                aside.rmdir()

    def _remove(self) -> None:
        with storage_errors(self._folder):
            for aside in self._asides:
                if aside.is_dir():
                    shutil.rmtree(aside)
            self._mark.unlink(missing_ok=True)


def _written_by_a_run(folder: Path) -> list[Path]:
    """What a run wrote there, and nothing that somebody else did."""
    named = [folder / name for name in (TOKENIZER, RUN_NAME, LOG_NAME, *OWN_NAMES)]
    there = [path for path in named if path.exists()]
    return [*there, *folder.glob("events.out.tfevents.*.lowtide"), *find_checkpoints(folder)]
