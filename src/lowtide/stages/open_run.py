"""A training run, opened: its folder locked and compared, its model as the newest checkpoint has it.

refuse what differs → build the model → lock → begin, resume or replace → load the checkpoint
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lowtide import __version__
from lowtide.errors import DoesNotFitError, LowtideError, UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.journal import LOG_NAME
from lowtide.memory.allocator import keep_large_pieces
from lowtide.memory.budget import Budget, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.model.needs import bytes_of_checkpoint
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.examples.templates import TEMPLATE_FILE
from lowtide.stages import folder as out_folder
from lowtide.stages.initial_weights import InitialWeights, find_initial_weights
from lowtide.stages.replace_run import OldRun
from lowtide.stages.run_source import RunSource, stream_differences
from lowtide.stages.stop_signals import listen_for_stops
from lowtide.stages.watch_run import ShouldStop
from lowtide.storage.publish import remove_path, storage_errors, write_atomically
from lowtide.training.build import build_model, device_of
from lowtide.training.checkpoint import find_checkpoints, load_newest, remove_partial
from lowtide.training.data_parallel import Ranks, joined, share_from_leader, wait_for_all
from lowtide.training.loop import OpenRun
from lowtide.training.optimizer import make_optimizer
from lowtide.training.run_folder import (
    CHECKPOINTS,
    RUN_NAME,
    TOKENIZER,
    RunRecord,
    read_run_record,
    write_run_record,
)
from lowtide.training.sample_text import Sampler
from lowtide.training.settings import TrainSettings, differences
from lowtide.units import format_bytes

_CHECKPOINTS_AT_ONCE = 4
"""The last two, the best, and the one being written."""
_LEFTOVER = re.compile(rf"\.({re.escape(RUN_NAME)}|{re.escape(LOG_NAME)}|{TOKENIZER})\.\d+\.tmp\Z")


@contextmanager
def open_run(
    folder: Path,
    settings: TrainSettings,
    source: RunSource,
    *,
    memory: Budget | str | int | None,
    restart: bool,
    listen: Listener,
    should_stop: ShouldStop | None,
    ranks: Ranks,
    peak_flops: float | None = None,
) -> Iterator[OpenRun]:
    """The folder is this process's alone inside. Without `should_stop`, signals ask for a stop."""
    budget = memory
    if not isinstance(budget, Budget):
        budget = choose_budget(budget, machine_limit(), generous=True)
    device = device_of(settings, ranks)
    _refuse_early(folder, settings, source, restart=restart)
    weights = None  # a checkpoint that stands wins
    if settings.init is not None and (restart or not find_checkpoints(folder)):
        weights = find_initial_weights(settings.init)
    if device.type == "cpu":
        keep_large_pieces()
    with ExitStack() as stack:
        if should_stop is None:
            should_stop = stack.enter_context(listen_for_stops())
        stack.enter_context(joined(ranks, settings.device))
        _leave_if_asked(folder, should_stop, ranks)
        load = weights.load if weights and ranks.leads else None
        model = build_model(settings, device, load=load)
        optimizer = make_optimizer(model, settings)
        _leave_if_asked(folder, should_stop, ranks)
        if not ranks.leads:
            listen = ignore
        else:
            digest = weights.digest() if weights else None  # `restart` may move them
            listen = stack.enter_context(
                _hold_folder(folder, settings, source, digest, restart=restart, listen=listen)
            )
        _leave_if_asked(folder, should_stop, ranks)
        wait_for_all()
        state = load_newest(folder, model, optimizer)
        if weights:
            share_from_leader(model.parameters())
            _warn_of_other_tokens(weights, folder / TOKENIZER, listen)
        ask = should_stop
        yield OpenRun(
            folder=folder,
            settings=settings,
            model=model,
            optimizer=optimizer,
            state=state,
            ranks=ranks,
            budget=budget,
            listen=listen,
            why_stop=lambda: out_folder.find_stop(folder, ask()),
            write_sample=Sampler(folder / TOKENIZER, settings.seed),
            peak_flops=peak_flops,
        )


def _leave_if_asked(folder: Path, should_stop: ShouldStop, ranks: Ranks) -> None:
    """StoppedError while a run starts: nothing is done yet that a checkpoint would hold.

    Several ranks leave together, after a step: one that left now would keep the others waiting.
    """
    if ranks.world_size > 1:
        return
    stop = out_folder.find_stop(folder, should_stop())
    if stop is not None:
        raise stop.error("while the run started")


def _refuse_early(
    folder: Path, settings: TrainSettings, source: RunSource, *, restart: bool
) -> None:
    """What would be refused under the lock, before a large model is built; nothing is changed."""
    out_folder.check_folder(folder, out_folder.RUN)
    # While a run lies aside, only the holder of the lock can tell which one stands.
    if not restart and folder.exists() and not OldRun(folder).is_aside:
        with storage_errors(folder, doing="read"):
            _compare(folder, settings, source)


