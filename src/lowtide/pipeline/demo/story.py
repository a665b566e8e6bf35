"""The story of `lowtide demo`: one stage after the other, each remembered when it is done.

    text ─► tokenizer ─► tokens ─► proof ─► plan ─► model ─► sample, export ─► comparison ─► report

Run again, it goes on with the first stage that is not done.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import lowtide
from lowtide.errors import DoesNotFitError, LowtideError, UsageError
from lowtide.pipeline.demo.made import is_as_left, list_made, remove_made
from lowtide.pipeline.demo.record import (
    RECORD_NAME,
    DemoRecord,
    StageRecord,
    has_record,
    read_record,
    write_record,
)
from lowtide.pipeline.demo.run_stage import ALIVE_NAME, run_stage, wait_for_orphan
from lowtide.pipeline.demo.stages import DemoSettings, Stage, for_children, list_stages
from lowtide.pipeline.folder import LOCK_NAME, hold_lock, remove_killed_writes
from lowtide.pipeline.watch_run import ShouldStop, never_stop
from lowtide.shards.layout import WORK_FOLDER
from lowtide.storage.publish import remove_path, storage_errors
from lowtide.units import MIB, format_bytes

LEAST_BYTES = 256 * MIB
"""Below, the box of the comparison would be too small for lowtide itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """A stage that is done, now or in an earlier start."""

    stage: Stage
    record: StageRecord
    before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """All stages that were run, now or before."""

    folder: Path
    settings: DemoSettings
    stages: tuple[StageDone, ...]
    seconds: float
    """Of this start."""


Listen: TypeAlias = Callable[[StageDone], None]
Look: TypeAlias = Callable[[Stage, float, str], None]
"""Told now and then while a stage runs: the seconds it has taken, and what its command said last."""


def usual_settings(memory_bytes: int) -> DemoSettings:
    """The standard library of this Python, and a model if torch is here."""
    return DemoSettings(
        memory_bytes=memory_bytes,
        library=Path(sysconfig.get_path("stdlib")),
        with_torch=all(importlib.util.find_spec(name) for name in ("torch", "safetensors")),
    )


