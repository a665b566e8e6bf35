"""The work of `train-tokenizer`: threads count words in tables; then merges are learned and files written.

blocks → tables → sorted words → checkpoint (`counting.json`) → merges → files, and at the end the manifest
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from lowtide.errors import DataError, ReservedTextError
from lowtide.memory.allocator import give_back
from lowtide.settings import TokenizerSettings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.find_place import naming_places
from lowtide.source.separators import MARKER
from lowtide.source.stream import Block, Cursor, PartlyRead, read_blocks
from lowtide.stages.folder import TOKENIZER
from lowtide.stages.held_out_text import HeldOutText
from lowtide.stages.job import Counts, JobInput, add_block, store_record
from lowtide.stages.learn_run import Learning, learn
from lowtide.stages.measure_tokenizer import Comparison, MeasuredText, NotCompared, choose_text
from lowtide.stages.plan_tokenizer import TokenizerPlan
from lowtide.stages.read_inputs import reading_inputs
from lowtide.stages.tokenizer_files import (
    OutputFile,
    TokenizerManifest,
    make_tokenizer_manifest,
    write_picture,
    write_run_record,
    write_vocabulary,
)
from lowtide.stages.watch_run import Watch
from lowtide.storage.publish import storage_errors, sync_folder
from lowtide.tokenizer.byte_pair_files import tokenizer_json
from lowtide.tokenizer.count_words import WordCounter
from lowtide.tokenizer.vocabulary import from_json, load_vocabulary
from lowtide.tokenizer.word_runs import MOST_RUNS, RunRecord, WordTotals, check_run, merge_runs
from lowtide.units import format_bytes

_RUN_SUFFIX = ".words"
WORDS_NAME = f"all{_RUN_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerJob:
    """Everything that decides the vocabularies."""

    version: int = 1
    settings: TokenizerSettings
    inputs: tuple[JobInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountProgress:
    """A checkpoint: counting that resumes from it comes to the same words."""

    cursor: Cursor
    done_bytes: int
    counts: Counts
    runs: tuple[RunRecord, ...]
    next_run: int
    held_out_open: bool = False
    """Whether the document at the cursor is held out."""
    held_out_bytes: int = 0
    """Bytes of held-out text that are kept to measure the tokenizer on."""
    words: RunRecord | None = None
    """All words, once everything is counted."""
    totals: WordTotals | None = None
    partly_read: PartlyRead | None = None
    """The text before the cursor of the file it lies in; None at a file's start, and in older checkpoints."""

    @property
    def is_empty(self) -> bool:
        """Whether no text is counted yet."""
        return not self.counts.text_bytes


