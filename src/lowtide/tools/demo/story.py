"""`lowtide demo`: one stage after the other, each recorded when it is done.

    text ─► tokenizer ─► tokens ─► proof ─► plan ─► model ─► sample, export ─► comparison ─► report

Run again, it resumes with the first stage that is not done.
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
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import LOCK_NAME, hold_lock, remove_killed_writes
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.publish import storage_errors
from lowtide.tools.demo.record import DemoFolder, StageRecord, has_record
from lowtide.tools.demo.run_stage import ALIVE_NAME, run_stage, wait_for_orphan
from lowtide.tools.demo.stages import DemoSettings, Stage, for_children, list_stages
from lowtide.units import MIB, format_bytes

LEAST_BYTES = 256 * MIB
"""With less, the box of the comparison would be too small for lowtide itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """A stage that is done; `before` if an earlier start did it."""

    stage: Stage
    record: StageRecord
    before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """All stages of the demo that are done, in order."""

    folder: Path
    settings: DemoSettings
    stages: tuple[StageDone, ...]
    seconds: float
    """Duration of this start."""


Listen: TypeAlias = Callable[[StageDone], None]
Look: TypeAlias = Callable[[Stage, float, str], None]
"""Called now and then while a stage runs, with the seconds it has taken and its command's last line."""


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
    """Run every stage that is not done yet; its command gets the `environment`.

    `listen` is called for each finished stage, and `look` now and then while one runs. `waiting` is called if a
    command of an earlier start, which was killed, still runs.
    """
    _check(folder, settings.memory_bytes)
    began = time.monotonic()
    with storage_errors(folder):
        (folder / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
    with hold_lock(folder):
        wait_for_orphan(folder / WORK_FOLDER, should_stop, waiting)
        remove_killed_writes(folder)
        demo = DemoFolder(folder)
        demo.save()
        done = []
        for one in _run_all(demo, list_stages(settings), environment, look, should_stop):
            listen(one)
            done.append(one)
    seconds = time.monotonic() - began
    return Demo(folder=folder, settings=settings, stages=tuple(done), seconds=seconds)


def _run_all(
    demo: DemoFolder,
    stages: list[Stage],
    environment: Mapping[str, str],
    look: Look,
    should_stop: ShouldStop,
) -> Iterator[StageDone]:
    given = for_children(environment, Path(lowtide.__file__).parent.parent)
    for stage in stages:
        record = demo.done(stage)
        if record is not None:
            yield StageDone(stage=stage, record=record, before=True)
            continue
        resumed = demo.begin(stage, _made_out_of(stage, stages))
        others = demo.files_of_others(stage)
        try:
            found = run_stage(
                stage,
                demo.path,
                demo.path / WORK_FOLDER,
                environment=given,
                should_stop=should_stop,
                look=partial(look, stage),
            )
        except LowtideError:
            demo.leave(stage, others)
            raise
        record = StageRecord(
            command=stage.arguments,
            seconds=round(found.seconds, 3),
            peak_private_bytes=found.peak_private_bytes,
            went_on=resumed,
            facts=found.facts,
        )
        stored = demo.leave(stage, others, record)
        yield StageDone(stage=stage, record=stored, before=False)


def _made_out_of(stage: Stage, stages: list[Stage]) -> list[Stage]:
    """The stages that read what the stage makes, directly or not."""
    keys = {stage.key}
    found = []
    for later in stages:
        if keys & set(later.reads):
            keys.add(later.key)
            found.append(later)
    return found


def clean_demo(folder: Path, *, waiting: Callable[[], None] = lambda: None) -> list[Path]:
    """Remove all that the demo made, and the folder if nothing else is in it; return what was removed."""
    with storage_errors(folder):
        if not has_record(folder):
            raise UsageError(
                f"{folder} holds no demo",
                remedy="pass the folder that `lowtide demo` wrote as `--out`; nothing was removed",
            )
        (folder / WORK_FOLDER).mkdir(exist_ok=True)
        with hold_lock(folder):
            wait_for_orphan(folder / WORK_FOLDER, never_stop, waiting)
            everything = replace(usual_settings(0), with_torch=True)
            removed = DemoFolder(folder).clean(list_stages(everything))
        with suppress(OSError):  # somebody else's things are in it
            folder.resolve().rmdir()
    return removed


def _check(folder: Path, memory_bytes: int) -> None:
    """Refuse settings that make no sense, before anything is written."""
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
    """Whether this is an empty work folder, as left by a demo that was killed as it began."""
    if path.name != WORK_FOLDER or path.is_symlink() or not path.is_dir():
        return False
    return {one.name for one in path.iterdir()} <= {LOCK_NAME, ALIVE_NAME}
