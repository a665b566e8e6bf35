"""`lowtide compare`: every way (a baseline or lowtide) alone in a box with a sample of the user's own text.

    sample ─► each way in a box: all of it, then a quarter (or less, if it died) ─► a line to the full input

Nothing is left behind, whether it finishes or is interrupted, a way hangs or the disk is full.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import lowtide
from lowtide.errors import DoesNotFitError, StorageError, UsageError
from lowtide.guard.box import open_box
from lowtide.guard.doctor.check_disk import IN_MEMORY, file_system
from lowtide.guard.process_folders import process_folder_name, remove_orphan_folders
from lowtide.memory.limits import MemoryLimit
from lowtide.settings import InputFormat
from lowtide.source.find_inputs import describe_skipped, survey_inputs
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.tokenizer.vocabulary import load_vocabulary
from lowtide.tools.compare.growth import Growth, SizedRun, fit_growth
from lowtide.tools.compare.run_boxed import (
    Boxed,
    BoxedJob,
    Moment,
    ProgressFile,
    run_boxed,
)
from lowtide.tools.compare.sample import PARTS, TextSample, take_sample
from lowtide.tools.compare.stops import refuse_to_go_on
from lowtide.tools.compare.ways import Task, Way, choose_ways, write_tokenizer
from lowtide.units import MIB, format_bytes, format_seconds

Tell: TypeAlias = Callable[[str, bool], None]
"""Prints a line for people; True if another line will soon replace it."""

_PREFIX = "lowtide-compare-"
_LEAST_LIMIT_BYTES = 64 * MIB
_ENOUGH_LIMIT_BYTES = 512 * MIB
"""In a box of this size every way finishes a small sample."""
_LEAST_SAMPLE_BYTES = 100_000
_LONGEST_PLACE = 107 - len(
    "/lowtide-compare-4194304-12345678/nanogpt-16/tmp/pymp-12345678/listener-12345678"
)
"""Characters that a socket's path (107 bytes on Linux) leaves for the folder that ours is in."""
_DISK_TIMES = 10
"""Disk space in sizes of the sample: datasets writes the text again as Arrow, 8 bytes a token, and a copy."""
_AFTER_FINISH, _AFTER_DEATH, _AFTER_TWO_DEATHS = (4,), (4, 2), (1,)
"""Parts of the sample, in sixteenths, to run after the whole of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What to compare, and the size of the box."""

    sample_bytes: int = 200_000_000
    limit_bytes: int = 1 << 30
    ways: tuple[str, ...] | None = None
    tokenizer: str = "gpt2"
    column: str = "text"
    separator: str = "file"
    input_format: InputFormat | None = None
    timeout_seconds: float = 1800.0
    """Limit for each run of a way."""
    work: Path | None = None
    """Where the temporary folder is made; None for the system's own place."""
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """All runs of one way, the first on the whole sample."""

    way: Way
    runs: tuple[SizedRun, ...]
    growth: Growth | None
    budget_bytes: int | None
    """The `--memory` that lowtide was given; None for the others, which have no budget."""

    @property
    def whole(self) -> Boxed:
        """The run on the whole sample."""
        return self.runs[0].found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison."""

    limit_bytes: int
    how: str
    """What enforced the limit: "cgroup v1", "cgroup v2", or "sampled"."""
    sample: TextSample
    results: tuple[WayResult, ...]
    left_out: tuple[Way, ...]
    """Ways whose packages are not installed."""
    kept: Path | None

    def __repr__(self) -> str:
        limit, size = format_bytes(self.limit_bytes), format_bytes(self.sample.total_bytes)
        ends = ", ".join(f"{one.way.name} {one.whole.ending}" for one in self.results)
        return f"<Comparison of {size} within {limit}: {ends}>"


def compare(
    inputs: Sequence[str],
    settings: CompareSettings,
    *,
    machine: MemoryLimit,
    environment: Mapping[str, str],
    should_stop: ShouldStop = never_stop,
    tell: Tell = lambda _line, _passing: None,
) -> Comparison:
    """Run all ways, one after the other, each with this `environment`."""
    refuse_to_go_on(should_stop())
    _check(settings, machine)
    ways = choose_ways(settings.ways)
    _warn_of_long_path(_place(settings), ways, tell)
    vocabulary = load_vocabulary(settings.tokenizer)
    found = survey_inputs(inputs, input_format=settings.input_format)
    files = found.files
    if found.skipped:
        tell(describe_skipped(found.skipped), False)
    if any(item.stream for item in files):
        raise UsageError("standard input can be read only once", remedy="name a file or a folder")
    with _temporary_folder(settings, tell) as folder, _disk_errors(folder):
        for name in ("tokenizer", "sample"):
            (folder / name).mkdir()
        write_tokenizer(vocabulary, folder / "tokenizer")
        tell(f"taking a sample of {format_bytes(settings.sample_bytes)}", True)
        sample = take_sample(
            files,
            folder / "sample",
            sample_bytes=settings.sample_bytes,
            column=settings.column,
            separator=settings.separator,
            between=lambda: refuse_to_go_on(should_stop()),
        )
        runner = _WayRunner(
            settings=settings,
            sample=sample,
            folder=folder,
            environment=environment,
            should_stop=should_stop,
            tell=tell,
        )
        results = tuple(runner.measure(way) for way in ways if not way.missing)
    return Comparison(
        limit_bytes=settings.limit_bytes,
        how=runner.how,
        sample=sample,
        results=results,
        left_out=tuple(way for way in ways if way.missing),
        kept=folder if settings.keep else None,
    )


@dataclass(slots=True, kw_only=True)
class _WayRunner:
    """Runs ways on the sample, one at a time, each in a box and a folder of its own."""

    settings: CompareSettings
    sample: TextSample
    folder: Path
    environment: Mapping[str, str]
    should_stop: ShouldStop
    tell: Tell
    how: str = "sampled"

    def measure(self, way: Way) -> WayResult:
        """Run a way on the whole sample, and on as many parts of it as a line needs."""
        runs = [self._run(way, PARTS)]
        if runs[0].found.ending in ("finished", "died"):
            died = runs[0].found.ending == "died"
            runs += [self._run(way, size) for size in (_AFTER_DEATH if died else _AFTER_FINISH)]
            if died and runs[1].found.ending == "died":
                runs += [self._run(way, size) for size in _AFTER_TWO_DEATHS]
        budget = self._task(way, runs[0].sixteenths).budget_bytes if way.ours else None
        return WayResult(way=way, runs=tuple(runs), growth=fit_growth(runs), budget_bytes=budget)

    def _task(self, way: Way, sixteenths: int) -> Task:
        run = self.folder / f"{way.key}-{sixteenths:02d}"
        return Task(
            files=self.sample.first(sixteenths)[0],
            tokenizer=self.folder / "tokenizer",
            out=run / "out",
            progress=run / "progress",
            limit_bytes=self.settings.limit_bytes,
        )

    def _run(self, way: Way, sixteenths: int) -> SizedRun:
        task, text_bytes = self._task(way, sixteenths), self.sample.first(sixteenths)[1]
        work = task.out.parent
        for folder in (task.out, work / "tmp"):
            folder.mkdir(parents=True)
        title = f"{way.name} on {format_bytes(text_bytes)}"

        def look(moment: Moment) -> None:
            share = f"{moment.share:.0%}, " if moment.share is not None else ""
            stage = f"{moment.stage}, " if moment.stage else ""
            limit = format_bytes(self.settings.limit_bytes)
            memory = f"{format_bytes(moment.private_bytes)} of {limit}"
            words = f"{share}{stage}{memory}, {format_seconds(moment.seconds)}"
            self.tell(f"{title}: {words}", True)

        with open_box(self.settings.limit_bytes) as box:
            self.how = box.how if box else "sampled"
            job = BoxedJob(
                command=way.command(task),
                work=work,
                environment=_child_environment(self.environment, work),
                limit_bytes=self.settings.limit_bytes,
                timeout_seconds=self.settings.timeout_seconds,
            )
            progress = ProgressFile(task.progress, text_bytes)
            found = run_boxed(job, box, progress, should_stop=self.should_stop, look=look)
        if way.ours and way.job == "tokenize":
            found = replace(found, tokens=_read_tokens(work / "stdout"))
        peak, duration = format_bytes(found.peak_private_bytes), format_seconds(found.seconds)
        self.tell(f"{title}: {found.in_words}, {peak} at most, {duration}", False)
        if not self.settings.keep:
            shutil.rmtree(work)
        return SizedRun(sixteenths=sixteenths, text_bytes=text_bytes, found=found)


@contextmanager
def _temporary_folder(settings: CompareSettings, tell: Tell) -> Iterator[Path]:
    """A folder of our own, removed at the end unless `keep`; folders of killed comparisons go first."""
    place = _place(settings)
    with _disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        _check_free_space(place, settings.sample_bytes)
        remove_orphan_folders(place, _PREFIX)
        folder = Path(
            tempfile.mkdtemp(prefix=f"{process_folder_name(_PREFIX)}-", dir=place)
        ).absolute()
    if file_system(folder.resolve(), Path("/")) in IN_MEMORY:
        text = f"{place} lies in memory, so what a way writes there counts as memory of its box"
        tell(f"warning: {text}; pass a `--work` on a disk", False)
    try:
        yield folder
    finally:
        if not settings.keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Disk errors with a remedy that fits: nothing that was made here is worth keeping."""
    try:
        yield
    except OSError as cause:
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        place = folder if full else cause.filename or folder
        raise StorageError(
            f"cannot work with {place}: {cause.strerror or cause}",
            remedy="free space there, or pass a `--work` on a larger disk"
            if full
            else "allow this user to use it, or pass another `--work`",
        ) from cause


