"""`train --inbox`: files appear, are tokenized, are trained on, and are never seen again.

    look → take → tokenize in a child → count steps → train → checkpoint → done

Where a killed run stood is told by the ledger and the newest checkpoint: a file is done when a checkpoint holds
all of its steps, and is gone on with from a checkpoint that stands between them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import InterruptedRun, StoppedError, UsageError, VerificationError
from lowtide.events import Listener, Note, ignore
from lowtide.memory.allocator import give_back
from lowtide.memory.budget import Budget, check_needs, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.settings import TrainRequest
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.inbox.choose import ChosenInbox
from lowtide.stages.inbox.file_shards import WORK_NAME, FileShards
from lowtide.stages.inbox.held_out import (
    check_held_out,
    keep_held_out,
    open_held_out,
    tell_held_out,
    tell_nothing_held_out,
)
from lowtide.stages.inbox.ledger import Entry, Ledger, describe_entry, read_entries, with_counts
from lowtide.stages.inbox.look import LOOK_SECONDS, Intake
from lowtide.stages.inbox.prepare import PreparedInbox
from lowtide.stages.inbox.tokenize_apart import Refused
from lowtide.stages.open_run import OpenRun, follow, open_run
from lowtide.stages.run_source import OWN_NAMES
from lowtide.stages.start_run import open_boards
from lowtide.stages.watch_run import ShouldStop
from lowtide.storage.paths import as_path
from lowtide.storage.publish import remove_path, storage_errors
from lowtide.storage.sealed_json import JsonObject
from lowtide.training.build import cpu_in_words
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.data_parallel import Ranks, ranks_of
from lowtide.training.gpu_memory import peak_of_gpu
from lowtide.training.loop import Loop, RunContext, WhyStop
from lowtide.training.pace import Pace
from lowtide.training.run_folder import RUN_NAME, read_run_record
from lowtide.training.run_results import FailedFile, InboxRun
from lowtide.training.settings import TrainSettings, steps_for, windows_for
from lowtide.training.tensorboard import Board
from lowtide.units import format_bytes, format_count, printable

_NAP_SECONDS = 0.1


def start_inbox(
    chosen: ChosenInbox,
    out: str | Path,
    asked: TrainRequest,
    *,
    environment: Mapping[str, str],
    restart: bool,
    listen: Listener,
    should_stop: ShouldStop,
) -> InboxRun:
    """Train until a stop, or until the inbox is empty; one rank alone."""
    if ranks_of(environment).world_size > 1:
        raise UsageError(
            "an inbox is trained on by one process alone",
            remedy="start it without torchrun; or `lowtide tokenize` the files, and train on that by several",
        )
    budget = choose_budget(asked.memory, machine_limit(slurm=environment), generous=True)
    needs = {**chosen.run.ram_needs, "tokenizing a file": chosen.inbox.least_bytes}
    check_needs(budget, needs)
    for line in opening_lines(chosen):
        listen(Note(text=line))
    return train_on_inbox(
        chosen.inbox,
        out,
        chosen.run.settings,
        until_empty=asked.until_empty,
        memory=budget,
        restart=restart,
        listen=listen,
        should_stop=should_stop,
        environment=environment,
        peak_flops=chosen.run.peak_flops,
        boards=open_boards(asked.wandb, Path(out), chosen.run.settings),
    )


def opening_lines(chosen: ChosenInbox) -> list[str]:
    """What is about to happen, for people."""
    settings, inbox = chosen.run.settings, chosen.inbox
    size = format_count(settings.shape.parameter_count)
    place = cpu_in_words() if settings.device == "cpu" else chosen.run.machine_name or "the GPU"
    examples = inbox.tokenize.examples
    kind = "documents" if examples is None else f"{examples} examples"
    epochs = f"{settings.epochs or 1:g} epoch{'' if settings.epochs == 1 else 's'}"
    lines = [
        f"{settings.model}, {size} parameters, windows of {settings.shape.context} tokens, recipe "
        f"{settings.recipe}, on {place}",
        f"{kind} from {inbox.folder}: {epochs} of each file, steps of "
        f"{format_count(settings.batch_tokens)} tokens, learning rate {settings.learning_rate:g} after "
        f"{settings.warmup_steps:,} step{'' if settings.warmup_steps == 1 else 's'}",
        f"a file is tokenized in {format_bytes(inbox.least_bytes)} or more, beside the model",
    ]
    if settings.init is not None:
        lines.append(f"from the weights of {settings.init}")
    return [*lines, "Ctrl-C saves and stops; the same command resumes the run"]


def train_on_inbox(
    inbox: PreparedInbox,
    out: str | Path,
    settings: TrainSettings,
    *,
    until_empty: bool = False,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop | None = None,
    environment: Mapping[str, str] | None = None,
    peak_flops: float | None = None,
    boards: Sequence[Board] = (),
) -> InboxRun:
    """Train on files as they appear, each once, until a stop is asked for or the inbox is empty.

    Raises StoppedError after a clean stop; the same call resumes, to the same weights. `environment` is what
    the processes that tokenize are started with, if not our own.
    """
    started = time.monotonic()
    folder = as_path(out)
    budget = memory
    if not isinstance(budget, Budget):
        budget = choose_budget(budget, machine_limit(), generous=True)
    anew = restart or _stream_in(folder) != inbox.source.stream
    with ExitStack() as stack:
        run = stack.enter_context(
            open_run(
                folder,
                settings,
                inbox.source,
                budget=budget,
                restart=restart,
                listen=listen,
                should_stop=should_stop,
                ranks=Ranks(),
            )
        )
        if anew:
            _forget_files(folder)
        context = stack.enter_context(follow(run, boards=boards, peak_flops=peak_flops))
        loop = _InboxLoop(run, context, inbox, environment)
        stack.callback(loop.close)
        loop.work(until_empty=until_empty)
        return loop.result(seconds=time.monotonic() - started)


class _InboxLoop:
    """One run over one inbox. Holds the model, where the run stands, and the file in hand."""

    def __init__(
        self,
        run: OpenRun,
        context: RunContext,
        inbox: PreparedInbox,
        environment: Mapping[str, str] | None,
    ) -> None:
        self._run = run
        self._why_stop = _Remembered(context.why_stop)
        self._context = replace(context, why_stop=self._why_stop)
        self._inbox = inbox
        self._settings = run.settings
        self._state = run.state
        self._shards = FileShards(run, self._context, inbox, environment, self._say)
        self._ledger = Ledger(run.folder)
        self._intake = Intake(inbox, self._ledger, self._say, self._warn)
        self._pace: Pace | None = None
        self._windows_done = 0
        """Trained on in files that are done, once for every epoch."""
        self._told_waiting = False
        self._told_nothing_held_out = False

    def close(self) -> None:
        self._ledger.close()

    def work(self, *, until_empty: bool) -> None:
        """File after file."""
        self._find_where_it_stands()
        while True:
            self._leave_if_asked()
            entry = next(iter(self._ledger.pending), None)
            entry = entry or self._intake.take(patient=not until_empty)
            if entry is not None:
                self._learn_from(entry)
            elif until_empty and not self._intake.seen.settling:
                return
            else:
                self._wait()

    def result(self, *, seconds: float) -> InboxRun:
        """What it came to."""
        failed = [one for one in read_entries(self._run.folder) if one.stage == "failed"]
        pace = self._pace
        return InboxRun(
            folder=self._run.folder,
            state=self._state,
            seconds=seconds,
            micro_batch=self._settings.micro_batch,
            steps=self._state.step - self._run.state.step,
            done=self._ledger.done_count,
            failed=tuple(FailedFile(name=one.name, reason=one.reason) for one in failed),
            waiting=self._intake.seen.settling + self._intake.seen.unfinished,
            gpu_bytes=peak_of_gpu(self._run.learner.device),
            train_loss=pace.mean_loss if pace else None,
            tokens_per_second=pace.tokens_per_second if pace else None,
        )

    def _find_where_it_stands(self) -> None:
        """The ledger may know more than the newest checkpoint, where somebody removed one."""
        folder, step = self._run.folder, self._state.step
        self._shards.clear(self._ledger.pending)
        undone = self._ledger.rewind(folder, step if find_checkpoints(folder) else -1)
        if self._ledger.held_out_digest is not None:
            check_held_out(folder, self._ledger.held_out_digest)
        done = self._ledger.done_count
        self._windows_done = sum(
            _windows_of(one, self._settings) for one in read_entries(folder) if one.stage == "done"
        )
        if undone:
            text = f"{undone} files were done and are not in the newest checkpoint: they come again"
            self._warn(text)
        if step:
            self._say(f"going on after step {step} and {done} files: the checkpoint is verified")

    def _learn_from(self, entry: Entry) -> None:
        """All that is still to be done for a file."""
        is_trained = entry.last_step <= self._state.step and not self._state.owes_evaluation
        if entry.stage == "ready" and is_trained:
            self._finish(entry)
            return
        if not self._is_tokenized(entry):
            return
        self._keep_held_out(entry)
        try:
            ready, windows = self._count(entry)
        except UsageError as reason:  # shorter than a window
            self._fail(entry, reason.problem)
            return
        if windows is not None:
            self._train(ready, windows)
        self._finish(ready)
        gc.collect()
        give_back()

    def _is_tokenized(self, entry: Entry) -> bool:
        """Whether its shards stand now; else it has failed, or was released."""
        begun = entry.stage == "ready" and self._state.step > entry.first_step
        why_not = self._shards.make(entry, begun=begun)
        if isinstance(why_not, Refused):
            self._fail(entry, why_not.reason)
        elif why_not is not None:
            self._release(entry, why_not.reason)
        return why_not is None

    def _keep_held_out(self, entry: Entry) -> None:
        """Keep a validation set, unless there is one."""
        if self._ledger.held_out_digest is not None:
            return
        run, shards = self._run.folder, self._shards.shards_of(entry)
        digest = keep_held_out(run, shards, self._shards.folder, self._settings)
        if digest is not None:
            self._ledger.keep_held_out(digest)
            tell_held_out(run, self._settings, digest, self._context.listen)
        elif not self._told_nothing_held_out:
            self._told_nothing_held_out = True
            tell_nothing_held_out(self._inbox.tokenize.held_out_share, self._context.listen)

    def _count(self, entry: Entry) -> tuple[Entry, TokenDataset | None]:
        """The file's windows, and its steps in the ledger; no windows where all of it is held out."""
        manifest, shards = self._shards.read(entry), self._shards.shards_of(entry)
        has_tokens = manifest.splits["train"].tokens
        windows = _open_windows(shards, self._settings) if has_tokens else None
        count = windows.window_count if windows is not None else 0
        steps = _steps_on(count, self._settings)
        if entry.stage == "taken":
            counted = replace(entry, first_step=self._state.step, steps=steps, windows=count)
            entry = self._ledger.ready(with_counts(counted, manifest))
        elif (entry.windows, entry.steps) != (count, steps):
            raise VerificationError(
                f"{printable(entry.name)} has {count} windows, and had {entry.windows} when its steps began",
                remedy="go on with the version of lowtide that began it, or pass `--restart`",
            )
        self._say(describe_entry(entry))
        return entry, windows

    def _train(self, entry: Entry, windows: TokenDataset) -> None:
        """To the last step of the file, with a checkpoint there."""
        if self._state.step == entry.first_step:
            self._state = replace(self._state, loader={})  # it was the last file's
        learner = self._run.learner
        held_out = open_held_out(self._run.folder, self._settings, self._ledger.held_out_digest)
        settings = _settings_of_file(self._settings, entry, windows)
        loop = Loop(
            settings,
            learner.model,
            learner.optimizer,
            (windows, held_out),
            self._state,
            self._context,
            windows_before=self._windows_done,
        )
        try:
            self._state = loop.run()
        finally:
            for dataset in (windows, held_out):
                if dataset is not None:
                    dataset.close()
        self._settings = replace(self._settings, micro_batch=loop.settings.micro_batch)
        self._pace = loop.pace

    def _finish(self, entry: Entry) -> None:
        self._shards.remove(entry)
        self._ledger.finish(entry)
        self._windows_done += _windows_of(entry, self._settings)
        self._say(f"{entry.name} is done after step {entry.last_step}")

    def _fail(self, entry: Entry, reason: str) -> None:
        self._shards.remove(entry)
        self._ledger.fail(entry, reason)
        self._warn(f"{entry.name} has failed and is left out: {reason}")

    def _release(self, entry: Entry, reason: str) -> None:
        self._shards.remove(entry)
        self._ledger.release(entry, reason)
        self._warn(f"{entry.name}: {reason}; it is looked at again later")

    def _wait(self) -> None:
        """For the next look. A stop is heard meanwhile."""
        if not self._told_waiting and not self._intake.seen.settling:
            self._told_waiting = True
            self._say(
                f"waiting for files in {self._inbox.folder}, with a look every {LOOK_SECONDS:.0f} s; a file "
                f"called .stop in {self._run.folder} ends it"
            )
        until = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < until:
            time.sleep(_NAP_SECONDS)
            self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        asked = self._why_stop()
        if asked is None:
            return
        kind = InterruptedRun if asked.reason == "interrupted" else StoppedError
        raise kind(
            f"stopped after step {self._state.step} and {self._ledger.done_count} files: {asked.sentence}",
            remedy=asked.remedy,
        )

    def _say(self, text: str) -> None:
        self._context.listen(Note(text=f"inbox: {printable(text)}"))

    def _warn(self, text: str) -> None:
        self._context.listen(Note(text=f"inbox: {printable(text)}", level="warning"))


