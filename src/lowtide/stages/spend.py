"""How a budget is spent: workers, block sizes and limits of `tokenize`, and what all stages share."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.memory.budget import Budget, check_needs, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.memory.meter import private_bytes
from lowtide.shards.write import needs_bytes
from lowtide.tokenizer.encode import (
    PEAK_BYTES_PER_TEXT_BYTE,
    PEAK_BYTES_PER_WORD_BYTE,
    encoder_bytes,
    reference_bytes,
)
from lowtide.tokenizer.learnt_tokens import PEAK_BYTES_PER_EXAMPLE_BYTE, lengths_bytes
from lowtide.tokenizer.reference_apart import APART_BYTES, LEAST_BYTES_PER_TEXT_BYTE
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import KIB, MIB

_BLOCK_SIZES = (512 * KIB, 256 * KIB)
LIBRARIES_BYTES = 48 * MIB
"""Interpreter, numpy, pyarrow and the terminal's libraries: 37 to 45 MiB were measured."""
SLACK_SHARE = 20
"""One part in this many of all needs is kept free: allocators round up."""
_LEAST_CACHE_BYTES = 24 * MIB
"""With less, an encoder must be renewed so often that a second worker would bring nothing."""
_MOST_CACHE_BYTES = 96 * MIB
_CACHE_COPIES = 3
"""A full table of words is copied into one of twice its size: for a moment both exist."""
_TEXT_COPIES = 3
"""A block waiting for its turn: raw, as text, and as the tokens it became."""
COPIES_OF_TEXT = _TEXT_COPIES + PEAK_BYTES_PER_TEXT_BYTE
"""Copies of a block in this process while the reference encodes it."""
_TEXT_READER_BYTES = 12 * MIB
"""A window over a file, and what gz or zst unpack it with."""
_ROW_READER_BYTES = 48 * MIB
_ROW_COPIES = 5
"""A row while it is read: measured 2.1 × for a JSON line and 3.4 × for a parquet value, and the block."""
_EXAMPLE_COPIES = 16
"""Further copies of an example: its contents and its text as Python strings, in which one emoji makes every
letter four bytes wide; marked, searched, and as bytes again."""
_TEMPLATE_BYTES = 12 * MIB
"""Templates and the code that runs them; for a Jinja template, its child process before it compiles it."""
_RENDER_BYTES = 28 * MIB
"""The least memory for a Jinja template: compiled, and a few copies of an example."""
_RENDERED_READER_BYTES = 32 * MIB
"""A reader of rows with a Jinja template: most copies of an example are in the other process."""


def foreign_bytes() -> int:
    """Memory that the process holds before a stage begins and that the budget ignores, as in a notebook."""
    return max(0, private_bytes() - LIBRARIES_BYTES)


def find_budget(memory: Budget | str | int | None) -> Budget:
    """The budget that was given, named, or chosen by default."""
    return memory if isinstance(memory, Budget) else choose_budget(memory, machine_limit())


