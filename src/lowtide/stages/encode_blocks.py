"""Encode blocks with a few threads inside an allowance; their tokens come out in the order of the blocks."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from queue import LifoQueue
from typing import NamedTuple

import numpy as np

from lowtide.errors import DataError
from lowtide.memory.allocator import give_back
from lowtide.memory.meter import private_bytes
from lowtide.settings import Placement, TooLong
from lowtide.source.arrow_memory import arrow_bytes
from lowtide.source.hold_out import held_out_documents
from lowtide.source.stream import Block
from lowtide.stages.arrange import Arranged, Flags, arrange
from lowtide.stages.fit_examples import fit_examples
from lowtide.stages.job import ExampleCounts
from lowtide.stages.spend import COPIES_OF_TEXT, Allowances
from lowtide.tokenizer.encode import (
    EncodedBlock,
    Encoder,
    EncodeSettings,
    encoder_bytes,
    reference_bytes,
)
from lowtide.tokenizer.learnt_tokens import Lengths, find_learnt
from lowtide.tokenizer.reference_apart import (
    ReferenceApart,
    ReferenceMemoryError,
    bytes_per_text_byte,
)
from lowtide.units import MIB, format_bytes, round_up_to_mib

_LOOK_SECONDS = 0.3
"""Time between two looks for a stop while a block takes long."""
_MEASURE_SECONDS = 10.0
"""How long the memory for a refused document is measured; after that, the worst is assumed."""
_TURN_SECONDS = 0.0005
_LEAST_RENEWED_BYTES = MIB
"""An encoder that has encoded less than this cannot be what fills memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRecipe:
    """What is done to examples after they are encoded."""

    lengths: Lengths | None
    """The bytes of each token, to find the targets; None: all tokens are targets."""
    context: int
    too_long: TooLong


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done to every block."""

    encode: EncodeSettings
    placement: Placement
    end_of_text: int
    width: np.dtype[np.unsignedinteger]
    val_fraction: float
    """Share held out by hash; 0 when the split is by position or there is none."""
    examples: ExampleRecipe | None = None
    """None for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedBlock:
    """A block, its tokens, and which of its documents are held out by hash."""

    block: Block
    arranged: Arranged
    held_out: Flags
    continues: bool
    examples: ExampleCounts | None = None
    unknown_tokens: int = 0
    """Tokens that stand for text for which the vocabulary has none."""


@dataclass(slots=True)
class _Worker:
    """An encoder, made with its first block, and how much it has encoded since it was renewed."""

    encoder: Encoder | None = None
    generation: int = 0
    encoded_bytes: int = 0


class _Pending(NamedTuple):
    """A block that was given to a thread, and its future."""

    block: Block
    continues: bool
    future: Future[ArrangedBlock]


