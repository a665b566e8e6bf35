"""`lowtide compare`: every program (the baselines and lowtide) alone in a box with a sample of the user's text.

    sample ─► each program in a box: all of it, then a quarter (or less, if it died) ─► a line to the full input

Nothing is left behind, whether it finishes or is interrupted, a program hangs or the disk is full.
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
from lowtide.tools.compare.growth import Growth, fit_growth
from lowtide.tools.compare.programs import (
    Program,
    Task,
    budget_in,
    choose_programs,
    write_tokenizer,
)
from lowtide.tools.compare.run_boxed import (
    Boxed,
    BoxedJob,
    Moment,
    raise_if_stopped,
    run_boxed,
)
from lowtide.tools.compare.sample import PARTS, TextSample, take_sample
from lowtide.units import MIB, format_bytes, format_seconds

Tell: TypeAlias = Callable[[str, bool], None]
"""Prints a line for people; True if another line will soon replace it."""

_PREFIX = "lowtide-compare-"
_LEAST_LIMIT_BYTES = 64 * MIB
_ENOUGH_LIMIT_BYTES = 512 * MIB
"""In a box of this size every program finishes a small sample."""
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
    programs: tuple[str, ...] | None = None
    tokenizer: str = "gpt2"
    column: str = "text"
    separator: str = "file"
    input_format: InputFormat | None = None
    timeout_seconds: float = 1800.0
    """Limit for each run of a program."""
    work: Path | None = None
    """Where the temporary folder is made; None for the system's own place."""
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """All runs of one program, the first on the whole sample."""

    program: Program
    runs: tuple[Boxed, ...]
    growth: Growth | None
    budget_bytes: int | None
    """The `--memory` that lowtide was given; None for the baselines, which have no budget."""

    @property
    def whole(self) -> Boxed:
        """The run on the whole sample."""
        return self.runs[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison."""

    limit_bytes: int
    how: str
    """What enforced the limit: "cgroup v1", "cgroup v2", or "sampled"."""
    sample: TextSample
    results: tuple[ProgramResult, ...]
    left_out: tuple[Program, ...]
    """Programs whose packages are not installed."""
    kept: Path | None

    def __repr__(self) -> str:
        limit, size = format_bytes(self.limit_bytes), format_bytes(self.sample.total_bytes)
        ends = ", ".join(f"{one.program.name} {one.whole.ending}" for one in self.results)
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
    """Run all programs, one after the other, each with this `environment`."""
    raise_if_stopped(should_stop)
    _check(settings, machine)
    programs = choose_programs(settings.programs)
    vocabulary = load_vocabulary(settings.tokenizer)
    found = survey_inputs(inputs, input_format=settings.input_format)
    if found.skipped:
        tell(describe_skipped(found.skipped), False)
    if any(item.stream for item in found.files):
        raise UsageError("standard input can be read only once", remedy="name a file or a folder")
    with _temporary_folder(settings, programs, tell) as folder, _disk_errors(folder):
        for name in ("tokenizer", "sample"):
            (folder / name).mkdir()
        write_tokenizer(vocabulary, folder / "tokenizer")
        tell(f"taking a sample of {format_bytes(settings.sample_bytes)}", True)
        sample = take_sample(
            found.files,
            folder / "sample",
            sample_bytes=settings.sample_bytes,
            column=settings.column,
            separator=settings.separator,
            between=lambda: raise_if_stopped(should_stop),
        )
        runner = _Runner(
            settings=settings,
            sample=sample,
            folder=folder,
            environment=environment,
            should_stop=should_stop,
            tell=tell,
        )
        results = tuple(runner.measure(program) for program in programs if not program.missing)
    return Comparison(
        limit_bytes=settings.limit_bytes,
        how=runner.how,
        sample=sample,
        results=results,
        left_out=tuple(program for program in programs if program.missing),
        kept=folder if settings.keep else None,
    )


@dataclass(slots=True, kw_only=True)
class _Runner:
    """Runs programs on the sample, one at a time, each in a box and a folder of its own."""

    settings: CompareSettings
    sample: TextSample
    folder: Path
    environment: Mapping[str, str]
    should_stop: ShouldStop
    tell: Tell
    how: str = "sampled"

    def measure(self, program: Program) -> ProgramResult:
        """Run a program on the whole sample, and on as many parts of it as a line needs."""
        runs = [self._run(program, PARTS)]
        if runs[0].ending in ("finished", "died"):
            died = runs[0].ending == "died"
            runs += [self._run(program, size) for size in (_AFTER_DEATH if died else _AFTER_FINISH)]
            if died and runs[1].ending == "died":
                runs += [self._run(program, size) for size in _AFTER_TWO_DEATHS]
        return ProgramResult(
            program=program,
            runs=tuple(runs),
            growth=fit_growth(runs),
            budget_bytes=budget_in(self.settings.limit_bytes) if program.ours else None,
        )

    def _run(self, program: Program, sixteenths: int) -> Boxed:
        work, limit_bytes = (
            self.folder / f"{program.key}-{sixteenths:02d}",
            self.settings.limit_bytes,
        )
        files, text_bytes = self.sample.first(sixteenths)
        for name in ("out", "tmp"):
            (work / name).mkdir(parents=True)
        title = f"{program.name} on {format_bytes(text_bytes)}"

        def look(moment: Moment) -> None:
            share = f"{moment.share:.0%}, " if moment.share is not None else ""
            stage = f"{moment.stage}, " if moment.stage else ""
            memory = f"{format_bytes(moment.private_bytes)} of {format_bytes(limit_bytes)}"
            self.tell(f"{title}: {share}{stage}{memory}, {format_seconds(moment.seconds)}", True)

        task = Task(
            files=files, tokenizer=self.folder / "tokenizer", work=work, limit_bytes=limit_bytes
        )
        job = BoxedJob(
            command=program.command(task),
            work=work,
            text_bytes=text_bytes,
            environment=child_environment(self.environment, work),
            limit_bytes=limit_bytes,
            timeout_seconds=self.settings.timeout_seconds,
        )
        with open_box(limit_bytes) as box:
            self.how = box.how if box else "sampled"
            found = run_boxed(job, box, should_stop=self.should_stop, look=look)
        if program.ours and program.job == "tokenize":
            found = replace(found, tokens=read_tokens(work / "stdout"))
        peak, duration = format_bytes(found.peak_private_bytes), format_seconds(found.seconds)
        self.tell(f"{title}: {found.in_words}, {peak} at most, {duration}", False)
        if not self.settings.keep:
            shutil.rmtree(work)
        return found


def child_environment(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """An environment with caches and temporary files in the run's own folder, and without network."""
    package = str(Path(lowtide.__file__).parent.parent)
    paths = [package, *filter(None, [environment.get("PYTHONPATH")])]
    folders = ("TMPDIR", "HF_HOME", "HF_DATASETS_CACHE", "XDG_CACHE_HOME")
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS")
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(paths),
        **dict.fromkeys(folders, str(work / "tmp")),
        **dict.fromkeys(offline, "1"),
    }


