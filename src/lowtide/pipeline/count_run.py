"""The moving parts of counting: threads with a table each, runs on disk, a cursor; stored and found again."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from lowtide.errors import ReservedTextError
from lowtide.pipeline.held_out_text import HeldOutText
from lowtide.pipeline.job import Counts, add_block
from lowtide.pipeline.train_job import CountProgress, store_count_progress
from lowtide.pipeline.train_prepare import TrainPrepared
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.separators import MARKER
from lowtide.source.stream import Block, Cursor
from lowtide.storage.publish import storage_errors, sync_folder
from lowtide.tokenizer.count_words import WordCounter
from lowtide.tokenizer.word_runs import MOST_RUNS, RunRecord, WordTotals, check_run, merge_runs
from lowtide.units import format_bytes

_RUN_SUFFIX = ".words"
WORDS_NAME = f"all{_RUN_SUFFIX}"


class CountRun:
    """Takes blocks in order and counts their words. Between two blocks it can be stored.

    A checkpoint writes the tables out as runs, so a crash costs what was counted since the last one.
    """

    def __init__(self, folder: Path, prepared: TrainPrepared, progress: CountProgress) -> None:
        self.folder = folder
        self.cursor = progress.cursor
        self.partly_read = progress.partly_read
        self.done_bytes = progress.done_bytes
        self.counts = progress.counts
        self.progress = progress
        """The last checkpoint."""
        self._work = folder / WORK_FOLDER
        self._prepared = prepared
        self._runs = list(progress.runs)
        self._next_run = progress.next_run
        self._held_out = HeldOutText(
            self._work,
            fraction=prepared.settings.val,
            delimiter=prepared.read.delimiter,
            is_open=progress.held_out_open,
            kept_bytes=progress.held_out_bytes,
        )
        self._whole = True
        self._lock = threading.Lock()
        self._counters: list[WordCounter] = []
        self._idle: SimpleQueue[WordCounter] = SimpleQueue()
        self._waiting: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(prepared.allowances.workers, thread_name_prefix="count")

    @classmethod
    def start(cls, folder: Path, prepared: TrainPrepared) -> CountRun:
        """Begin at the first byte of the first input, with a checkpoint of nothing."""
        nothing = CountProgress(
            cursor=Cursor(file=0, position=0), done_bytes=0, counts=Counts(), runs=(), next_run=0
        )
        store_count_progress(folder, nothing)
        return cls.resume(folder, prepared, nothing)

    @classmethod
    def resume(cls, folder: Path, prepared: TrainPrepared, progress: CountProgress) -> CountRun:
        """Go on from a checkpoint: the runs that stand are read and compared with their digests first."""
        for record in (*progress.runs, *filter(None, [progress.words])):
            check_run(folder / WORK_FOLDER, record)
        run = cls(folder, prepared, progress)
        run._remove_other_runs()
        return run

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted that would be worth keeping."""
        totals = self.progress.totals
        return not self.counts.text_bytes or (totals is not None and not totals.words)

    @property
    def is_finished(self) -> bool:
        """Whether all words are counted."""
        return self.progress.words is not None

    @property
    def in_words(self) -> str:
        """How far it has come."""
        return f"{format_bytes(self.counts.text_bytes)} of text"

    def take(self, block: Block) -> bool:
        """Have a block counted; True when a checkpoint is due because there are many runs."""
        self._make_counters()
        self._refuse_marker(block)
        text = self._held_out.leave_out(block, continues=self.cursor.within > 0)
        is_large = len(text) > 4 * self._prepared.allowances.block_bytes
        self._wait(0 if is_large else self._prepared.allowances.workers)
        self._waiting.append(self._pool.submit(self._count, text))
        self.cursor = block.after
        self.partly_read = block.partly_read
        self.done_bytes = block.input_done_bytes
        self.counts = add_block(self.counts, block, tokens=0)
        return len(self._runs) >= MOST_RUNS

    def checkpoint(self) -> None:
        """Everything so far survives from here on: tables written as runs, progress stored."""
        self._wait(0)
        if not self._whole:
            return  # a block was counted in parts only: the checkpoint before it stays the one to go on from
        self._spill_all()
        if len(self._runs) >= MOST_RUNS:
            record, _ = merge_runs(self._work, self._runs, self._new_name())
            self._runs = [record]
        self._store()

    def finish(self) -> None:
        """All words in one run; the tables' memory is free afterwards."""
        self._wait(0)
        self._spill_all()
        self.close()
        words, totals = merge_runs(self._work, self._runs, WORDS_NAME)
        self._runs = []
        self._store(words=words, totals=totals)

    def renew(self) -> None:
        """Tables have a fixed size: there is nothing to give back."""

    def take_apart_bytes(self) -> int:
        """Words are counted in this process."""
        return 0

    def close(self) -> None:
        """Let go of threads, tables and files."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()
        for counter in self._counters:
            counter.close()
        self._counters = []
        self._held_out.close()

    def _make_counters(self) -> None:
        """Late: a run whose input cannot be read asks for no memory."""
        if self._counters:
            return
        allowances = self._prepared.allowances
        for _ in range(allowances.workers):
            counter = WordCounter(self._prepared.rules, allowance_bytes=allowances.table_bytes)
            self._counters.append(counter)
            self._idle.put(counter)

    def _refuse_marker(self, block: Block) -> None:
        """The private mark between documents may not stand in one. It begins with a NUL, which is rare."""
        if self._prepared.read.delimiter != MARKER:
            return
        text = block.text
        if text.count(b"\0") != block.document_count and text.count(MARKER) != block.document_count:
            raise ReservedTextError(
                f"a text contains {MARKER!r}, which lowtide puts between documents",
                remedy="remove these bytes from the text; no other text is reserved",
                text=MARKER,
            )

    def _count(self, text: bytes) -> None:
        counter = self._idle.get()
        try:
            at = 0
            while (at := counter.count(text, at)) < len(text):
                self._spill(counter)
        except BaseException:
            self._whole = False
            raise
        finally:
            self._idle.put(counter)

    def _wait(self, most: int) -> None:
        """Until at most so many blocks are under way."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _new_name(self) -> str:
        with self._lock:
            self._next_run += 1
            return f"{self._next_run:06}{_RUN_SUFFIX}"

    def _spill(self, counter: WordCounter) -> None:
        record = counter.spill(self._work / self._new_name())
        with self._lock:
            self._runs.append(record)

    def _spill_all(self) -> None:
        for counter in self._counters:
            if counter.distinct_words:
                self._spill(counter)

    def _store(self, words: RunRecord | None = None, totals: WordTotals | None = None) -> None:
        progress = CountProgress(
            cursor=self.cursor,
            partly_read=self.partly_read,
            done_bytes=self.done_bytes,
            counts=self.counts,
            runs=tuple(self._runs),
            next_run=self._next_run,
            held_out_open=self._held_out.is_open,
            held_out_bytes=self._held_out.sync(),
            words=words,
            totals=totals,
        )
        store_count_progress(self.folder, progress)
        self.progress = progress
        self._remove_other_runs()

    def _remove_other_runs(self) -> None:
        """Runs that no checkpoint names: merged into others, or written after it."""
        named = {record.name for record in self._runs} | {WORDS_NAME}
        with storage_errors(self._work):
            for path in self._work.glob(f"*{_RUN_SUFFIX}"):
                if path.name not in named:
                    path.unlink()
        sync_folder(self._work)