def run_demo(
    folder: Path,
    settings: DemoSettings,
    *,
    environment: Mapping[str, str],
    listen: Listen = lambda _done: None,
    look: Look = lambda _stage, _seconds, _said: None,
    should_stop: ShouldStop = never_stop,
    waiting: Callable[[], None] = lambda: None,
) -> Demo:
    """Run what is not done yet. `environment` is what the commands are given.

    `waiting` is told when a command of an earlier start, which was killed, still runs.
    """
    _check(folder, settings.memory_bytes)
    began = time.monotonic()
    with storage_errors(folder):
        (folder / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
    with hold_lock(folder):
        wait_for_orphan(folder / WORK_FOLDER, should_stop, waiting)
        remove_killed_writes(folder)
        record = read_record(folder)
        write_record(folder, record)  # from here on the folder is known as a demo's
        done = []
        stages = list_stages(settings)
        for one in _run_all(folder, record, stages, environment, look, should_stop):
            listen(one)
            done.append(one)
    seconds = time.monotonic() - began
    return Demo(folder=folder, settings=settings, stages=tuple(done), seconds=seconds)


def _run_all(
    folder: Path,
    record: DemoRecord,
    stages: list[Stage],
    environment: Mapping[str, str],
    look: Look,
    should_stop: ShouldStop,
) -> Iterator[StageDone]:
    given = for_children(environment, Path(lowtide.__file__).parent.parent)
    for stage in stages:
        known = record.done(stage)
        if known and is_as_left(folder, known.made or {}):
            yield StageDone(stage=stage, record=known, before=True)
            continue
        went_on = _begin(folder, record, stage, stages)
        others = _files_of_others(folder, record, stage)
        try:
            found = run_stage(
                stage,
                folder,
                folder / WORK_FOLDER,
                environment=given,
                should_stop=should_stop,
                look=partial(look, stage),
            )
        except LowtideError:
            record.leave(stage, _made_now(folder, stage, others))
            write_record(folder, record)
            raise
        record.stages[stage.key] = StageRecord(
            command=stage.arguments,
            seconds=round(found.seconds, 3),
            peak_private_bytes=found.peak_private_bytes,
            went_on=went_on,
            facts=found.facts,
            made=_made_now(folder, stage, others),
        )
        write_record(folder, record)
        yield StageDone(stage=stage, record=record.stages[stage.key], before=False)


def _begin(folder: Path, record: DemoRecord, stage: Stage, stages: list[Stage]) -> bool:
    """Whether the stage goes on with what an earlier start left; else that is removed, and what came of it."""
    goes_on = stage.goes_on and record.was_begun(stage)
    with storage_errors(folder):
        for old in reversed([stage, *_readers(stage, stages)]):
            if old.key in record.stages and not (old is stage and goes_on):
                remove_made(folder, _made_by(folder, old, record))
                record.forget(old)
        left = [name for name in stage.makes if not goes_on and os.path.lexists(folder / name)]
    write_record(folder, record)
    if left:
        raise UsageError(
            f"{folder / left[0]} holds what the demo did not make",
            remedy="move it away, or pass another `--out`",
        )
    if not goes_on:
        record.begin(stage)
        write_record(folder, record)
    return goes_on


def _files_of_others(folder: Path, record: DemoRecord, stage: Stage) -> set[str]:
    """What lies in the outputs of a stage that goes on, and was not there when it was left."""
    made = record.stages[stage.key].made
    return set() if made is None else list_made(folder, stage.makes).keys() - made.keys()


def _made_now(folder: Path, stage: Stage, others: set[str]) -> dict[str, int]:
    found = list_made(folder, stage.makes)
    return {name: size for name, size in found.items() if name not in others}


def _readers(stage: Stage, stages: list[Stage]) -> list[Stage]:
    """The stages that are made out of it, directly or not."""
    old = {stage.key}
    found = []
    for later in stages:
        if old & set(later.reads):
            old.add(later.key)
            found.append(later)
    return found


def _made_by(folder: Path, stage: Stage, record: DemoRecord) -> Mapping[str, int]:
    """What a stage left; all that is there of one that was killed."""
    made = record.stages[stage.key].made
    return list_made(folder, stage.makes) if made is None else made


def clean_demo(folder: Path, *, waiting: Callable[[], None] = lambda: None) -> list[Path]:
    """What was removed: all that the demo made, and the folder if nothing else is in it."""
    with storage_errors(folder):
        if not has_record(folder):
            raise UsageError(
                f"{folder} holds no demo",
                remedy="pass the folder that `lowtide demo` wrote as `--out`; nothing was removed",
            )
        (folder / WORK_FOLDER).mkdir(exist_ok=True)
        with hold_lock(folder):
            wait_for_orphan(folder / WORK_FOLDER, never_stop, waiting)
            removed = _remove_all(folder, read_record(folder))
        with suppress(OSError):  # somebody else's things are in it
            folder.resolve().rmdir()
    return removed


def _remove_all(folder: Path, record: DemoRecord) -> list[Path]:
    """All files that the demo made; last what says that the folder is a demo's."""
    stages = list_stages(replace(usual_settings(0), with_torch=True))
    begun = [stage for stage in stages if stage.key in record.stages]
    before = {path.name for path in folder.iterdir()}
    for stage in reversed(begun):
        remove_made(folder, _made_by(folder, stage, record))
    remove_killed_writes(folder)
    (folder / RECORD_NAME).unlink()
    remove_path(folder / WORK_FOLDER)
    gone = before - {path.name for path in folder.iterdir()} - {RECORD_NAME, WORK_FOLDER}
    return [folder / name for name in sorted(gone)]


def _check(folder: Path, memory_bytes: int) -> None:
    """Refuse what cannot be meant, before anything is written."""
    if memory_bytes < LEAST_BYTES:
        raise DoesNotFitError(
            f"the demo does not fit in {format_bytes(memory_bytes)}",
            remedy=f"pass `--memory {LEAST_BYTES // MIB}MiB` or more",
        )
    with storage_errors(folder, doing="read"):
        if os.path.lexists(folder) and not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", remedy="pass a new folder as `--out`")
        if not folder.exists() or has_record(folder):
            return
        other = [path.name for path in folder.iterdir() if not _is_bare_lock(path)]
    if other:
        raise UsageError(
            f"{folder} already holds something else, such as {min(other)}",
            remedy="pass a new or empty folder as `--out`",
        )


def _is_bare_lock(path: Path) -> bool:
    """A work folder with nothing to lose: what a demo leaves that was killed as it began."""
    if path.name != WORK_FOLDER or path.is_symlink() or not path.is_dir():
        return False
    return {one.name for one in path.iterdir()} <= {LOCK_NAME, ALIVE_NAME}