def read_tokens(path: Path) -> int | None:
    """Number of tokens in the output of `lowtide tokenize --json`."""
    with suppress(ValueError, KeyError, OSError):
        return int(json.loads(path.read_text(encoding="utf-8"))["tokens"])
    return None


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
            f"no program finishes within {settings.timeout_seconds:g} seconds",
            remedy="pass `--timeout 600`, or leave it out",
        )
    if settings.limit_bytes > machine.total_bytes:
        raise DoesNotFitError(
            f"a box of {format_bytes(settings.limit_bytes)} is more than the "
            f"{format_bytes(machine.total_bytes)} that {machine.source} allows",
            remedy=f"pass `--limit {machine.total_bytes * 8 // 10 // MIB}MiB` or less",
        )


@contextmanager
def _temporary_folder(
    settings: CompareSettings, programs: Sequence[Program], tell: Tell
) -> Iterator[Path]:
    """A folder of our own, removed at the end unless `keep`; folders of killed comparisons go first."""
    place = (settings.work or Path(tempfile.gettempdir())).absolute()
    uses_datasets = any("datasets" in one.needs and not one.missing for one in programs)
    if uses_datasets and len(os.fsencode(place)) > _LONGEST_PLACE:
        text = f"{place} is too long a path for the sockets of datasets, so its programs may fail"
        tell(f"warning: {text}; pass a `--work` of at most {_LONGEST_PLACE} characters", False)
    with _disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        free, needed = shutil.disk_usage(place).free, _DISK_TIMES * settings.sample_bytes
        if free < needed:
            raise DoesNotFitError(
                f"the sample and what the programs make of it take about {format_bytes(needed)}, and "
                f"{format_bytes(free)} are free in {place}",
                remedy="pass a `--work` on a larger disk, or a smaller `--sample`",
            )
        remove_orphan_folders(place, _PREFIX)
        folder = Path(
            tempfile.mkdtemp(prefix=f"{process_folder_name(_PREFIX)}-", dir=place)
        ).absolute()
    if file_system(folder.resolve(), Path("/")) in IN_MEMORY:
        text = f"{place} lies in memory, so what a program writes there counts as memory of its box"
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