@dataclass(slots=True)
class _Remembered:
    """A stop that was asked for once stays asked for: the file that asks is consumed by the first answer."""

    ask: Callable[[], WhyStop]
    answer: WhyStop = None

    def __call__(self) -> WhyStop:
        if self.answer is None:
            self.answer = self.ask()
        return self.answer


def _settings_of_file(
    settings: TrainSettings, entry: Entry, windows: TokenDataset
) -> TrainSettings:
    """The run's own, up to the file's last step. A sample is written where one is due, not for every file."""
    every = settings.sample_every
    due = every and entry.last_step // every > entry.first_step // every
    return replace(
        settings,
        steps=entry.last_step,
        data=windows.settings.path,
        epochs=settings.epochs or 1.0,
        sample_every=every if due else 0,
    )


def _steps_on(windows: int, settings: TrainSettings) -> int:
    if not windows:
        return 0
    per_step = settings.windows_per_step
    return steps_for(settings.epochs or 1.0, window_count=windows, windows_per_step=per_step)


def _windows_of(entry: Entry, settings: TrainSettings) -> int:
    """Number of sequences this file is trained on, over all epochs."""
    if not entry.steps:
        return 0
    return windows_for(settings.epochs or 1.0, window_count=entry.windows)


def _open_windows(shards: Path, settings: TrainSettings) -> TokenDataset:
    return TokenDataset(
        shards, settings.split, settings.shape.context, settings.seed, windows=settings.windows
    )


def _stream_in(folder: Path) -> JsonObject | None:
    """What a run that stands in the folder learns from."""
    return read_run_record(folder).stream if (folder / RUN_NAME).exists() else None


def _forget_files(folder: Path) -> None:
    """A run that begins anew knows of no file; nothing was learnt from those that are forgotten."""
    for path in (*(folder / name for name in OWN_NAMES), folder / WORK_FOLDER / WORK_NAME):
        with storage_errors(path):
            remove_path(path)
