"""The folder of a demo: which stages are done, by which command, what they took, and which files they made.

Only a file that is in this record, and still has its recorded size, is the demo's to remove.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

import lowtide
from lowtide.errors import UsageError
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import remove_killed_writes
from lowtide.storage.decode_json import InnerPath, decode_json
from lowtide.storage.publish import remove_path, storage_errors, write_atomically
from lowtide.tools.demo.stages import Key, Stage

RECORD_NAME = "lowtide-demo.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage: begun while it has no facts, done when it has."""

    command: tuple[str, ...]
    """Empty for a stage that must be made again."""
    seconds: float = 0.0
    peak_private_bytes: int = 0
    went_on: bool = False
    """Whether it resumed what an earlier start left: time and peak are those of the last start."""
    facts: dict[str, Any] | None = None
    """What its command printed with `--json`."""
    made: dict[InnerPath, int] | None = None
    """Files and sizes as the stage left them, done or stopped. None until then, and if it was killed."""


@dataclass(slots=True, kw_only=True)
class DemoRecord:
    """The record as it is stored."""

    schema_version: Literal[1]
    lowtide: str
    stages: dict[Key, StageRecord]


class DemoFolder:
    """The folder of a demo with its record. Whoever holds its lock may change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record = _read_record(path)

    def save(self) -> None:
        """Write the record, whole and durable. From the first time on, the folder is known as a demo's."""
        content = msgspec.json.format(msgspec.json.encode(self._record))
        write_atomically(self.path / RECORD_NAME, content)

    def done(self, stage: Stage) -> StageRecord | None:
        """The stage's record, if this very command came to its end and its files are as it left them."""
        known = self._record.stages.get(stage.key)
        if known is None or known.facts is None or known.command != stage.arguments:
            return None
        made = known.made or {}
        return known if all(self._size(name) == size for name, size in made.items()) else None

    def begin(self, stage: Stage, later: Sequence[Stage]) -> bool:
        """Whether the stage resumes; if not, what it made is removed. So is what `later` stages made out of it.

        Raises UsageError if files that the demo did not make are in the way.
        """
        stages = self._record.stages
        known = stages.get(stage.key)
        was_begun = known is not None and known.facts is None and known.command == stage.arguments
        resumes = stage.resumes and was_begun
        with storage_errors(self.path):
            for old in reversed(later if resumes else [stage, *later]):
                self._remove(old)
            left = [name for name in stage.makes if os.path.lexists(self.path / name)]
        if not resumes and not left:
            stages[stage.key] = StageRecord(command=stage.arguments)
        self.save()
        if left and not resumes:
            raise UsageError(
                f"{self.path / left[0]} holds what the demo did not make",
                remedy="move it away, or pass another `--out`",
            )
        return resumes

    def files_of_others(self, stage: Stage) -> set[str]:
        """Files in the outputs of a stage that resumes, which were not there when it was stopped."""
        made = self._record.stages[stage.key].made
        return set() if made is None else self._list(stage.makes).keys() - made.keys()

    def leave(
        self, stage: Stage, others: set[str], record: StageRecord | None = None
    ) -> StageRecord:
        """Store the files that a stage has made, together with the `record` of a stage that is done."""
        found = self._list(stage.makes)
        made = {name: size for name, size in found.items() if name not in others}
        stored = replace(record or self._record.stages[stage.key], made=made)
        self._record.stages[stage.key] = stored
        self.save()
        return stored

    def clean(self, stages: Sequence[Stage]) -> list[Path]:
        """Remove every file that the demo made, and last the record; return what is gone from the folder."""
        before = {path.name for path in self.path.iterdir()}
        for stage in reversed(stages):
            self._remove(stage)
        remove_killed_writes(self.path)
        (self.path / RECORD_NAME).unlink()
        remove_path(self.path / WORK_FOLDER)
        gone = before - {path.name for path in self.path.iterdir()} - {RECORD_NAME, WORK_FOLDER}
        return [self.path / name for name in sorted(gone)]

    def _remove(self, stage: Stage) -> None:
        """Remove a stage's files that are as it left them; of a killed stage, all in its own outputs."""
        known = self._record.stages.pop(stage.key, None)
        if known is None:
            return
        made = self._list(stage.makes) if known.made is None else known.made
        for name, size in made.items():
            if self._size(name) == size:
                (self.path / name).unlink()
        tops = {Path(name).parts[0] for name in made if len(Path(name).parts) > 1}
        for top in tops - {"..", os.sep}:
            _remove_empty(self.path / top)

    def _list(self, names: Sequence[str]) -> dict[str, int]:
        """Every file below these paths, with its size. Links belong to nobody."""
        return {
            path.relative_to(self.path).as_posix(): path.stat().st_size
            for name in names
            for path in _files_below(self.path / name)
        }

    def _size(self, name: str) -> int | None:
        """Size of a file; None if it is not there, or lies outside the folder by its name or behind a link."""
        path = self.path / name
        try:
            lies_inside = path.resolve().relative_to(self.path.resolve()) == Path(name)
            return path.stat().st_size if lies_inside else None
        except (OSError, ValueError):
            return None


def has_record(folder: Path) -> bool:
    """Whether a demo was begun in the folder."""
    return (folder / RECORD_NAME).exists()


def _read_record(folder: Path) -> DemoRecord:
    """The stored record; an empty one if there is none. In one of another release no stage is done."""
    path = folder / RECORD_NAME
    with storage_errors(path, doing="read"):
        if not path.exists():
            return DemoRecord(schema_version=1, lowtide=lowtide.__version__, stages={})
        content = path.read_bytes()
    try:
        found = decode_json(content, DemoRecord)
    except msgspec.DecodeError as cause:
        raise UsageError(
            f"{path} cannot be read as the record of a demo: {cause}",
            remedy=f"remove {folder} yourself, or pass another `--out`",
        ) from cause
    if found.lowtide != lowtide.__version__:
        found.lowtide = lowtide.__version__
        found.stages = {
            key: replace(stage, command=(), facts=None) for key, stage in found.stages.items()
        }
    return found


def as_plain(record: StageRecord) -> Mapping[str, object]:
    """The record as JSON values."""
    found: Mapping[str, object] = msgspec.to_builtins(record)
    return found


def _remove_empty(folder: Path) -> None:
    """Remove the folder and those in it, as far as they hold no file."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        _remove_empty(path)
    with suppress(OSError):  # something is in it
        folder.rmdir()


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        return
    if path.is_file():
        yield path
    for parent, _, names in os.walk(path):
        for name in names:
            found = Path(parent, name)
            if not found.is_symlink():
                yield found
