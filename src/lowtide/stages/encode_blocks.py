"""Blocks in, runs of tokens out, in the same order, encoded by a few threads inside an allowance."""

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
from lowtide.stages.arrange import Flags, Run, arrange
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
"""How often a stop is looked for while a block takes long."""
_MEASURE_SECONDS = 10.0
"""How long the memory for a refused document is measured; beyond, the worst is assumed."""
_TURN_SECONDS = 0.0005
_LEAST_RENEWED_BYTES = MIB
"""An encoder that has met less than this cannot be what fills memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRecipe:
    """What is done to examples beside."""

    lengths: Lengths | None
    """The bytes of each token, to find those that are learnt; None: all are."""
    context: int
    too_long: TooLong


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done to every block; the same for all of them."""

    encode: EncodeSettings
    placement: Placement
    end_of_text: int
    width: np.dtype[np.unsignedinteger]
    val_fraction: float
    """Share held out by hash; 0 when the split is by position or there is none."""
    examples: ExampleRecipe | None = None
    """None for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRun:
    """A block, the tokens it became, and which of its documents are held out by hash."""

    block: Block
    run: Run
    held_out: Flags
    continues: bool
    examples: ExampleCounts | None = None
    unknown_tokens: int = 0
    """Tokens that stand for text which has no token."""


@dataclass(slots=True)
class _Seat:
    """One encoder, made with its first block, and what it has done since it was renewed."""

    encoder: Encoder | None = None
    generation: int = 0
    encoded_bytes: int = 0


class _UnderWay(NamedTuple):
    """A block that was given to a thread, and its future."""

    block: Block
    continues: bool
    future: Future[EncodedRun]


class BlockEncoder:
    """The threads and their encoders.

    Encoders grow with the words they meet, so each is renewed after as much text as its share of the budget
    usually carries. When measured growth passes the line before that, the one that has met the most text is
    renewed: they take turns, and a renewal (0.1 s) stays rare.
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
        self._unfinished: set[Future[EncodedRun]] = set()
        self._recipe = recipe
        self._allowances = allowances
        self._generation = 0
        self._allowance_bytes = allowances.reference_allowance_bytes
        self._ended_apart_bytes = 0
        first.set_allowance(self._allowance_bytes)
        self._seats = [*(_Seat() for _ in range(allowances.workers - 1)), _Seat(first)]
        # the seat that worked last works next, so that a small job makes no encoder beside the first
        self._idle: LifoQueue[_Seat] = LifoQueue()
        for seat in self._seats:
            self._idle.put(seat)
        self._bytes_when_made = _own_bytes()

    def encode_in_order(
        self, blocks: Iterator[Block], *, continues: bool
    ) -> Generator[EncodedRun, None, None]:
        """One run for each block, in order; two blocks more than there are workers are under way.

        `continues` says whether the first block opens inside a document.
        """
        with ExitStack() as stack:
            pool = ThreadPoolExecutor(self._allowances.workers, thread_name_prefix="encode")
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            if self._recipe.examples:
                _shorten_turns(stack)
            stack.callback(self._abandon)
            waiting: deque[_UnderWay] = deque()
            for block in blocks:
                if self._is_large(block):
                    while waiting:
                        yield self._take(waiting, pool)
                    yield self._encode_alone(block, continues, pool)
                else:
                    future = self._submit(pool, block, continues)
                    waiting.append(_UnderWay(block, continues, future))
                continues = block.after.within > 0
                if len(waiting) > self._allowances.workers + 1:
                    yield self._take(waiting, pool)
            while waiting:
                yield self._take(waiting, pool)

    def _submit(
        self, pool: ThreadPoolExecutor, block: Block, continues: bool
    ) -> Future[EncodedRun]:
        future = pool.submit(self._encode, block, continues)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def _abandon(self) -> None:
        """End the work on blocks that nobody takes any more, even if it waits for the reference."""
        for future in list(self._unfinished):
            future.cancel()
        while unfinished := list(self._unfinished):
            self.close()  # again and again: between two documents a thread starts another process
            wait(unfinished, _LOOK_SECONDS)

    def renew(self) -> None:
        """Have every encoder forget its words before it takes another block."""
        self._generation += 1

    def close(self) -> None:
        """End the reference's processes. The runs of `encode_in_order` are closed first."""
        for seat in self._seats:
            if seat.encoder is not None:
                seat.encoder.close()

    def take_apart_bytes(self) -> int:
        """Peak memory of the reference's children since the last call, ended ones included."""
        ended, self._ended_apart_bytes = self._ended_apart_bytes, 0
        return max(ended, self._apart_bytes())

    def _apart_bytes(self) -> int:
        encoders = [seat.encoder for seat in self._seats]
        return sum(encoder.apart_bytes for encoder in encoders if encoder is not None)

    def _is_large(self, block: Block) -> bool:
        return len(block.text) > 4 * self._allowances.block_bytes

    def _take(self, waiting: deque[_UnderWay], pool: ThreadPoolExecutor) -> EncodedRun:
        """The oldest block's run. If the reference ran out of memory, the block is encoded again, alone."""
        oldest = waiting.popleft()
        try:
            return self._result(oldest.future)
        except ReferenceMemoryError:
            for one in waiting:
                self._wait_for(one.future)
            return self._encode_alone(oldest.block, oldest.continues, pool)

    def _result(self, future: Future[EncodedRun]) -> EncodedRun:
        self._wait_for(future)
        return future.result()

    def _wait_for(self, future: Future[EncodedRun]) -> None:
        while not future.done() and not wait([future], _LOOK_SECONDS).done:
            self._while_waiting()

    def _encode_alone(self, block: Block, continues: bool, pool: ThreadPoolExecutor) -> EncodedRun:
        """A large block, while no other is encoded, with all the memory that caches would take."""
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
        """End the children that have another allowance; new ones start when they are needed."""
        if allowance_bytes != self._allowance_bytes:
            self._ended_apart_bytes = max(self._ended_apart_bytes, self._apart_bytes())
        self._allowance_bytes = allowance_bytes
        for seat in self._seats:
            if seat.encoder is not None:
                seat.encoder.set_allowance(allowance_bytes)

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
        """A budget that is enough for a document, from the memory that the reference takes for pieces of it."""
        allowances, settings = self._allowances, self._recipe.encode
        self._set_reference_allowance(0)  # there must be none beside the one that measures
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

    def _encode(self, block: Block, continues: bool) -> EncodedRun:
        seat = self._idle.get()
        try:
            encoder = self._ready(seat)
            encoded = encoder.encode(block.text, document_count=block.document_count)
            seat.encoded_bytes += len(block.text)
        finally:
            self._idle.put(seat)
        return make_run(block, encoded, self._recipe, continues=continues)

    def _ready(self, seat: _Seat) -> Encoder:
        """The seat's encoder. It is made or renewed here, before the block, so that memory is free in time."""
        if seat.encoder is None:
            seat.encoder = Encoder(self._recipe.encode, allowance_bytes=self._allowance_bytes)
            seat.generation = self._generation
            return seat.encoder
        due = seat.generation != self._generation
        due = due or seat.encoded_bytes > self._allowances.renew_after_bytes
        if due or (self._is_oldest(seat) and self._has_grown()):
            seat.encoder.renew(give_back)
            seat.generation, seat.encoded_bytes = self._generation, 0
        return seat.encoder

    def _is_oldest(self, seat: _Seat) -> bool:
        most_bytes = max(other.encoded_bytes for other in self._seats)
        return seat.encoded_bytes >= max(most_bytes, _LEAST_RENEWED_BYTES)

    def _has_grown(self) -> bool:
        vocabulary = self._recipe.encode.vocabulary
        made_since = sum(seat.encoder is not None for seat in self._seats) - 1
        each_bytes = encoder_bytes(vocabulary) if vocabulary.plain else 0
        fresh_bytes = self._bytes_when_made + made_since * each_bytes
        return _own_bytes() - fresh_bytes > self._allowances.growth_bytes


