"""`train --inbox`: files appear, are tokenized, are trained on, and are never seen again.

    look → take → tokenize in a child → count steps → train → checkpoint → done

Where a killed run stands follows from the ledger and the newest checkpoint: a file is done when a checkpoint
holds all of its steps, and is resumed from a checkpoint that stands between them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError, VerificationError
from lowtide.events import Listener, Note, ignore
from lowtide.memory.allocator import give_back
from lowtide.memory.budget import Budget
from lowtide.shards.layout import WORK_FOLDER
from lowtide.stages.folder import resuming_after
from lowtide.stages.follow_run import follow_run
from lowtide.stages.inbox.file_shards import WORK_NAME, FileShards
from lowtide.stages.inbox.held_out import (
    check_held_out,
    describe_held_out,
    keep_held_out,
    no_held_out,
    open_held_out,
)
from lowtide.stages.inbox.ledger import Entry, Ledger, describe_entry, read_entries, with_counts
from lowtide.stages.inbox.look import LOOK_SECONDS, Intake
from lowtide.stages.inbox.prepare import Inbox
from lowtide.stages.inbox.tokenize_apart import Refused
from lowtide.stages.open_run import open_run
from lowtide.stages.resolve_run import ResolvedRun
from lowtide.stages.run_source import OWN_NAMES
from lowtide.stages.watch_run import ShouldStop
from lowtide.storage.publish import remove_path, storage_errors
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.data_parallel import Ranks
from lowtide.training.gpu_memory import peak_of_gpu
from lowtide.training.loop import Loop, OpenRun
from lowtide.training.pace import Pace
from lowtide.training.run_folder import RUN_NAME, read_run_record
from lowtide.training.run_results import FailedFile, InboxRun
from lowtide.training.settings import TrainSettings, steps_for, windows_for
from lowtide.training.tensorboard import Board
from lowtide.units import printable

_NAP_SECONDS = 0.1


def train_on_inbox(
    resolved: ResolvedRun,
    *,
    until_empty: bool = False,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    listen: Listener = ignore,
    should_stop: ShouldStop | None = None,
    environment: Mapping[str, str] | None = None,
    boards: Sequence[Board] = (),
) -> InboxRun:
    """Train on files as they appear, each once, until a stop is asked for or the inbox is empty.

    Raises StoppedError after a clean stop; the same call resumes, to the same weights. `environment` is what
    the processes that tokenize are started with, if not our own.
    """
    started = time.monotonic()
    folder, inbox = resolved.folder, resolved.inbox
    assert inbox is not None, "a run over an inbox"
    is_new = restart or not (folder / RUN_NAME).exists()
    is_new = is_new or read_run_record(folder).stream != inbox.source.stream
    with ExitStack() as stack:
        run = stack.enter_context(
            open_run(
                folder,
                resolved.settings,
                inbox.source,
                memory=memory,
                restart=restart,
                listen=listen,
                should_stop=should_stop,
                ranks=Ranks(),
                peak_flops=resolved.peak_flops,
            )
        )
        if is_new:
            _forget_files(folder)
        run = stack.enter_context(follow_run(run, boards=boards))
        ledger = stack.enter_context(closing(Ledger(folder)))
        work = _InboxWork(run, inbox, ledger, environment)
        work.work(until_empty=until_empty)
        return work.result(seconds=time.monotonic() - started)


class _InboxWork:
    """One run over one inbox, file after file. Holds where the run stands, and the file in hand."""

    def __init__(
        self,
        run: OpenRun,
        inbox: Inbox,
        ledger: Ledger,
        environment: Mapping[str, str] | None,
    ) -> None:
        self._run = run
        """With the settings and the state that the last file has left."""
        self._begun_at = run.state.step
        self._inbox = inbox
        self._ledger = ledger
        self._shards = FileShards(run, inbox, environment, self._tell)
        self._intake = Intake(inbox, ledger, self._tell)
        self._pace: Pace | None = None
        self._windows_done = 0
        """Trained on in files that are done, once for every epoch."""
        self._told: set[str] = set()

    def work(self, *, until_empty: bool) -> None:
        """Do all files, and wait for more unless the run ends with the last."""
        self._find_where_it_stands()
        while True:
            self._leave_if_asked()
            entry = next(iter(self._ledger.pending), None)
            entry = entry or self._intake.take(patient=not until_empty)
            if entry is not None:
                self._do(entry)
            elif until_empty and not self._intake.seen.settling:
                return
            else:
                self._wait()

    def result(self, *, seconds: float) -> InboxRun:
        """What it came to."""
        run, pace, seen = self._run, self._pace, self._intake.seen
        failed = [one for one in read_entries(run.folder) if one.stage == "failed"]
        return InboxRun(
            folder=run.folder,
            state=run.state,
            seconds=seconds,
            micro_batch=run.settings.micro_batch,
            steps=run.state.step - self._begun_at,
            done=self._ledger.done_count,
            failed=tuple(FailedFile(name=one.name, reason=one.reason) for one in failed),
            waiting=seen.settling + seen.unfinished,
            gpu_bytes=peak_of_gpu(run.device),
            train_loss=pace.mean_loss if pace else None,
            tokens_per_second=pace.tokens_per_second if pace else None,
        )

    def _find_where_it_stands(self) -> None:
        """The ledger may know more than the newest checkpoint, where somebody removed one."""
        folder, step = self._run.folder, self._run.state.step
        self._shards.clear(self._ledger.pending)
        undone = self._ledger.rewind(folder, step if find_checkpoints(folder) else -1)
        if self._ledger.held_out_digest is not None:
            check_held_out(folder, self._ledger.held_out_digest)
        self._windows_done = sum(
            self._windows_of(one) for one in read_entries(folder) if one.stage == "done"
        )
        if undone:
            text = f"{undone} files were done and are not in the newest checkpoint: they come again"
            self._tell(text, "warning")
        if step:
            self._run.listen(resuming_after(f"step {step} and {self._ledger.done_count} files"))

    def _do(self, entry: Entry) -> None:
        """All that is still to be done for a file."""
        state = self._run.state
        is_trained = entry.last_step <= state.step and not state.owes_evaluation
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
        begun = entry.stage == "ready" and self._run.state.step > entry.first_step
        why_not = self._shards.make(entry, begun=begun)
        if isinstance(why_not, Refused):
            self._fail(entry, why_not.reason)
        elif why_not is not None:
            self._shards.remove(entry)
            self._ledger.release(entry, why_not.reason)
            self._tell(f"{entry.name}: {why_not.reason}; it is looked at again later", "warning")
        return why_not is None

    def _keep_held_out(self, entry: Entry) -> None:
        """Keep a validation set, unless there is one."""
        if self._ledger.held_out_digest is not None:
            return
        run, shards = self._run, self._shards.shards_of(entry)
        digest = keep_held_out(run.folder, shards, self._shards.folder, run.settings)
        if digest is not None:
            self._ledger.keep_held_out(digest)
            run.listen(describe_held_out(run.folder, run.settings, digest))
        elif "no validation" not in self._told:
            self._told.add("no validation")
            run.listen(no_held_out(self._inbox.tokenize.held_out_share))

    def _count(self, entry: Entry) -> tuple[Entry, TokenDataset | None]:
        """The file's windows, and its steps in the ledger; no windows where all of it is held out."""
        manifest, shards, settings = (
            self._shards.read(entry),
            self._shards.shards_of(entry),
            self._run.settings,
        )
        windows, count, steps = None, 0, 0
        if manifest.splits["train"].tokens:
            windows = TokenDataset(
                shards,
                settings.split,
                settings.shape.context,
                settings.seed,
                windows=settings.windows,
            )
            count = windows.window_count
            steps = steps_for(
                settings.epochs or 1.0,
                window_count=count,
                windows_per_step=settings.windows_per_step,
            )
        if entry.stage == "taken":
            first_step = self._run.state.step
            counted = replace(entry, first_step=first_step, steps=steps, windows=count)
            entry = self._ledger.ready(with_counts(counted, manifest))
        elif (entry.windows, entry.steps) != (count, steps):
            raise VerificationError(
                f"{printable(entry.name)} has {count} windows, and had {entry.windows} when its steps began",
                remedy="resume with the version of lowtide that began it, or pass `--restart`",
            )
        self._tell(describe_entry(entry))
        return entry, windows

    def _train(self, entry: Entry, windows: TokenDataset) -> None:
        """To the last step of the file, with a checkpoint there."""
        run = self._run
        state = run.state
        if state.step == entry.first_step:
            state = replace(state, loader={})  # it was the last file's
        settings = _settings_of_file(run.settings, entry, windows)
        with ExitStack() as stack:
            stack.callback(windows.close)
            held_out = open_held_out(run.folder, run.settings, self._ledger.held_out_digest)
            if held_out is not None:
                stack.callback(held_out.close)
            loop = Loop(
                replace(run, settings=settings, state=state),
                (windows, held_out),
                windows_before=self._windows_done,
            )
            state = loop.run()
        settings = replace(run.settings, micro_batch=loop.settings.micro_batch)
        self._run = replace(run, settings=settings, state=state)
        self._pace = loop.pace

    def _finish(self, entry: Entry) -> None:
        self._shards.remove(entry)
        self._ledger.finish(entry)
        self._windows_done += self._windows_of(entry)
        self._tell(f"{entry.name} is done after step {entry.last_step}")

    def _fail(self, entry: Entry, reason: str) -> None:
        self._shards.remove(entry)
        self._ledger.fail(entry, reason)
        self._tell(f"{entry.name} has failed and is left out: {reason}", "warning")

    def _windows_of(self, entry: Entry) -> int:
        """Number of sequences this file is trained on, over all epochs."""
        epochs = self._run.settings.epochs or 1.0
        return windows_for(epochs, window_count=entry.windows) if entry.steps else 0

    def _wait(self) -> None:
        """For the next look, unless a stop is asked for."""
        if "waiting" not in self._told and not self._intake.seen.settling:
            self._told.add("waiting")
            self._tell(
                f"waiting for files in {self._inbox.folder}, with a look every {LOOK_SECONDS:.0f} s; a file "
                f"called .stop in {self._run.folder} ends it"
            )
        until = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < until:
            time.sleep(_NAP_SECONDS)
            self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        stop = self._run.why_stop()
        if stop is not None:
            done = f"after step {self._run.state.step} and {self._ledger.done_count} files"
            raise stop.error(done)

    def _tell(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        self._run.listen(Note(text=f"inbox: {printable(text)}", level=level))


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


def _forget_files(folder: Path) -> None:
    """A run that begins anew knows of no file; nothing was learnt from those that are forgotten."""
    for path in (*(folder / name for name in OWN_NAMES), folder / WORK_FOLDER / WORK_NAME):
        with storage_errors(path):
            remove_path(path)
