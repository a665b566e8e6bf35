"""The story of `lowtide compare`: a sample of the user's own text, and every way alone in a box with it.

    sample ─► each way in a box: all of it, then a quarter (or less, where it died) ─► a line to the full input

Nothing is left behind: not when it ends, not when it is interrupted, not when a way hangs or the disk is full.
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
from lowtide.pipeline.comparing.growth import Growth, Measured, fit_growth
from lowtide.pipeline.comparing.run_boxed import (
    Boxed,
    BoxedJob,
    Moment,
    ProgressFile,
    run_boxed,
)
from lowtide.pipeline.comparing.sample import PARTS, TextSample, take_sample
from lowtide.pipeline.comparing.stops import refuse_to_go_on
from lowtide.pipeline.comparing.ways import Task, Way, choose_ways, write_tokenizer
from lowtide.pipeline.watch_run import ShouldStop, never_stop
from lowtide.source.find_inputs import InputFormat, describe_skipped, survey_inputs
from lowtide.tokenizer.vocabulary import load_vocabulary
from lowtide.units import MIB, format_bytes, format_seconds

Tell: TypeAlias = Callable[[str, bool], None]
"""A line for people, and whether it will soon be replaced by another."""

_PREFIX = "lowtide-compare-"
_LEAST_LIMIT_BYTES = 64 * MIB
_ENOUGH_LIMIT_BYTES = 512 * MIB
"""In such a box every way comes to the end of a small sample."""
_LEAST_SAMPLE_BYTES = 100_000
_LONGEST_PLACE = 107 - len(
    "/lowtide-compare-4194304-12345678/nanogpt-16/tmp/pymp-12345678/listener-12345678"
)
"""What a socket's path (107 bytes on Linux) leaves for the folder that ours is in."""
_DISK_TIMES = 10
"""datasets writes the text once more as Arrow, then 8 bytes for each token, and saves a copy."""
_AFTER_FINISH, _AFTER_DEATH, _AFTER_TWO_DEATHS = (4,), (4, 2), (1,)
"""Sixteenths of the sample to run as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What to compare, and in how large a box."""

    sample_bytes: int = 200_000_000
    limit_bytes: int = 1 << 30
    ways: tuple[str, ...] | None = None
    tokenizer: str = "gpt2"
    column: str = "text"
    separator: str = "file"
    input_format: InputFormat | None = None
    timeout_seconds: float = 1800.0
    """For each run of a way."""
    work: Path | None = None
    """Where the temporary folder is made; None is the system's own place."""
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRun:
    """One run, and how much text it was given."""

    sixteenths: int
    text_bytes: int
    found: Boxed


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """All runs of one way; the first is on the whole sample."""

    way: Way
    runs: tuple[SizedRun, ...]
    growth: Growth | None
    budget_bytes: int | None
    """What lowtide was told to stay in; None for the others, which cannot be told."""

    @property
    def whole(self) -> Boxed:
        """The run on the whole sample."""
        return self.runs[0].found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that was found."""

    limit_bytes: int
    how: str
    """What held the limit: "cgroup v1", "cgroup v2", or "sampled"."""
    sample: TextSample
    results: tuple[WayResult, ...]
    left_out: tuple[Way, ...]
    """Ways whose packages are not installed."""
    kept: Path | None


def compare(
    inputs: Sequence[str],
    settings: CompareSettings,
    *,
    machine: MemoryLimit,
    environment: Mapping[str, str],
    should_stop: ShouldStop = never_stop,
    tell: Tell = lambda _line, _passing: None,
) -> Comparison:
    """Run all ways, one after the other. `environment` is what their processes are given."""
    refuse_to_go_on(should_stop())
    _check(settings, machine)
    ways = choose_ways(settings.ways)
    _warn_of_long_path(_place(settings), ways, tell)
    vocabulary = load_vocabulary(settings.tokenizer)
    found = survey_inputs(inputs, input_format=settings.input_format)
    files = found.files
    if found.skipped:
        tell(describe_skipped(found.skipped), False)
    if any(item.is_stdin for item in files):
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
        bench = _Bench(settings, sample, folder, environment, should_stop, tell)
        present = [way for way in ways if not way.missing]
        results = tuple(bench.measure(way) for way in present)
    return Comparison(
        limit_bytes=settings.limit_bytes,
        how=bench.how,
        sample=sample,
        results=results,
        left_out=tuple(way for way in ways if way.missing),
        kept=folder if settings.keep else None,
    )


class _Bench:
    """Where ways are run, one at a time."""

    def __init__(
        self,
        settings: CompareSettings,
        sample: TextSample,
        folder: Path,
        environment: Mapping[str, str],
        should_stop: ShouldStop,
        tell: Tell,
    ) -> None:
        self.how = "sampled"
        self._settings = settings
        self._sample = sample
        self._folder = folder
        self._environment = environment
        self._should_stop = should_stop
        self._tell = tell

    def measure(self, way: Way) -> WayResult:
        """The whole sample, and as many parts of it as a line needs."""
        runs = [self._run(way, PARTS)]
        if runs[0].found.ending in ("finished", "died"):
            died = runs[0].found.ending == "died"
            runs += [self._run(way, size) for size in (_AFTER_DEATH if died else _AFTER_FINISH)]
            if died and runs[1].found.ending == "died":
                runs += [self._run(way, size) for size in _AFTER_TWO_DEATHS]
        finished = [
            Measured(
                text_bytes=run.text_bytes,
                peak_bytes=run.found.peak_private_bytes,
                seconds=run.found.seconds,
            )
            for run in runs
            if run.found.ending == "finished" and run.text_bytes
        ]
        budget = self._task(way, runs[0].sixteenths).budget_bytes if way.ours else None
        return WayResult(
            way=way, runs=tuple(runs), growth=fit_growth(finished), budget_bytes=budget
        )

    def _task(self, way: Way, sixteenths: int) -> Task:
        run = self._folder / f"{way.key}-{sixteenths:02d}"
        return Task(
            files=self._sample.first(sixteenths)[0],
            tokenizer=self._folder / "tokenizer",
            out=run / "out",
            progress=run / "progress",
            limit_bytes=self._settings.limit_bytes,
        )

    def _run(self, way: Way, sixteenths: int) -> SizedRun:
        task, text_bytes = self._task(way, sixteenths), self._sample.first(sixteenths)[1]
        work = task.out.parent
        for folder in (task.out, work / "tmp"):
            folder.mkdir(parents=True)
        title = f"{way.name} on {format_bytes(text_bytes)}"

        def look(moment: Moment) -> None:
            self._tell(f"{title}: {self._in_words(moment)}", True)

        with open_box(self._settings.limit_bytes) as box:
            self.how = box.how if box else "sampled"
            job = BoxedJob(
                command=way.command(task),
                work=work,
                environment=_child_environment(self._environment, work),
                limit_bytes=self._settings.limit_bytes,
                timeout_seconds=self._settings.timeout_seconds,
            )
            progress = ProgressFile(task.progress, text_bytes)
            found = run_boxed(job, box, progress, should_stop=self._should_stop, look=look)
        if way.ours and way.job == "tokenize":
            found = replace(found, tokens=_tokens_told(work / "stdout"))
        self._tell(f"{title}: {self._outcome(found)}", False)
        if not self._settings.keep:
            shutil.rmtree(work)
        return SizedRun(sixteenths=sixteenths, text_bytes=text_bytes, found=found)

    def _in_words(self, moment: Moment) -> str:
        share = f"{moment.share:.0%}, " if moment.share is not None else ""
        stage = f"{moment.stage}, " if moment.stage else ""
        limit = format_bytes(self._settings.limit_bytes)
        memory = f"{format_bytes(moment.private_bytes)} of {limit}"
        return f"{share}{stage}{memory}, {format_seconds(moment.seconds)}"

    def _outcome(self, found: Boxed) -> str:
        peak = format_bytes(found.peak_private_bytes)
        return f"{found.in_words}, {peak} at most, {format_seconds(found.seconds)}"


@contextmanager
def _temporary_folder(settings: CompareSettings, tell: Tell) -> Iterator[Path]:
    """A folder of our own; what killed comparisons have left goes first. Removed, but with `keep`."""
    place = _place(settings)
    with _disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        _refuse_little_room(place, settings.sample_bytes)
        remove_orphan_folders(place, _PREFIX)
        folder = Path(
            tempfile.mkdtemp(prefix=f"{process_folder_name(_PREFIX)}-", dir=place)
        ).absolute()
    if file_system(folder.resolve(), Path("/")) in IN_MEMORY:
        text = f"{place} lies in memory: what a way writes counts in its box; `--work` takes a disk"
        tell(f"warning: {text}", False)
    try:
        yield folder
    finally:
        if not settings.keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """The disk's refusal with a way out: nothing that was made here is worth keeping."""
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
    """Refuse what cannot be meant, and a box that is larger than what is there."""
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
        raise UsageError("no way is that fast", remedy="pass `--timeout 600`, or leave it out")
    if settings.limit_bytes > machine.total_bytes:
        raise DoesNotFitError(
            f"a box of {format_bytes(settings.limit_bytes)} is more than the "
            f"{format_bytes(machine.total_bytes)} that {machine.source} allows",
            remedy=f"pass `--limit {machine.total_bytes * 8 // 10 // MIB}MiB` or less",
        )