class TokenizerRun:
    """Counts the words of blocks, then learns merges. After each block a checkpoint can be taken.

    A checkpoint writes the tables out as sorted words. Another one is taken when everything is counted;
    learning takes seconds, and is done again after a crash.
    """

    def __init__(
        self, folder: Path, prepared: TokenizerPlan, job: TokenizerJob, at: CountProgress | None
    ) -> None:
        """Begin at a checkpoint, after its files are verified, or at the first input."""
        progress = at or CountProgress(
            cursor=Cursor(file=0, position=0), done_bytes=0, counts=Counts(), runs=(), next_run=0
        )
        self.folder = folder
        self._work = folder / WORK_FOLDER
        if at is None:
            store_record(self._work / TOKENIZER.progress_name, progress)
        for record in (*progress.runs, *filter(None, [progress.words])):
            check_run(self._work, record)
        self.cursor = progress.cursor
        self.partly_read = progress.partly_read
        self.done_bytes = progress.done_bytes
        self.counts = progress.counts
        self.learning: Learning | None = None
        self.comparison: Comparison | NotCompared | None = None
        self._progress = progress
        """The last checkpoint."""
        self._prepared = prepared
        self._job = job
        self._files: list[OutputFile] = []
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
        self._remove_other_runs()

    @property
    def is_empty(self) -> bool:
        """Whether no word is counted yet."""
        totals = self._progress.totals
        return not self.counts.text_bytes or (totals is not None and not totals.words)

    @property
    def in_words(self) -> str:
        """How far it has come."""
        return f"{format_bytes(self.counts.text_bytes)} of text"

    def work(self, watch: Watch) -> None:
        """Count, learn, write and measure."""
        if self._progress.words is None:
            with reading_inputs(self, self._prepared, self._job, TOKENIZER):
                self._count_all(watch)
        self._refuse_nothing()
        self._learn(watch)

    def _count_all(self, watch: Watch) -> None:
        inputs, read = self._prepared.inputs, self._prepared.read
        for block in read_blocks(inputs, read, start=self.cursor, partly_read=self.partly_read):
            with naming_places(inputs, read, lambda: self.cursor):
                due = self.take(block)
            watch.after_block(checkpoint_is_due=due)
        self.finish()
        watch.after_all()

    def _refuse_nothing(self) -> None:
        """DataError if there is no word to learn from."""
        progress, val = self._progress, self._prepared.settings.val
        if progress.totals and progress.totals.words:
            return
        if progress.held_out_bytes:
            raise DataError(
                f"all {self.counts.documents} documents are held out: val is {val}",
                remedy="name the `--separator` that ends documents, or pass a smaller share",
                setting="val",
            )
        if self.counts.bad_count:
            raise DataError(
                f"all text was left out as bad text ({self.counts.bad_count} places)",
                remedy="pass `--bad-text replace`, or other files",
            )
        raise DataError(
            "the inputs hold no text at all",
            remedy="check the paths and `--column` or `--separator`",
        )

    def _learn(self, watch: Watch) -> None:
        """Learn the merges, then write and measure the vocabularies one at a time, for memory's sake."""
        progress, settings = self._progress, self._prepared.settings
        assert progress.words is not None, "counting is not finished"
        assert progress.totals is not None, "counting is not finished"
        give_back()
        learning = learn(
            self.folder,
            progress.words,
            progress.totals,
            settings,
            allowance_bytes=self._prepared.allowances.merge_bytes,
            after_slice=lambda merges: watch.after_slice(merges, settings.most_merges),
        )
        merges = len(learning.steps)

        def look() -> None:
            watch.after_slice(merges, merges)

        text = choose_text(self.folder, self._prepared, held_out_bytes=progress.held_out_bytes)
        rates = []
        for size in settings.vocab_size:
            pairs = learning.byte_pairs(size)
            self._files += write_vocabulary(self.folder, settings, size, pairs)
            look()
            if isinstance(text, MeasuredText):
                rates.append(text.measure(from_json(tokenizer_json(pairs), name="learnt"), look))
        self._files.append(write_picture(self.folder, learning))
        comparison: Comparison | NotCompared
        if isinstance(text, NotCompared):
            comparison = text
        else:
            comparison = Comparison(
                text=text.text,
                text_bytes=text.text_bytes,
                learnt=tuple(rates),
                gpt2=text.measure(load_vocabulary("gpt2"), look),
            )
        self.learning, self.comparison = learning, comparison
        write_run_record(
            self.folder,
            self._prepared,
            comparison,
            bad=self.counts.bad,
            seconds=watch.elapsed_seconds,
            peak_private_bytes=watch.peak_private_bytes,
        )

    def seal(self) -> TokenizerManifest:
        """Write the manifest; the folder is finished from here on."""
        assert self.learning is not None, "merges are not learnt"
        manifest = make_tokenizer_manifest(
            self._prepared.settings, self._job.inputs, self.counts, self.learning, self._files
        )
        store_record(self.folder / TOKENIZER.manifest_name, manifest)
        return manifest

    def take(self, block: Block) -> bool:
        """Have a block counted. True if a checkpoint is due because there are many files of sorted words."""
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
        """Write the tables out as sorted words, and store how far the input is read."""
        self._wait(0)
        if not self._whole:
            return  # a block was counted only in part: the checkpoint before it stays the newest
        self._spill_all()
        if len(self._runs) >= MOST_RUNS:
            record, _ = merge_runs(self._work, self._runs, self._new_name())
            self._runs = [record]
        self._store()

    def finish(self) -> None:
        """Merge all words into one file, and free the tables."""
        self._wait(0)
        self._spill_all()
        self.close()
        words, totals = merge_runs(self._work, self._runs, WORDS_NAME)
        self._runs = []
        self._store(words=words, totals=totals)

    def give_back(self) -> None:
        """Tables have a fixed size: there is nothing to give back."""

    def take_child_bytes(self) -> int:
        """Words are counted in this process."""
        return 0

    def close(self) -> None:
        """End the threads, free the tables, close the files."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()
        for counter in self._counters:
            counter.close()
        self._counters = []
        self._held_out.close()

    def _make_counters(self) -> None:
        """Make the tables, late: a run whose input cannot be read takes no memory."""
        if self._counters:
            return
        allowances = self._prepared.allowances
        for _ in range(allowances.workers):
            counter = WordCounter(self._prepared.rules, allowance_bytes=allowances.table_bytes)
            self._counters.append(counter)
            self._idle.put(counter)

    def _refuse_marker(self, block: Block) -> None:
        """ReservedTextError for a document with the private mark that stands between documents."""
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
        """Wait until at most `most` blocks are being counted."""
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
        store_record(self._work / TOKENIZER.progress_name, progress)
        self._progress = progress
        self._remove_other_runs()

    def _remove_other_runs(self) -> None:
        """Remove sorted words that no checkpoint names: merged into others, or written after it."""
        named = {record.name for record in self._runs} | {WORDS_NAME}
        with storage_errors(self._work):
            for path in self._work.glob(f"*{_RUN_SUFFIX}"):
                if path.name not in named:
                    path.unlink()
        sync_folder(self._work)
