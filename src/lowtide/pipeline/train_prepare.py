"""Everything that is decided before the first word is counted: inputs, budget, marks, limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide.memory.budget import Budget, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.memory.meter import child_pids, private_bytes
from lowtide.pipeline.prepare import choose_workers, delimiter_beside
from lowtide.pipeline.spend import foreign_bytes
from lowtide.pipeline.train_settings import TrainSettings, check_train_settings, normalise
from lowtide.pipeline.train_spend import TrainAllowances, spend_on_training
from lowtide.source.find_inputs import InputFile, InputKind, survey_inputs
from lowtide.source.safe_cuts import CutRule
from lowtide.source.skipped import Skipped
from lowtide.source.stream import ReadSettings
from lowtide.tokenizer.count_words import CountRules
from lowtide.tokenizer.merge_room import check_merge_room


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPrepared:
    """A run that is about to start: all choices made, nothing written."""

    settings: TrainSettings
    inputs: list[InputFile]
    skipped: tuple[Skipped, ...]
    """Files of the folders and globs that are not read."""
    budget: Budget
    allowances: TrainAllowances
    rules: CountRules
    read: ReadSettings
    foreign_bytes: int
    """Private memory that was there before and that the budget does not count."""
    foreign_pids: frozenset[int]
    """Child processes from before the run: their memory is not counted either."""

    @property
    def input_bytes(self) -> int:
        """Size of all inputs as stored; 0 for standard input."""
        return sum(item.size_bytes for item in self.inputs)

    @property
    def reads_stdin(self) -> bool:
        """Whether some of the input comes once and never again."""
        return any(item.is_stdin for item in self.inputs)


def prepare_training(
    inputs: Sequence[str],
    settings: TrainSettings,
    *,
    out: Path | None,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
) -> TrainPrepared:
    """Find and decide; refuse what cannot work. Reads footers, sizes and first bytes, no text."""
    foreign_pids = frozenset(child_pids(os.getpid()))
    settings = normalise(settings)
    check_train_settings(settings)
    budget = memory if isinstance(memory, Budget) else choose_budget(memory, machine_limit())
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
    return TrainPrepared(
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
        foreign_bytes=foreign_bytes(private_bytes()),
        foreign_pids=foreign_pids,
    )
