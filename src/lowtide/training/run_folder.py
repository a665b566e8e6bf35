"""The folder of a run: what it was started with, and where things lie in it. No torch here.

lowtide-run.json  tokenizer/  checkpoints/step-00001000/  log.jsonl  events.out.tfevents.…
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowtide.dataset.find_tokens import RUN_RECORD
from lowtide.errors import UsageError
from lowtide.model.shape import ModelShape
from lowtide.storage.sealed_json import JsonObject, read_sealed, write_sealed
from lowtide.training.settings import TrainSettings, settings_of

RUN_NAME, TOKENIZER, CHECKPOINTS = RUN_RECORD, "tokenizer", "checkpoints"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run was started with."""

    folder: Path
    settings: TrainSettings
    stream: JsonObject
    """`TokenDataset.identity` of the training data."""
    tool_version: str
    start: str | None = None
    """Digest of the weights that it started from; None where they were drawn."""

    @property
    def shape(self) -> ModelShape:
        return self.settings.shape

    @property
    def tokenizer_path(self) -> Path | None:
        """The tokenizer's copy; None where the data names none."""
        path = self.folder / TOKENIZER
        return path if path.is_dir() else None


def write_run_record(record: RunRecord) -> None:
    """Written once, before the first step."""
    payload: JsonObject = {
        "format_version": _VERSION,
        "tool_version": record.tool_version,
        "settings": record.settings.as_record(),
        "stream": record.stream,
    }
    if record.start is not None:
        payload["start"] = record.start
    write_sealed(record.folder / RUN_NAME, payload)


def read_run_record(run: Path) -> RunRecord:
    """UsageError where there is no run."""
    if not (run / RUN_NAME).exists():
        raise UsageError(
            f"{run} is not a folder of a training run",
            remedy="name the folder that was the `--out` of `lowtide train`",
        )
    payload = read_sealed(run / RUN_NAME)
    settings, stream = payload.get("settings"), payload.get("stream")
    if payload.get("format_version") != _VERSION or not isinstance(settings, dict):
        raise UsageError(
            f"{run / RUN_NAME} was written by another version of lowtide",
            remedy="open the run with the version that made it",
        )
    return RunRecord(
        folder=run,
        settings=settings_of(settings),
        stream=dict(stream) if isinstance(stream, dict) else {},
        tool_version=str(payload.get("tool_version")),
        start=start if isinstance(start := payload.get("start"), str) else None,
    )