def _check(settings: CompareSettings, machine: MemoryLimit) -> None:
    """Refuse settings that make no sense, and a box that is larger than the machine allows."""
    if settings.limit_bytes < _LEAST_LIMIT_BYTES:
        raise DoesNotFitError(
            f"in a box of {format_bytes(settings.limit_bytes)} not even the libraries fit",
            remedy=f"pass `--limit {_ENOUGH_LIMIT_BYTES // MIB}MiB` or more",
        )
    if settings.sample_bytes < _LEAST_SAMPLE_BYTES:
        raise UsageError(
            f"a sample of {settings.sample_bytes} bytes shows nothing",
            remedy="pass `--sample 20MB` or more",
        )
    if settings.timeout_seconds <= 0:
        raise UsageError(
            f"no way finishes within {settings.timeout_seconds:g} seconds",
            remedy="pass `--timeout 600`, or leave it out",
        )
    if settings.limit_bytes > machine.total_bytes:
        raise DoesNotFitError(
            f"a box of {format_bytes(settings.limit_bytes)} is more than the "
            f"{format_bytes(machine.total_bytes)} that {machine.source} allows",
            remedy=f"pass `--limit {machine.total_bytes * 8 // 10 // MIB}MiB` or less",
        )


def _place(settings: CompareSettings) -> Path:
    return (settings.work or Path(tempfile.gettempdir())).absolute()


