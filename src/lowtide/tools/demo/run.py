"""`lowtide demo`: its commands, one after the other, each in a process of its own so that its peak is its own.

    text ─► tokenizer ─► tokens ─► verify ─► plan ─► model ─► sample, export ─► comparison ─► report

Nothing is remembered from one start to the next: each command finds out what is done and resumes the rest. A
mark says that the folder is a demo's. Only there does `--clean` remove files: those that the commands write.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import lowtide
from lowtide.errors import (
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    StoppedError,
    UsageError,
    VerificationError,
)
from lowtide.memory.meter import PeakMeter
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import LOCK_NAME, hold_lock, remove_killed_writes
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.publish import storage_errors
from lowtide.tools.demo.stages import DemoSettings, Facts, Stage, list_stages
from lowtide.tools.end_with_parent import ended_with_parent
from lowtide.units import MIB, format_bytes

LEAST_BYTES = 256 * MIB
"""With less, the box of the comparison would be too small for lowtide itself."""
MARK = ".lowtide-demo"
"""An empty file that says the folder was made by a demo."""
_LOOK_SECONDS = 0.1
_LINE_BYTES = 400
_SAMPLE_SECONDS = 0.05
_SLOW_SECONDS = 0.2
"""Interval for a process with torch: reading its memory takes 10 ms of a core."""
_STOP_SECONDS = 30.0
"""How long a command that was asked to stop may take: training saves a checkpoint first."""
_ERRORS: dict[int, type[LowtideError]] = {
    error.exit_code: error
    for error in (UsageError, DoesNotFitError, VerificationError, StoppedError, InterruptedRun)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """A stage that is done, and what it took in this start."""

    stage: Stage
    seconds: float
    peak_private_bytes: int
    resumed: bool
    """Whether it resumed what an earlier start had left unfinished."""
    facts: Facts

    @property
    def already_done(self) -> bool:
        """Whether an earlier start did it, so that its command had nothing to do."""
        return bool(self.facts.get("already_done"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """All stages of a demo, in order; without torch, some are left out."""

    folder: Path
    settings: DemoSettings
    stages: tuple[StageDone, ...]
    left_out: tuple[Stage, ...]
    seconds: float
    """Duration of this start."""


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
    listen: Callable[[StageDone], None] = lambda _done: None,
    look: Look = lambda _stage, _seconds, _line: None,
    should_stop: ShouldStop = never_stop,
) -> Demo:
    """Run every stage; its command gets the `environment`. `listen` is called for each that is done."""
    if settings.memory_bytes < LEAST_BYTES:
        raise DoesNotFitError(
            f"the demo does not fit in {format_bytes(settings.memory_bytes)}",
            remedy=f"pass `--memory {LEAST_BYTES // MIB}MiB` or more",
        )
    began = time.monotonic()
    with storage_errors(folder):
        _check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
        (folder / WORK_FOLDER).mkdir(exist_ok=True)
    done: list[StageDone] = []
    with hold_lock(folder):
        remove_killed_writes(folder)
        left_out = []
        for stage in list_stages(settings):
            if stage.needs_torch and not settings.with_torch:
                left_out.append(stage)
            elif settings.compares or stage.key != "compare":
                done.append(_run_stage(stage, folder, environment, look, should_stop))
                listen(done[-1])
    return Demo(
        folder=folder,
        settings=settings,
        stages=tuple(done),
        left_out=tuple(left_out),
        seconds=time.monotonic() - began,
    )


def clean_demo(folder: Path) -> list[Path]:
    """Remove what the demo made, and the folder if nothing else is in it; return what is gone from it.

    Only files with the names that the demo's commands write are removed, and no link is followed.
    """
    with storage_errors(folder):
        if not _is_marked(folder):
            raise UsageError(
                f"{folder} holds no demo",
                remedy="pass the folder that `lowtide demo` wrote as `--out`; nothing was removed",
            )
        _check_folder(folder)
        (folder / WORK_FOLDER).mkdir(exist_ok=True)
        with hold_lock(folder):
            remove_killed_writes(folder)
            before = set(folder.iterdir())
            _remove_outputs(folder)
            gone = before - set(folder.iterdir())
        for stage in list_stages(usual_settings(0)):
            for ending in ("log", "json"):
                (folder / WORK_FOLDER / f"{stage.key}.{ending}").unlink(missing_ok=True)
        (folder / WORK_FOLDER / LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's things are in it
            (folder / WORK_FOLDER).rmdir()
        (folder / MARK).unlink()  # at the end: until then, `--clean` can be repeated
        with suppress(OSError):  # somebody else's things are in it
            folder.resolve().rmdir()
    return sorted(gone)


def _remove_outputs(folder: Path) -> None:
    """Remove the files with names that the commands write, and folders of such files that are empty."""
    files = {PurePosixPath("/", pattern) for pattern in _patterns()}
    folders = {parent for file in files for parent in file.parents}
    for parent, below, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in (*names, *below)):
            place = PurePosixPath("/", path.relative_to(folder).as_posix())
            patterns = folders if path.is_dir() else files
            if path.is_symlink() or not any(place.match(str(one)) for one in patterns):
                continue
            if patterns is files:
                path.unlink()
            else:
                with suppress(OSError):  # it holds something else
                    path.rmdir()


def _patterns() -> list[str]:
    """What all stages write, also those that are left out here."""
    return [pattern for stage in list_stages(usual_settings(0)) for pattern in stage.writes]


def _is_marked(folder: Path) -> bool:
    return (folder / MARK).is_file()


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds other things, and a link in the place of an output: it may lead anywhere."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", remedy="pass a new folder as `--out`")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and not _is_marked(folder):
        raise UsageError(
            f"{folder} already holds something else, such as {min(names)}",
            remedy="pass a new or empty folder as `--out`",
        )
    own = {MARK, WORK_FOLDER, *(pattern.split("/")[0] for pattern in _patterns())}
    links = [folder / name for name in own if (folder / name).is_symlink()]
    if links:
        raise UsageError(
            f"{min(links)} is a link, and the demo follows none",
            remedy="move it away, and run the same command again",
        )


def _run_stage(
    stage: Stage,
    folder: Path,
    environment: Mapping[str, str],
    look: Look,
    should_stop: ShouldStop,
) -> StageDone:
    """Run its command in the folder; what it prints is kept there. Raises LowtideError if it fails."""
    began = time.monotonic()
    work = folder / WORK_FOLDER
    log, answer = work / f"{stage.key}.log", work / f"{stage.key}.json"
    unfinished = bool(stage.resumes_in) and (folder / stage.resumes_in / WORK_FOLDER).exists()
    reason = None
    with storage_errors(log):
        for path in (log, answer):
            path.unlink(missing_ok=True)  # a link there would be written through
    with storage_errors(log), log.open("xb") as messages, answer.open("xb") as output:
        child = subprocess.Popen(
            ended_with_parent(stage.command),
            cwd=folder,
            env=_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages,
        )
        interval = _SLOW_SECONDS if stage.needs_torch else _SAMPLE_SECONDS
        with PeakMeter(child.pid, interval_seconds=interval) as meter:
            try:
                while child.poll() is None and reason is None:
                    look(stage, time.monotonic() - began, _last_line(log))
                    time.sleep(_LOOK_SECONDS)
                    reason = should_stop()
                if child.poll() is None:
                    child.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(_STOP_SECONDS)
            finally:  # nothing is left running, whatever happened here
                if child.poll() is None:
                    child.kill()
                    child.wait()
    if reason is not None:
        raise (InterruptedRun if reason == "interrupted" else StoppedError)(
            f"stopped during {stage.title!r}",
            remedy="run the same command again: it resumes with this stage",
        )
    if child.returncode:
        raise _failure(stage, child.returncode, folder)
    facts = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    return StageDone(
        stage=stage,
        seconds=time.monotonic() - began,
        peak_private_bytes=meter.peak.private_bytes,
        resumed=unfinished and not facts["already_done"],
        facts=facts,
    )


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the commands: one thread, for the same losses on any number of cores.

    If lowtide is not installed, the commands find it by `PYTHONPATH`, since they run in another folder.
    """
    package, given = Path(lowtide.__file__).parent.parent, {**environment, "OMP_NUM_THREADS": "1"}
    if package.name not in ("site-packages", "dist-packages"):
        paths = [str(package), *filter(None, [environment.get("PYTHONPATH")])]
        given["PYTHONPATH"] = os.pathsep.join(paths)
    return given


def _last_line(log: Path) -> str:
    """The last line that the command printed for people; empty before the first."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LINE_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return lines[-1].strip() if lines else ""


def _failure(stage: Stage, code: int, folder: Path) -> LowtideError:
    """The command's own error and hint, or how it ended if it printed none."""
    log = folder / WORK_FOLDER / f"{stage.key}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    problem = next((line[7:] for line in reversed(lines) if line.startswith("error: ")), None)
    remedy = next((line[6:] for line in reversed(lines) if line.startswith("hint: ")), "")
    if "--restart" in remedy:  # the demo has no such option
        remedy = "run `lowtide demo --clean` with the same `--out`, and then the same command again"
    ending = f"exit code {code}"
    if code < 0:
        ending = f"signal {-code} killed it; `lowtide why --last` may know more"
    return _ERRORS.get(code, LowtideError)(
        f"the stage {stage.title!r} failed: {problem or ending}",
        remedy=remedy or f"run `lowtide {stage.call}` in {folder}, which says more",
    )
