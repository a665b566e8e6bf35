"""The story of `train`: token shards become a GPT, inside the memory there is, crash by crash.

dataset → loader → steps → checkpoints, log, samples in the folder of the run
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from lowtide import __version__
from lowtide.dataset.find_tokens import open_dataset
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import DoesNotFitError, LowtideError, UsageError
from lowtide.events import Listener, Note, ignore
from lowtide.memory.budget import Budget, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.model.gpt import GPT
from lowtide.model.needs import bytes_of_checkpoint
from lowtide.pipeline import folder as out_folder
from lowtide.pipeline.follow_run import follow_run
from lowtide.pipeline.stop_run import RunGuard
from lowtide.pipeline.watch_run import ShouldStop, never_stop
from lowtide.shards.layout import WORK_FOLDER
from lowtide.storage.publish import storage_errors
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.build import build_model, device_of
from lowtide.training.checkpoint import (
    RunState,
    find_checkpoints,
    load_checkpoint,
    remove_partial,
)
from lowtide.training.data_parallel import Ranks, joined, wait_for_all
from lowtide.training.gpu_memory import peak_of_gpu, read_gpu_use
from lowtide.training.loop import Loop, Surroundings
from lowtide.training.optimizer import make_optimizer
from lowtide.training.run_folder import (
    CHECKPOINTS,
    RUN_NAME,
    TOKENIZER,
    RunRecord,
    read_run_record,
    write_run_record,
)
from lowtide.training.run_log import LOG_NAME, rewind
from lowtide.training.run_results import TrainedRun
from lowtide.training.sample_text import Sampler
from lowtide.training.settings import RunSettings, differences
from lowtide.training.tensorboard import Board
from lowtide.units import format_bytes

_CHECKPOINTS_AT_ONCE = 4
"""The last two, the best, and the one being written."""


def train(
    out: str | Path,
    settings: RunSettings,
    *,
    memory: Budget | str | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop = never_stop,
    ranks: Ranks | None = None,
    peak_flops: float | None = None,
    boards: Sequence[Board] = (),
) -> TrainedRun:
    """Train in the folder `out`, or go on where an earlier call was cut off.

    Raises StoppedError after a clean stop; the same call goes on, to the same weights. `boards` are drawn on
    beside TensorBoard's files.
    """
    started = time.monotonic()
    ranks = ranks or Ranks()
    folder = Path(out)
    budget = memory
    if not isinstance(budget, Budget):
        budget = choose_budget(budget, machine_limit(), generous=True)
    datasets = _open_data(settings, listen)
    _check_share(settings, ranks)
    device = device_of(settings, ranks)
    with ExitStack() as stack:
        stack.enter_context(joined(ranks, settings.device))
        if ranks.leads:
            if not folder.exists():  # what is refused leaves none behind
                _check_disk(folder, settings)
            _take_folder(stack, folder, restart)
            _check_disk(folder, settings)
            _begin(folder, settings, datasets[0])
        wait_for_all()
        model = build_model(settings, device)
        optimizer = make_optimizer(model, settings)
        state = _resume(folder, model, optimizer, listen)
        if state.step >= settings.steps:
            return TrainedRun(
                folder=folder,
                state=state,
                seconds=0.0,
                micro_batch=settings.micro_batch,
                already_done=True,
            )
        if ranks.leads:
            rewind(folder / LOG_NAME, state.step)
            listen = stack.enter_context(
                follow_run(folder, settings, listen, after_step=state.step, boards=boards)
            )
        if not ranks.leads:
            listen = ignore
        read_gpu = partial(read_gpu_use, device) if device.type == "cuda" else None
        around = Surroundings(
            run=folder,
            ranks=ranks,
            listen=listen,
            why_stop=RunGuard(folder, budget, should_stop, listen, read_gpu=read_gpu).look,
            write_sample=Sampler(folder / TOKENIZER, settings.seed),
            peak_flops=peak_flops,
        )
        loop = Loop(settings, model, optimizer, datasets, state, around)
        state = loop.run()
    return TrainedRun(
        folder=folder,
        state=state,
        seconds=time.monotonic() - started,
        micro_batch=loop.settings.micro_batch,
        gpu_bytes=peak_of_gpu(device),
        train_loss=loop.pace.mean_loss,
        tokens_per_second=loop.pace.tokens_per_second,
    )


def _open_data(settings: RunSettings, listen: Listener) -> tuple[TokenDataset, TokenDataset | None]:
    """The training windows in their order, and held-out ones in the order of the text, if there are any."""
    shape = settings.shape
    train_set = TokenDataset(
        settings.data,
        settings.split,
        shape.context,
        settings.seed,
        windows=settings.windows,
        val_fraction=settings.val_fraction,
        tokenizer=settings.tokenizer,
    )
    named = train_set.tokenizer
    if named is not None and named.vocabulary_size > shape.vocabulary_size:
        raise UsageError(
            f"{settings.data} was made by {named.name} with {named.vocabulary_size} tokens, and the model "
            f"knows {shape.vocabulary_size}",
            remedy=f"plan again for this dataset, or set `vocabulary_size = {named.vocabulary_size}`",
        )
    try:
        val_set = TokenDataset(
            settings.data,
            settings.val_split,
            shape.context,
            order="sequential",
            val_fraction=settings.val_fraction,
            tokenizer=settings.tokenizer,
        )
    except UsageError as reason:  # no such split, or it is shorter than a window
        listen(Note(text=f"nothing is evaluated: {reason.problem}", level="warning"))
        val_set = None
    return train_set, val_set


def _check_share(settings: RunSettings, ranks: Ranks) -> None:
    windows = settings.windows_per_step
    if windows % ranks.world_size:
        whole = max(1, round(windows / ranks.world_size)) * ranks.world_size
        raise UsageError(
            f"a step of {windows} windows cannot be shared by {ranks.world_size} ranks",
            remedy=f"pass `--batch-tokens {whole * settings.shape.context}`",
        )


def _take_folder(stack: ExitStack, folder: Path, restart: bool) -> None:
    out_folder.make_folder(folder, out_folder.RUN)
    stack.enter_context(out_folder.hold_lock(folder))
    with storage_errors(folder):
        (folder / WORK_FOLDER / out_folder.RUN.work_name).touch()
    out_folder.remove_killed_writes(folder)
    remove_partial(folder)
    if restart:
        _empty(folder)
    _try_checkpoints(folder)


def _empty(folder: Path) -> None:
    """Remove what a run leaves, and nothing else."""
    with storage_errors(folder):
        for name in (CHECKPOINTS, TOKENIZER):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
        for name in (RUN_NAME, LOG_NAME):
            (folder / name).unlink(missing_ok=True)
        for path in folder.glob("events.out.tfevents.*"):
            path.unlink()


def _try_checkpoints(folder: Path) -> None:
    """A place that takes no files is found out now, not at the first checkpoint."""
    place = folder / CHECKPOINTS
    with storage_errors(place):
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")


def _check_disk(folder: Path, settings: RunSettings) -> None:
    if not settings.checkpoint_every:
        return
    there = len(find_checkpoints(folder))
    each = bytes_of_checkpoint(settings.shape, settings.step_kind)
    wanted = each * max(1, _CHECKPOINTS_AT_ONCE - there)
    free = shutil.disk_usage(out_folder.nearest_folder(folder)).free
    if free < wanted:
        raise DoesNotFitError(
            f"checkpoints need {format_bytes(wanted)} on the disk of {folder}, and {format_bytes(free)} "
            "are free",
            remedy="free space there, or pass an `--out` on a larger disk",
        )


def _begin(folder: Path, settings: RunSettings, data: TokenDataset) -> None:
    """The record of the run, or a comparison with the one that stands."""
    stream: JsonObject = dict(data.identity())
    if not (folder / RUN_NAME).exists():
        _copy_tokenizer(folder, data)
        write_run_record(
            RunRecord(folder=folder, settings=settings, stream=stream, tool_version=__version__)
        )
        return
    before = read_run_record(folder)
    changed = differences(before.settings, settings)
    if before.stream != stream:
        changed.append("the training data is another")
    if changed:
        raise UsageError(
            f"{folder} holds another run: {'; '.join(changed)}",
            remedy="pass the settings as they were, another `--out`, or `--restart` to begin again",
        )


def _copy_tokenizer(folder: Path, data: TokenDataset) -> None:
    """So that the run can be sampled and exported without the data."""
    record = data.tokenizer
    if record is None:
        return
    from lowtide.tokenizer.tokenizer import Tokenizer
    from lowtide.tokenizer.vocabulary import load_vocabulary

    manifest = open_dataset(data.settings.path, tokenizer=data.settings.tokenizer).manifest
    made_by = manifest.settings.get("tokenizer") if manifest is not None else None
    source = data.settings.tokenizer or str(made_by or record.name)
    try:
        vocabulary = load_vocabulary(source)
    except LowtideError:
        return  # it lay somewhere else; samples need one
    if vocabulary.fingerprint == record.fingerprint:
        Tokenizer(vocabulary).save(folder / TOKENIZER)


def _resume(
    folder: Path, model: GPT, optimizer: torch.optim.Optimizer, listen: Listener
) -> RunState:
    found = find_checkpoints(folder)
    if not found:
        return RunState(step=0, loader={})
    state = load_checkpoint(found[-1], model, optimizer)
    listen(Note(text=f"going on after step {state.step}: the checkpoint stands and is verified"))
    return state