@contextmanager
def _hold_folder(
    folder: Path,
    settings: TrainSettings,
    source: RunSource,
    digest: str | None,
    *,
    restart: bool,
    listen: Listener,
) -> Iterator[Listener]:
    """The folder is locked, and holds the record of this run; `digest` is that of its initial weights.

    Yields the listener to use, which removes the run that this one replaces.
    """
    if not folder.exists():  # what is refused leaves none behind
        _check_disk(folder, settings)
    out_folder.make_folder(folder, out_folder.RUN)
    with out_folder.hold_lock(folder):
        old = OldRun(folder)
        _clear(folder)
        old.settle()
        try:
            if restart:
                old.set_aside()
            _try_checkpoints(folder)
            _check_disk(folder, settings, freed=old.bytes)
            _begin(folder, settings, source, digest, listen)
            yield old.removed_by(listen)
        finally:
            old.settle()


def _clear(folder: Path) -> None:
    """Remove what a killed run was writing or removing."""
    with storage_errors(folder):
        (folder / WORK_FOLDER / out_folder.RUN.work_name).touch()
        for path in folder.iterdir():
            if _LEFTOVER.match(path.name):
                remove_path(path)
    remove_partial(folder)


def _try_checkpoints(folder: Path) -> None:
    """A place that takes no files is found out now, not at the first checkpoint."""
    place = folder / CHECKPOINTS
    with storage_errors(place):
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")


def _check_disk(folder: Path, settings: TrainSettings, *, freed: int = 0) -> None:
    """`freed` comes back when the first checkpoint stands."""
    there = len(find_checkpoints(folder))
    each = bytes_of_checkpoint(settings.shape, settings.step_kind)
    most = _CHECKPOINTS_AT_ONCE if settings.checkpoint_every else 1
    wanted = each * max(1, most - there)
    free = shutil.disk_usage(out_folder.nearest_folder(folder / CHECKPOINTS)).free
    if free + freed < wanted or free < each:
        raise DoesNotFitError(
            f"checkpoints need {format_bytes(wanted)} on the disk of {folder}, and {format_bytes(free)} "
            "are free",
            remedy="free space there, or pass an `--out` on a larger disk",
        )


def _begin(
    folder: Path,
    settings: TrainSettings,
    source: RunSource,
    digest: str | None,
    listen: Listener,
) -> None:
    """The record of the run, or a comparison with the one that stands."""
    if find_checkpoints(folder):
        _compare(folder, settings, source)
        if settings.tokenizer is not None and not (folder / TOKENIZER).is_dir():  # named only now
            _copy_tokenizer(folder, source, listen)
        return
    # What an earlier start has written came to nothing.
    _copy_tokenizer(folder, source, listen)
    write_run_record(
        RunRecord(
            folder=folder,
            settings=settings,
            stream=source.stream,
            tool_version=__version__,
            start=digest,
        )
    )


def _compare(folder: Path, settings: TrainSettings, source: RunSource) -> None:
    """UsageError unless the checkpoints there, if any, are of the same run."""
    if not find_checkpoints(folder):
        return
    if not (folder / RUN_NAME).exists():
        raise UsageError(
            f"{folder} has checkpoints, and {RUN_NAME}, which says what they are of, is gone",
            remedy=f"put it back, remove {folder / CHECKPOINTS}, or pass another `--out`",
        )
    before = read_run_record(folder)
    changed = differences(before.settings, settings)
    changed += stream_differences(before.stream, source.stream)
    if changed:
        raise UsageError(
            f"{folder} holds another run: {'; '.join(changed)}",
            remedy="pass the settings as they were; `--init` with this folder and another `--out` to train its "
            "weights further; or `--restart` to begin again",
        )


def _copy_tokenizer(folder: Path, source: RunSource, listen: Listener) -> None:
    """So that the run can be sampled and exported without the data."""
    if (folder / TOKENIZER).is_dir():  # of a start that failed, perhaps for other data
        remove_path(folder / TOKENIZER)
    if source.tokenizer is None:
        text = "nothing names the tokenizer of this data, so nothing is sampled: `--tokenizer` names it"
        listen(Note(text=text))
        return
    from lowtide.tokenizer.tokenizer import Tokenizer
    from lowtide.tokenizer.vocabulary import load_vocabulary, name_end_of_text

    try:
        vocabulary = load_vocabulary(source.tokenizer)
    except LowtideError as reason:  # it lay somewhere else
        text = f"no tokenizer is copied into the run, so nothing is sampled: {reason.problem}"
        listen(Note(text=text, level="warning"))
        return
    if vocabulary.fingerprint == source.fingerprint:
        if source.eot_token is not None:
            vocabulary = name_end_of_text(vocabulary, source.eot_token)
        Tokenizer(vocabulary).save(folder / TOKENIZER)
        if source.chat_template is not None:
            write_atomically(folder / TOKENIZER / TEMPLATE_FILE, source.chat_template.encode())


def _warn_of_other_tokens(weights: InitialWeights, tokenizer: Path, listen: Listener) -> None:
    """Weights that were trained under another tokenizer are a poor start, and may still be wanted."""
    if weights.differ_in_tokens(tokenizer):
        text = (
            f"{weights.folder} was trained with another tokenizer than the data's: the same id means another "
            "token to it"
        )
        listen(Note(text=text, level="warning"))