def with_slack(needs: dict[str, int]) -> dict[str, int]:
    """The needs, and what is kept free because allocators round up."""
    return needs | {"slack": sum(needs.values()) // SLACK_SHARE}


def reader_bytes(*, reads_rows: bool) -> int:
    """The least memory of a reader: one of JSONL, parquet or Arrow holds whole lines and pages."""
    return _ROW_READER_BYTES if reads_rows else _TEXT_READER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """Memory that each part of `tokenize` may use, and the limits that follow."""

    workers: int
    block_bytes: int
    cache_bytes: int
    """How far one encoder may grow before it is renewed."""
    row_limit_bytes: int
    """The longest line or value that can be read."""
    word_limit_bytes: int
    """The longest stretch of text without a safe cut that can be encoded."""
    reference_allowance_bytes: int
    """Memory for the child process of one worker's reference encoder, beyond what the bare process takes."""
    spare_bytes: int
    """Memory for the child when nothing else runs, the copies of the document in this process included."""
    render_bytes: int
    """Memory that a Jinja template may take for one example."""
    needs: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """The sum of the needs: at most the budget."""
        return sum(self.needs.values())

    def reference_alone_bytes(self, text_bytes: int) -> int:
        """Memory for the reference's child while it encodes a block of `text_bytes` and nothing else runs."""
        return self.spare_bytes - text_bytes * COPIES_OF_TEXT

    @property
    def renew_after_bytes(self) -> int:
        """Text after which an encoder is renewed in any case: this much source code fills its share."""
        return 10 * self.cache_bytes

    @property
    def growth_bytes(self) -> int:
        """How far memory may grow, without the reader's, before an encoder is renewed.

        From here a table may still double: the rest of the caches' share is for that.
        """
        return self.needs["blocks"] + self.needs["shard writers"] + self.workers * self.cache_bytes


def spend(
    budget: Budget,
    vocabulary: Vocabulary,
    *,
    workers: int,
    reads_rows: bool,
    examples: bool = False,
    renders: bool = False,
) -> Allowances:
    """Choose the most workers, up to `workers`, and the largest blocks that fit into the budget.

    `reads_rows`: a reader of JSONL, parquet or Arrow holds whole lines and pages, one of text does not.
    `examples`: rows go through a template, and have a loss mask.
    `renders`: the template is a Jinja file, which runs in a process of its own.
    """
    kind = _Kind(reads_rows=reads_rows, examples=examples, renders=renders)
    for count in range(workers, 0, -1):
        for block_bytes in _BLOCK_SIZES:
            needs = _needs_of(vocabulary, count, block_bytes, kind)
            if sum(needs.values()) <= budget.total_bytes:
                return _with_rest(budget, needs, vocabulary, count, block_bytes, kind)
    check_needs(budget, _needs_of(vocabulary, 1, _BLOCK_SIZES[-1], kind))
    raise AssertionError("needs that fit were refused")


def smallest_budget(
    vocabulary: Vocabulary, *, reads_rows: bool, examples: bool = False, renders: bool = False
) -> int:
    """The budget for one worker with the smallest blocks."""
    kind = _Kind(reads_rows=reads_rows, examples=examples, renders=renders)
    return sum(_needs_of(vocabulary, 1, _BLOCK_SIZES[-1], kind).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What is read; see `spend`."""

    reads_rows: bool
    examples: bool
    renders: bool


def _needs_of(
    vocabulary: Vocabulary, workers: int, block_bytes: int, kind: _Kind
) -> dict[str, int]:
    waiting = workers + 2
    needs = with_slack(
        {
            "interpreter and libraries": LIBRARIES_BYTES,
            "encoders": workers * (encoder_bytes(vocabulary) if vocabulary.plain else 0),
            "encoder caches": workers * _cache_share(vocabulary, _LEAST_CACHE_BYTES),
            "blocks": block_bytes * (waiting * _TEXT_COPIES + workers * PEAK_BYTES_PER_TEXT_BYTE),
            "reader": reader_bytes(reads_rows=kind.reads_rows),
            "shard writers": needs_bytes(split_count=2),
        }
    )
    if not kind.examples:
        return needs
    more = PEAK_BYTES_PER_EXAMPLE_BYTE - PEAK_BYTES_PER_TEXT_BYTE
    needs["blocks"] += workers * block_bytes * more
    needs["shard writers"] = needs_bytes(split_count=2, learnt=True)
    needs["templates"] = _TEMPLATE_BYTES
    needs["token lengths"] = lengths_bytes(vocabulary)
    if kind.renders:
        needs["templates"] += _RENDER_BYTES
        needs["reader"] = _RENDERED_READER_BYTES
    return needs


def _cache_share(vocabulary: Vocabulary, cache_bytes: int) -> int:
    """Worst-case memory for an encoder's cache, or for the cache and the reference's child together."""
    reference = APART_BYTES + reference_bytes(vocabulary)
    if not vocabulary.plain:
        return reference + cache_bytes
    return max(_CACHE_COPIES * cache_bytes, cache_bytes + reference)


def _with_rest(
    budget: Budget,
    needs: dict[str, int],
    vocabulary: Vocabulary,
    workers: int,
    block_bytes: int,
    kind: _Kind,
) -> Allowances:
    """Spend what is left, most of it on the reader, whose limits are what people run into.

    One huge document may use all of that and the caches too, which are emptied first. A Jinja template gets as
    much as is added for the reader.
    """
    rest = budget.total_bytes - sum(needs.values())
    more = rest // 4 // workers // _CACHE_COPIES
    cache_bytes = min(_LEAST_CACHE_BYTES + more, _MOST_CACHE_BYTES)
    caches = max(needs["encoder caches"], workers * _cache_share(vocabulary, cache_bytes))
    reader = needs["reader"] + rest - (caches - needs["encoder caches"])
    render = (reader - needs["reader"]) // 2 if kind.renders else 0
    reader -= render
    for_one = caches + needs["blocks"] + reader
    word_limit = for_one // (PEAK_BYTES_PER_WORD_BYTE + _TEXT_COPIES)
    if not vocabulary.plain:
        word_limit = (for_one - APART_BYTES) // (LEAST_BYTES_PER_TEXT_BYTE + COPIES_OF_TEXT)
    row_limit = max(reader // _ROW_COPIES, word_limit)
    share = caches // workers - APART_BYTES
    given = {"encoder caches": caches, "reader": reader}
    if kind.renders:
        given["templates"] = needs["templates"] + render
    return Allowances(
        workers=workers,
        block_bytes=block_bytes,
        cache_bytes=cache_bytes,
        row_limit_bytes=reader // _EXAMPLE_COPIES if kind.examples else row_limit,
        word_limit_bytes=word_limit,
        reference_allowance_bytes=share - cache_bytes if vocabulary.plain else share,
        spare_bytes=for_one - APART_BYTES,
        render_bytes=_RENDER_BYTES + render,
        needs=needs | given,
    )