def _warn_of_long_path(place: Path, ways: Sequence[Way], tell: Tell) -> None:
    """Warn of a long path: processes of datasets use sockets in our folder, and a socket's path is short."""
    meet = any("datasets" in way.needs and not way.missing for way in ways)
    if meet and len(os.fsencode(place)) > _LONGEST_PLACE:
        text = f"{place} is too long a path for the sockets of datasets, whose ways may fail"
        tell(f"warning: {text}; pass a `--work` of at most {_LONGEST_PLACE} characters", False)


def _check_free_space(place: Path, sample_bytes: int) -> None:
    free, needed = shutil.disk_usage(place).free, _DISK_TIMES * sample_bytes
    if free < needed:
        raise DoesNotFitError(
            f"the sample and what the ways make of it take about {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free in {place}",
            remedy="pass a `--work` on a larger disk, or a smaller `--sample`",
        )


def _child_environment(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """An environment with caches and temporary files in the run's own folder, and without network."""
    package = str(Path(lowtide.__file__).parent.parent)
    paths = [package, *filter(None, [environment.get("PYTHONPATH")])]
    cache = str(work / "tmp")
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": cache,
        "HF_HOME": cache,
        "HF_DATASETS_CACHE": cache,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "XDG_CACHE_HOME": cache,
    }


def _read_tokens(path: Path) -> int | None:
    """Number of tokens in the output of `lowtide tokenize --json`."""
    with suppress(ValueError, KeyError, OSError):
        return int(json.loads(path.read_text(encoding="utf-8"))["tokens"])
    return None