class BlockEncoder:
    """Threads, each with an encoder.

    Encoders keep the words they see, so each is renewed after the amount of text that usually fills its share
    of the budget. If memory grows too far before that, the encoder that has seen the most text is renewed: they
    take turns, and renewals (0.1 s) stay rare.
    """

    def __init__(
        self,
        recipe: Recipe,
        allowances: Allowances,
        first: Encoder,
        *,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """`while_waiting` is called every 0.3 s while a block takes long; errors leave `encode_in_order`."""
        self._while_waiting = while_waiting
        self._unfinished: set[Future[ArrangedBlock]] = set()
        self._recipe = recipe
        self._allowances = allowances
        self._generation = 0
        self._allowance_bytes = allowances.reference_allowance_bytes
        self._ended_apart_bytes = 0
        first.set_allowance(self._allowance_bytes)
        self._workers = [*(_Worker() for _ in range(allowances.workers - 1)), _Worker(first)]
        # the worker that was used last is used next, so that a small job makes no second encoder
        self._idle: LifoQueue[_Worker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._bytes_when_made = _own_bytes()

    def encode_in_order(
        self, blocks: Iterator[Block], *, continues: bool
    ) -> Generator[ArrangedBlock, None, None]:
        """Yield the blocks in order. At a time, two more than there are workers are being encoded or wait.

        `continues` says whether the first block opens inside a document.
        """
        with ExitStack() as stack:
            pool = ThreadPoolExecutor(self._allowances.workers, thread_name_prefix="encode")
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            if self._recipe.examples:
                _shorten_turns(stack)
            stack.callback(self._abandon)
            waiting: deque[_Pending] = deque()
            for block in blocks:
                if len(block.text) > 4 * self._allowances.block_bytes:
                    while waiting:
                        yield self._take(waiting, pool)
                    yield self._encode_alone(block, continues, pool)
                else:
                    future = self._submit(pool, block, continues)
                    waiting.append(_Pending(block, continues, future))
                continues = block.after.within > 0
                if len(waiting) > self._allowances.workers + 1:
                    yield self._take(waiting, pool)
            while waiting:
                yield self._take(waiting, pool)

    def _submit(
        self, pool: ThreadPoolExecutor, block: Block, continues: bool
    ) -> Future[ArrangedBlock]:
        future = pool.submit(self._encode, block, continues)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _abandon(self) -> None:
        """End the work on blocks that nobody will take, even if it waits for the reference."""
        for future in list(self._unfinished):
            future.cancel()
        while unfinished := list(self._unfinished):
            self.close()  # again and again: between two documents a thread starts another process
            wait(unfinished, _LOOK_SECONDS)

    def renew(self) -> None:
        """Let every encoder forget its words before its next block."""
        self._generation += 1

    def close(self) -> None:
        """End the reference's processes, after `encode_in_order` is closed."""
        for worker in self._workers:
            if worker.encoder is not None:
                worker.encoder.close()

    def take_apart_bytes(self) -> int:
        """Peak memory of the reference's child processes since the last call, ended ones included."""
        ended, self._ended_apart_bytes = self._ended_apart_bytes, 0
        return max(ended, self._apart_bytes())

    def _apart_bytes(self) -> int:
        encoders = [worker.encoder for worker in self._workers]
        return sum(encoder.apart_bytes for encoder in encoders if encoder is not None)

    def _take(self, waiting: deque[_Pending], pool: ThreadPoolExecutor) -> ArrangedBlock:
        """Wait for the oldest block. If the reference ran out of memory, the block is encoded again, alone."""
        oldest = waiting.popleft()
        try:
            return self._result(oldest.future)
        except ReferenceMemoryError:
            for one in waiting:
                self._wait_for(one.future)
            return self._encode_alone(oldest.block, oldest.continues, pool)

    def _result(self, future: Future[ArrangedBlock]) -> ArrangedBlock:
        self._wait_for(future)
        return future.result()

    def _wait_for(self, future: Future[ArrangedBlock]) -> None:
        while not future.done() and not wait([future], _LOOK_SECONDS).done:
            self._while_waiting()

    def _encode_alone(
        self, block: Block, continues: bool, pool: ThreadPoolExecutor
    ) -> ArrangedBlock:
        """Encode a large block while no other is encoded, with the memory of the caches."""
        if len(block.text) > self._allowances.word_limit_bytes:
            raise self._too_large(block, pool)
        self.renew()
        self._set_reference_allowance(self._allowances.reference_alone_bytes(len(block.text)))
        try:
            return self._result(self._submit(pool, block, continues))
        except ReferenceMemoryError as cause:
            raise self._too_large(block, pool) from cause
        finally:
            self._set_reference_allowance(self._allowances.reference_allowance_bytes)

    def _set_reference_allowance(self, allowance_bytes: int) -> None:
        """End child processes that have another allowance; new ones start when they are needed."""
        if allowance_bytes != self._allowance_bytes:
            self._ended_apart_bytes = max(self._ended_apart_bytes, self._apart_bytes())
        self._allowance_bytes = allowance_bytes
        for worker in self._workers:
            if worker.encoder is not None:
                worker.encoder.set_allowance(allowance_bytes)

    def _too_large(self, block: Block, pool: ThreadPoolExecutor) -> DataError:
        limit = self._allowances.word_limit_bytes
        vocabulary = self._recipe.encode.vocabulary
        if vocabulary.plain and len(block.text) > limit:
            more = self._allowances.total_bytes * len(block.text) // limit
            return DataError(
                f"a stretch of {format_bytes(len(block.text))} has no place where it can be cut without "
                f"changing tokens, and this budget carries {format_bytes(limit)}",
                remedy=f"pass `--memory {round_up_to_mib(more)}`, or break the text with white space",
            )
        longest = max(block.text.split(self._recipe.encode.delimiter), key=len)
        return DataError(
            f"a document of {format_bytes(len(longest))} goes through the reference encoder of "
            f"{vocabulary.name} as a whole, which needs more memory than a budget of "
            f"{format_bytes(self._allowances.total_bytes)} leaves it",
            remedy=f"pass `--memory {round_up_to_mib(self._budget_for(longest, pool))}`, or cut the text into "
            "shorter documents",
        )

    def _budget_for(self, document: bytes, pool: ThreadPoolExecutor) -> int:
        """A budget that is enough for a document, measured on pieces of it."""
        allowances, settings = self._allowances, self._recipe.encode
        self._set_reference_allowance(0)  # ends all others: only the one that measures may run
        reference = ReferenceApart(
            settings.vocabulary,
            settings.special_in_text,
            settings.marks,
            allowance_bytes=allowances.spare_bytes,
        )
        measured = pool.submit(bytes_per_text_byte, document, reference)
        last = time.monotonic() + _MEASURE_SECONDS
        try:
            while not wait([measured], _LOOK_SECONDS).done:
                self._while_waiting()
                if time.monotonic() > last:
                    reference.close()
        finally:
            reference.close()
        factor = measured.result()
        fixed = (
            allowances.total_bytes - allowances.spare_bytes + reference_bytes(settings.vocabulary)
        )
        enough = fixed + len(document) * (factor + COPIES_OF_TEXT)
        return max(enough, allowances.total_bytes * 5 // 4)

    def _encode(self, block: Block, continues: bool) -> ArrangedBlock:
        worker = self._idle.get()
        try:
            encoder = self._ready(worker)
            encoded = encoder.encode(block.text, document_count=block.document_count)
            worker.encoded_bytes += len(block.text)
        finally:
            self._idle.put(worker)
        return arrange_block(block, encoded, self._recipe, continues=continues)

    def _ready(self, worker: _Worker) -> Encoder:
        """The worker's encoder, made or renewed if that is due."""
        if worker.encoder is None:
            worker.encoder = Encoder(self._recipe.encode, allowance_bytes=self._allowance_bytes)
            worker.generation = self._generation
            return worker.encoder
        due = worker.generation != self._generation
        due = due or worker.encoded_bytes > self._allowances.renew_after_bytes
        if due or (self._is_oldest(worker) and self._has_grown()):
            worker.encoder.renew(give_back)
            worker.generation, worker.encoded_bytes = self._generation, 0
        return worker.encoder

    def _is_oldest(self, worker: _Worker) -> bool:
        most_bytes = max(other.encoded_bytes for other in self._workers)
        return worker.encoded_bytes >= max(most_bytes, _LEAST_RENEWED_BYTES)

    def _has_grown(self) -> bool:
        vocabulary = self._recipe.encode.vocabulary
        made_since = sum(worker.encoder is not None for worker in self._workers) - 1
        each_bytes = encoder_bytes(vocabulary) if vocabulary.plain else 0
        fresh_bytes = self._bytes_when_made + made_since * each_bytes
        return _own_bytes() - fresh_bytes > self._allowances.growth_bytes


def _shorten_turns(stack: ExitStack) -> None:
    """Let threads take the interpreter from each other every half millisecond.

    Templates keep it busy, and an encoder needs it a dozen times a block: each time it would wait for the usual
    five milliseconds. 300,000 examples took 6 % less time.
    """
    stack.callback(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(_TURN_SECONDS)


def arrange_block(
    block: Block, encoded: EncodedBlock, recipe: Recipe, *, continues: bool
) -> ArrangedBlock:
    """The ids of a block as they will be on disk; of examples, those that fit into the context."""
    learnt = _find_flags(block, encoded, recipe.examples) if recipe.examples else None
    arranged = arrange(
        encoded,
        placement=recipe.placement,
        end_of_text=recipe.end_of_text,
        width=recipe.width,
        continues=continues,
        learnt=learnt,
    )
    held_out = held_out_documents(
        block.text, delimiter=recipe.encode.delimiter, fraction=recipe.val_fraction
    )
    unknown = recipe.encode.vocabulary.unknown
    made = ArrangedBlock(
        block=block,
        arranged=arranged,
        held_out=held_out,
        continues=continues,
        unknown_tokens=0 if unknown is None else int(np.count_nonzero(encoded.ids == unknown)),
    )
    return _fit(made, recipe.examples) if recipe.examples else made


def _find_flags(block: Block, encoded: EncodedBlock, recipe: ExampleRecipe) -> Flags:
    """A flag for each id of a block of examples: whether it is a target."""
    if recipe.lengths is not None:
        return find_learnt(
            encoded, block.learnt, lengths=recipe.lengths, text_bytes=len(block.text)
        )
    everything = np.ones(len(encoded.ids), dtype=np.bool_)
    everything[encoded.ends] = False
    return everything


def _fit(made: ArrangedBlock, recipe: ExampleRecipe) -> ArrangedBlock:
    """The block with nothing longer than the context. Each piece goes to the split of its whole example."""
    assert not made.continues, "an example lies in one block"
    assert not made.block.after.within, "an example lies in one block"
    fitted = fit_examples(made.arranged, context=recipe.context, policy=recipe.too_long)
    assert fitted.arranged.learnt is not None
    return replace(
        made,
        arranged=fitted.arranged,
        held_out=np.append(made.held_out[fitted.origin], made.held_out[-1]),
        examples=ExampleCounts(
            examples=fitted.examples,
            learnt_tokens=int(np.count_nonzero(fitted.arranged.learnt)),
            too_long=fitted.too_long,
            dropped=fitted.dropped,
        ),
    )


def _own_bytes() -> int:
    """Private memory without what Arrow holds for the reader."""
    return private_bytes() - arrow_bytes()
