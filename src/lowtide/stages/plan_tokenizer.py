"""The plan of `train-tokenizer`: inputs, limits, and how the budget is spent.

Counting spends it on tables of words, then learning on cells, pairs and lists: each may use all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide.memory.budget import Budget, check_needs
from lowtide.memory.meter import child_pids
from lowtide.settings import TokenizerSettings
from lowtide.source.find_inputs import InputFile, InputKind, survey_inputs
from lowtide.source.safe_cuts import CutRule
from lowtide.source.stream import ReadSettings
from lowtide.stages.prepare import choose_workers, delimiter_beside
from lowtide.stages.read_inputs import InputPlan
from lowtide.stages.spend import (
    LIBRARIES_BYTES,
    SLACK_SHARE,
    find_budget,
    foreign_bytes,
    reader_bytes,
    with_slack,
)
from lowtide.stages.tokenizer_settings import check_tokenizer_settings, make_tokenizer_settings
from lowtide.tokenizer.count_words import LEAST_TABLE_BYTES, CountRules
from lowtide.tokenizer.merge_pairs import check_merge_room
from lowtide.tokenizer.word_runs import BUFFER_BYTES
from lowtide.units import KIB, MIB, format_bytes

_BLOCK_SIZES = (1024 * KIB, 256 * KIB)
_TEXT_COPIES = 3
"""A block waiting for its turn: raw, as text, and for a moment joined from its pieces."""
_MOST_TABLE_BYTES = 512 * MIB
_ROW_COPIES = 5
"""A row while it is read: measured 2.1 × for a JSON line and 3.4 × for a parquet value, and the block."""
_LEAST_MERGE_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerAllowances:
    """Memory that each part of counting and of learning may use."""

    workers: int
    block_bytes: int
    table_bytes: int
    """Size of each worker's table."""
    row_limit_bytes: int
    """The longest line, value or word that can be read."""
    merge_bytes: int
    """For learning merges, once the tables are gone."""
    needs: dict[str, int]
    """While words are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerPlan(InputPlan):
    """The plan of `train-tokenizer`."""

    settings: TokenizerSettings
    allowances: TokenizerAllowances
    rules: CountRules

    def notes(self) -> Iterator[str]:
        """What was chosen, and what a person may not expect of it."""
        allowances = self.allowances
        workers = f"{allowances.workers} worker{'s' if allowances.workers > 1 else ''}"
        tables = f"a table of {format_bytes(allowances.table_bytes)} each"
        blocks = f"blocks of {format_bytes(allowances.block_bytes)}"
        yield f"budget {self.budget.in_words}; {workers}, {tables}, {blocks}"
        yield from InputPlan.notes(self)


def plan_tokenizer(
    inputs: Sequence[str | InputFile],
    settings: TokenizerSettings,
    *,
    out: Path | None,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
) -> TokenizerPlan:
    """Find and decide; refuse what cannot work. Reads footers, sizes and first bytes, no text."""
    foreign_pids = frozenset(child_pids(os.getpid()))
    settings = make_tokenizer_settings(settings.as_record())
    check_tokenizer_settings(settings)
    budget = find_budget(memory)
    surveyed = survey_inputs(inputs, leave_out=out, input_format=settings.input_format)
    found = surveyed.files
    allowances = spend_on_training(
        budget,
        workers=choose_workers(workers),
        reads_rows=any(item.kind is not InputKind.TEXT for item in found),
    )
    check_merge_room(settings.most_merges, allowances.merge_bytes)
    delimiter = delimiter_beside(set(settings.special_token), found, settings.separator)
    special = tuple(token.encode() for token in settings.special_token)
    return TokenizerPlan(
        settings=settings,
        inputs=found,
        skipped=surveyed.skipped,
        budget=budget,
        allowances=allowances,
        rules=CountRules(pattern=settings.pattern, marks=tuple({delimiter, *special})),
        read=ReadSettings(
            column=settings.column,
            separator=settings.separator,
            bad_text=settings.bad_text,
            delimiter=delimiter,
            block_bytes=allowances.block_bytes,
            document_limit_bytes=allowances.row_limit_bytes,
            cut_rule=CutRule(pattern=settings.pattern, unsplittable=special),
        ),
        foreign_bytes=foreign_bytes(),
        foreign_pids=foreign_pids,
    )


def spend_on_training(budget: Budget, *, workers: int, reads_rows: bool) -> TokenizerAllowances:
    """Choose the most workers, up to `workers`, and the largest blocks and tables that fit into the budget."""
    for count in range(workers, 0, -1):
        for block_bytes in _BLOCK_SIZES:
            needs = _needs(count, block_bytes, reads_rows)
            if sum(needs.values()) <= budget.total_bytes:
                return _with_rest(budget, needs, count, block_bytes)
    check_needs(budget, _needs(1, _BLOCK_SIZES[-1], reads_rows))
    raise AssertionError("needs that fit were refused")


def _needs(workers: int, block_bytes: int, reads_rows: bool) -> dict[str, int]:
    needs = {
        "interpreter and libraries": LIBRARIES_BYTES,
        "tables of words": max(workers * (LEAST_TABLE_BYTES + BUFFER_BYTES), _LEAST_MERGE_BYTES),
        "blocks": block_bytes * (2 * workers + 1) * _TEXT_COPIES,
        "reader": reader_bytes(reads_rows=reads_rows),
    }
    return with_slack(needs)


def _with_rest(
    budget: Budget, needs: dict[str, int], workers: int, block_bytes: int
) -> TokenizerAllowances:
    """Spend what is left: half on tables, for more words at once, and half on the reader, for longer ones."""
    rest = budget.total_bytes - sum(needs.values())
    slack = max(needs["slack"], budget.total_bytes // SLACK_SHARE)
    rest = max(0, rest - (slack - needs["slack"]))
    table_bytes = min(LEAST_TABLE_BYTES + rest // 2 // workers, _MOST_TABLE_BYTES)
    tables = max(needs["tables of words"], workers * (table_bytes + BUFFER_BYTES))
    reader = needs["reader"] + rest - (tables - needs["tables of words"])
    return TokenizerAllowances(
        workers=workers,
        block_bytes=block_bytes,
        table_bytes=table_bytes,
        row_limit_bytes=reader // _ROW_COPIES,
        merge_bytes=budget.total_bytes - needs["interpreter and libraries"] - slack,
        needs=needs | {"tables of words": tables, "reader": reader, "slack": slack},
    )
