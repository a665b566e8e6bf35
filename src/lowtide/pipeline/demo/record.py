"""What the demo remembers between two starts: which stages are done, by which command, and what they took.

Only what stands in here is the demo's to remove.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

import lowtide
from lowtide.errors import UsageError
from lowtide.pipeline.demo.stages import Key, Stage
from lowtide.storage.decode_json import InnerPath, decode_json
from lowtide.storage.publish import storage_errors, write_atomically

RECORD_NAME = "lowtide-demo.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage: begun while it has no facts, done when it has."""

    command: tuple[str, ...]
    """Empty for one that must be made anew."""
    seconds: float = 0.0
    peak_private_bytes: int = 0
    went_on: bool = False
    """An earlier start had begun it: time and peak are those of the last."""
    facts: dict[str, Any] | None = None
    made: dict[InnerPath, int] | None = None
    """Files and sizes as the stage left them, done or stopped; None before that, and of one that was killed."""


@dataclass(slots=True, kw_only=True)
class DemoRecord:
    """All stages that were ever begun in a folder."""

    schema_version: Literal[1]
    lowtide: str
    stages: dict[Key, StageRecord]

    def done(self, stage: Stage) -> StageRecord | None:
        """The stage's record, if this very command came to its end."""
        found = self.stages.get(stage.key)
        is_done = found is not None and found.facts is not None
        return found if is_done and self._is_of(stage) else None

    def was_begun(self, stage: Stage) -> bool:
        """Whether this very command was under way when a start ended."""
        found = self.stages.get(stage.key)
        return found is not None and found.facts is None and self._is_of(stage)

    def begin(self, stage: Stage) -> None:
        """The stage is under way."""
        self.stages[stage.key] = StageRecord(command=stage.arguments)

    def leave(self, stage: Stage, made: dict[str, int]) -> None:
        """The stage was stopped or failed, and can go on."""
        self.stages[stage.key] = replace(self.stages[stage.key], made=made)

    def forget(self, stage: Stage) -> None:
        """The stage must be made anew, and nothing of it is left."""
        self.stages[stage.key] = StageRecord(command=(), made={})

    def _is_of(self, stage: Stage) -> bool:
        return self.stages[stage.key].command == stage.arguments


def has_record(folder: Path) -> bool:
    """Whether a demo was begun in the folder."""
    return (folder / RECORD_NAME).exists()


def read_record(folder: Path) -> DemoRecord:
    """An empty one where there is none; of another release, one in which nothing is done."""
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


def write_record(folder: Path, record: DemoRecord) -> None:
    """Whole and durable, or as it was."""
    write_atomically(folder / RECORD_NAME, msgspec.json.format(msgspec.json.encode(record)))


def as_plain(record: StageRecord) -> Mapping[str, object]:
    """For `--json`."""
    found: Mapping[str, object] = msgspec.to_builtins(record)
    return found
