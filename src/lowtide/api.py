"""The Python calls: what the commands do, with settings as keywords and a progress bar."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lowtide.dataset.find_tokens import open_dataset
from lowtide.errors import UsageError
from lowtide.events import Listener, Processed, ignore
from lowtide.memory.budget import Budget
from lowtide.memory.limits import machine_limit
from lowtide.settings import Format, InputFormat, Placement, TokenizerSettings, TokenizeSettings
from lowtide.shards.layout import DEFAULT_SHARD_TOKENS
from lowtide.shards.manifest import DatasetManifest
from lowtide.source.take_inputs import Inputs
from lowtide.stages.export import export_dataset
from lowtide.stages.settings import make_settings
from lowtide.stages.tokenize import TokenizeResult
from lowtide.stages.tokenize import tokenize as run_tokenize
from lowtide.stages.tokenizer_settings import make_tokenizer_settings
from lowtide.stages.train_tokenizer import CHECKPOINT_SECONDS, TokenizerResult
from lowtide.stages.train_tokenizer import train_tokenizer as run_train_tokenizer
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.paths import as_path
from lowtide.units import parse_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from lowtide.guard.alerts import WatchListener, WatchResult
    from lowtide.guard.why.verdict import Verdict
    from lowtide.show.page.write_page import WrittenPage
    from lowtide.stages.examine import Proof
    from lowtide.tools.compare.run import Comparison
    from lowtide.training.data_parallel import Ranks
    from lowtide.training.run_results import TrainResult
    from lowtide.training.settings import TrainSettings
    from lowtide.training.tensorboard import Board


def tokenize(
    inputs: Inputs,
    out: str | Path,
    settings: TokenizeSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop = never_stop,
    **chosen: object,
) -> TokenizeResult:
    """Turn text into token shards in the folder `out`, or resume where an earlier call was cut off.

    `inputs` is a path, a list of paths, or an iterable of texts or dicts, such as a `datasets.Dataset`. That is
    read once, row by row: a call over it cannot be resumed.

    Every setting of `TokenizeSettings` may be given by name. `memory` ("1GiB", "50%") and `workers` change how
    much is used and how long it takes, never a byte of the output. A progress bar is shown in a terminal and in
    a notebook, with `progress=False` never. Raises StoppedError after a clean stop; the same call resumes.

        lowtide.tokenize("corpus/*.parquet", "tokens", column="code", memory="1GiB")
    """
    if chosen:
        settings = make_settings(_named(settings) | chosen)
    _refuse_texts(inputs)
    with _told(listen, progress) as told:
        return run_tokenize(
            inputs,
            out,
            settings,
            memory=memory,
            workers=workers,
            restart=restart,
            listen=told,
            should_stop=should_stop,
        )


def train_tokenizer(
    inputs: Inputs,
    out: str | Path,
    settings: TokenizerSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop = never_stop,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    **chosen: object,
) -> TokenizerResult:
    """Learn a BPE tokenizer from text into the folder `out`, or resume where an earlier call was cut off.

    `inputs` is what `tokenize` takes. Every setting of `TokenizerSettings` may be given by name. `memory`
    ("1GiB", "50%"), `workers` and `checkpoint_seconds` change how much is used and how long it takes, never a
    byte of the output. `progress` is that of `tokenize`. Raises StoppedError after a clean stop; the same call
    resumes.

        lowtide.train_tokenizer("corpus/*.parquet", "tokenizer", vocab_size=8000)
    """
    if chosen:
        settings = make_tokenizer_settings(_named(settings) | chosen)
    _refuse_texts(inputs)
    with _told(listen, progress) as told:
        return run_train_tokenizer(
            inputs,
            out,
            settings,
            memory=memory,
            workers=workers,
            restart=restart,
            listen=told,
            should_stop=should_stop,
            checkpoint_seconds=checkpoint_seconds,
        )


def train(
    out: str | Path,
    settings: TrainSettings,
    *,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop | None = None,
    ranks: Ranks | None = None,
    peak_flops: float | None = None,
    boards: Sequence[Board] = (),
) -> TrainResult:
    """Train in the folder `out`, or resume where an earlier call was cut off.

    Raises StoppedError after a clean stop; the same call resumes, to the same weights. Without `should_stop`,
    signals ask for one. `boards` are drawn on beside TensorBoard's files. `progress` is that of `tokenize`.
    """
    from lowtide.stages.train import train as run_train

    with _told(listen, progress) as told:
        return run_train(
            out,
            settings,
            memory=memory,
            restart=restart,
            listen=told,
            should_stop=should_stop,
            ranks=ranks,
            peak_flops=peak_flops,
            boards=boards,
        )


def export(
    path: str | Path,
    out: str | Path,
    to: Format,
    *,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    eot: Placement | None = None,
    tokenizer: str | None = None,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop = never_stop,
) -> DatasetManifest:
    """Rewrite the tokens at `path` into the folder `out` in another format, or resume where a call was cut off.

    `path` holds a dataset, or files of nanoGPT, llm.c, Megatron or numpy, for which `tokenizer` names the
    tokenizer. `eot` moves the end-of-text token; None puts it where the format's readers expect it. A progress
    bar is shown in a terminal and in a notebook, with `progress=False` never. Returns the manifest of `out`.
    Raises StoppedError after a clean stop; the same call resumes.

        lowtide.export("tokens", "for-llmc", "llmc")
    """
    with _told(listen, progress) as told:
        return export_dataset(
            open_dataset(path, tokenizer=tokenizer),
            to,
            as_path(out),
            shard_tokens=shard_tokens,
            eot=eot,
            memory=memory,
            restart=restart,
            listen=told,
            should_stop=should_stop,
        ).manifest


def verify(
    path: str | Path,
    *,
    tokenizer: str | None = None,
    progress: bool | None = None,
    listen: Listener | None = None,
) -> Proof:
    """Read every byte and compare; where the inputs are still there, compare a sample with them."""
    from lowtide.stages.examine import verify as run_verify

    with _told(listen, progress) as told:
        return run_verify(
            path,
            tokenizer=tokenizer,
            progress=lambda done, total: told(Processed(done=done, total=total, unit="bytes")),
        )


def report(run: str | Path, out: str | Path | None = None) -> WrittenPage:
    """Write the page of a run, a dataset or a timeline: RUN/report.html, or `out`."""
    from lowtide.show.page.write_page import write_page
    from lowtide.stages.why import explain_run

    folder = as_path(run)
    explain = partial(explain_run, folder, os.environ)
    return write_page(folder, _path(out), explain=explain)


def compare(
    inputs: str | Path | Sequence[str | Path],
    *,
    sample: str = "200MB",
    limit: str = "1GiB",
    programs: Sequence[str] | None = None,
    tokenizer: str = "gpt2",
    column: str = "text",
    separator: str = "file",
    input_format: InputFormat | None = None,
    out: str | Path | None = None,
    timeout: float = 1800.0,
    work: str | Path | None = None,
    keep: bool = False,
    progress: bool | None = None,
    should_stop: ShouldStop = never_stop,
) -> Comparison:
    """Run the usual programs and lowtide on a sample of the inputs, each in a box with the same limit.

    Each keyword is the flag of `lowtide compare` that has its name; `programs` is a list. Lines tell how far
    it is where `tokenize` shows a bar.

        lowtide.compare("corpus", limit="512MiB", programs=["list", "lowtide"], out="memory.html")
    """
    from lowtide.show.comparison import show_passing_lines
    from lowtide.show.memory_picture import check_picture_file, write_picture
    from lowtide.tools.compare import words
    from lowtide.tools.compare.run import CompareSettings
    from lowtide.tools.compare.run import compare as run_compare

    picture = _path(out)
    if picture is not None:
        check_picture_file(picture)
    names = [inputs] if isinstance(inputs, str | Path) else inputs
    settings = CompareSettings(
        sample_bytes=parse_bytes(sample),
        limit_bytes=parse_bytes(limit),
        programs=None if programs is None else tuple(programs),
        tokenizer=tokenizer,
        column=column,
        separator=separator,
        input_format=input_format,
        timeout_seconds=timeout,
        work=_path(work),
        keep=keep,
    )
    with show_passing_lines(quiet=not _is_shown(progress)) as tell:
        found = run_compare(
            [str(as_path(name)) for name in names],
            settings,
            machine=machine_limit(slurm=os.environ),
            environment=os.environ,
            should_stop=should_stop,
            tell=tell,
        )
    if picture is not None:
        rows, tables, remarks = words.introduce(found), words.tables(found), words.remarks(found)
        write_picture(picture, words.curves(found), found.limit_bytes, rows, tables, remarks)
    return found


def watch(
    command: str | Sequence[str] = (),
    *,
    pid: int | None = None,
    limit: str | None = None,
    floor: str | None = None,
    until: Literal["note", "ask", "end"] = "ask",
    grace: float = 60.0,
    stop_file: str | Path | None = None,
    on_alert: str | None = None,
    every: float = 1.0,
    timeline: str | Path | None = None,
    alerts: str | Path | None = None,
    progress: bool | None = None,
    listen: WatchListener | None = None,
) -> WatchResult:
    """Start a command, or take the process `pid`, and watch it to its end: `result.end.exit_code`.

    Each keyword is the flag of `lowtide watch` that has its name. A command in one string is split as a shell
    splits it, and no shell runs it.

        lowtide.watch("python train.py", limit="40GB")
    """
    from lowtide.show.watch_view import show_watch
    from lowtide.stages.watch import watch_command, watch_process
    from lowtide.stages.watch_settings import choose_settings, one_of

    try:
        parts = shlex.split(command) if isinstance(command, str) else command
    except ValueError as cause:
        raise UsageError(f"{command!r} is not a command: {cause}", remedy="pass a list") from cause
    one_of(parts, pid)
    settings = choose_settings(
        limit=limit,
        floor=floor,
        most=until,
        timeline=timeline,
        alerts=alerts,
        environment=os.environ,
        grace_seconds=grace,
        interval_seconds=every,
        stop_file=stop_file,
        on_alert=on_alert,
    )
    quiet = listen is not None or not _is_shown(progress)
    limit_bytes = settings.thresholds.limit_bytes
    with show_watch(quiet=quiet, limit_bytes=limit_bytes, screen=pid is not None) as shown:
        if pid is not None:
            return watch_process(pid, settings, listen or shown, environment=os.environ)
        return watch_command(parts, settings, listen or shown, environment=os.environ)


def why(
    target: str | Path | None = None,
    *,
    pid: int | None = None,
    log: str | Path | None = None,
    exit_code: int | None = None,
    kernel_log: str | Path | None = None,
) -> Verdict:
    """Why a job died, how sure that is, and what to change; of a run, a timeline of `watch`, or a log.

    Each keyword is the flag of `lowtide why` that has its name. With nothing named, the newest timeline.

        lowtide.why("run").sentence
    """
    from lowtide.stages.watch_settings import timelines_folder
    from lowtide.stages.why import Question, explain

    return explain(
        Question(
            timelines=timelines_folder(os.environ),
            target=_path(target),
            pid=pid,
            log=_path(log),
            exit_code=exit_code,
            kernel_log=_path(kernel_log),
        )
    )


def _refuse_texts(inputs: Inputs) -> None:
    """UsageError for a list of `str` of which none can be a path: it is not meant as one."""
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(one, str) for one in inputs):
        names = map(str, inputs)
        if not any(name == "-" or has_magic(name) or os.path.lexists(name) for name in names):
            raise UsageError(
                f"there is no file {inputs[0][:60]!r}",
                remedy="check the paths; a list of texts goes in as `iter(texts)`",
            )


def _path(name: str | Path | None) -> Path | None:
    return None if name is None else as_path(name)


def _named(settings: DataclassInstance | None) -> dict[str, object]:
    """The values that differ from their defaults: keywords come beside them."""
    if settings is None:
        return {}
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return {
        one.name: values[one.name] for one in fields(settings) if values[one.name] != one.default
    }


@contextmanager
def _told(listen: Listener | None, progress: bool | None) -> Iterator[Listener]:
    """Where events go: to the caller's listener, to a bar where somebody looks on, or nowhere."""
    if listen is not None:
        yield listen
        return
    if not _is_shown(progress):
        yield ignore
        return
    from lowtide.show.progress import show_progress

    with show_progress(quiet=False) as shown:
        yield shown


def _is_shown(progress: bool | None) -> bool:
    """Whether progress is shown: as the caller says, else where somebody looks on."""
    from lowtide.show.progress import is_seen

    return is_seen(sys.stderr) if progress is None else progress