def _shorten_turns(stack: ExitStack) -> None:
    """Templates keep the interpreter busy, and an encoder asks for it a dozen times a block: each time it would
    wait for the five milliseconds of a turn. Half a millisecond made 300,000 examples 6 % faster.
    """
    stack.callback(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(_TURN_SECONDS)


def make_run(block: Block, encoded: EncodedBlock, recipe: Recipe, *, continues: bool) -> EncodedRun:
    """The ids of a block as they will lie on disk; of examples, those that fit."""
    learnt = find_flags(block, encoded, recipe.examples) if recipe.examples else None
    run = arrange(
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
    made = EncodedRun(
        block=block,
        run=run,
        held_out=held_out,
        continues=continues,
        unknown_tokens=0 if unknown is None else int(np.count_nonzero(encoded.ids == unknown)),
    )
    return _fit(made, recipe.examples) if recipe.examples else made


def find_flags(block: Block, encoded: EncodedBlock, recipe: ExampleRecipe) -> Flags:
    """A flag for each id of a block of examples: whether it is learnt."""
    if recipe.lengths is not None:
        return find_learnt(
            encoded, block.learnt, lengths=recipe.lengths, text_bytes=len(block.text)
        )
    everything = np.ones(len(encoded.ids), dtype=np.bool_)
    everything[encoded.ends] = False
    return everything


def _fit(made: EncodedRun, recipe: ExampleRecipe) -> EncodedRun:
    """The run with nothing longer than the context. Each piece goes where its whole example would."""
    assert not made.continues, "an example lies in one block"
    assert not made.block.after.within, "an example lies in one block"
    fitted = fit_examples(made.run, context=recipe.context, policy=recipe.too_long)
    assert fitted.run.learnt is not None
    return replace(
        made,
        run=fitted.run,
        held_out=np.append(made.held_out[fitted.origin], made.held_out[-1]),
        examples=ExampleCounts(
            examples=fitted.examples,
            learnt_tokens=int(np.count_nonzero(fitted.run.learnt)),
            too_long=fitted.too_long,
            dropped=fitted.dropped,
        ),
    )


def _own_bytes() -> int:
    """Private memory without what the reader holds through Arrow."""
    return private_bytes() - arrow_bytes()