def _place(settings: CompareSettings) -> Path:
    return (settings.work or Path(tempfile.gettempdir())).absolute()


def _warn_of_long_path(place: Path, ways: Sequence[Way], tell: Tell) -> None:
    """Processes of datasets meet at sockets in our folder, and a socket's path is short."""
    meet = any("datasets" in way.needs and not way.missing for way in ways)
    if meet and len(os.fsencode(place)) > _LONGEST_PLACE:
        told = f"{place} is too long a path for the sockets of datasets, whose ways may fail"
        tell(f"warning: {told}; pass a `--work` of at most {_LONGEST_PLACE} letters", False)


def _refuse_little_room(place: Path, sample_bytes: int) -> None:
    free, needed = shutil.disk_usage(place).free, _DISK_TIMES * sample_bytes
    if free < needed:
        raise DoesNotFitError(
            f"the sample and what the ways make of it take about {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free in {place}",
            remedy="pass a `--work` on a larger disk, or a smaller `--sample`",
        )


def _child_environment(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """Caches and temporary files lie in the run's own folder, and nothing is asked of the network."""
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


def _tokens_told(path: Path) -> int | None:
    """What `lowtide tokenize --json` says of its tokens."""
    with suppress(ValueError, KeyError, OSError):
        return int(json.loads(path.read_text(encoding="utf-8"))["tokens"])
    return None
