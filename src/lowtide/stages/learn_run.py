"""From counted words to vocabularies: merges are learnt once, every size asked for is a beginning of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.settings import TokenizerSettings
from lowtide.shards.layout import WORK_FOLDER
from lowtide.tokenizer.byte_pairs import BytePairs, bytes_in_order
from lowtide.tokenizer.merge_pairs import STEP, MergeLearner, MergeSettings, Steps, read_classes
from lowtide.tokenizer.word_runs import RunRecord, WordTotals, map_run

_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntSize:
    """One vocabulary that was learnt."""

    vocab_size: int
    """As asked for."""
    tokens: int
    """As learnt: fewer when the corpus has no more pairs."""
    merges: int
    bytes_per_token: float
    """Of the whole corpus, exact."""
    whole_words: float
    """Share of the corpus's words that are a single token, exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """All merges in order, and what they did to the corpus."""

    settings: TokenizerSettings
    steps: Steps
    totals: WordTotals
    single_byte_words: int
    """Words that were one token from the start."""
    is_exhausted: bool
    """Whether the corpus has no more pairs that come often enough."""
    recounts: int

    @property
    def first_merged_id(self) -> int:
        """Ids begin with special tokens and the 256 bytes."""
        return len(self.settings.special_token) + _BYTES

    def merges_for(self, vocab_size: int) -> int:
        """How many merges a vocabulary of this size has: fewer when there are no more."""
        return min(max(0, vocab_size - self.first_merged_id), len(self.steps))

    def bytes_per_token(self, merges: int) -> float:
        """Of the whole corpus, exact: every merge was counted where it happened."""
        joined = int(self.steps["joined"][:merges].sum())
        return self.totals.text_bytes / max(1, self.totals.text_bytes - joined)

    def describe(self, vocab_size: int) -> LearntSize:
        """What a vocabulary of this size came to."""
        merges = self.merges_for(vocab_size)
        whole = self.single_byte_words + int(self.steps["whole"][:merges].sum())
        return LearntSize(
            vocab_size=vocab_size,
            tokens=self.first_merged_id + merges,
            merges=merges,
            bytes_per_token=self.bytes_per_token(merges),
            whole_words=whole / max(1, self.totals.words),
        )

    def byte_pairs(self, vocab_size: int) -> BytePairs:
        """The vocabulary of this size."""
        steps = self.steps[: self.merges_for(vocab_size)]
        tokens = [bytes([byte]) for byte in bytes_in_order()]
        merges = []
        for left, right in zip(steps["left"].tolist(), steps["right"].tolist(), strict=True):
            merges.append((tokens[left], tokens[right]))
            tokens.append(tokens[left] + tokens[right])
        specials = self.settings.special_token
        return BytePairs(
            pattern=self.settings.pattern,
            special_tokens={token: number for number, token in enumerate(specials)},
            tokens={token: number for number, token in enumerate(tokens, start=len(specials))},
            merges=tuple(merges),
        )


def learn(
    folder: Path,
    words: RunRecord,
    totals: WordTotals,
    settings: TokenizerSettings,
    *,
    allowance_bytes: int,
    after_slice: Callable[[int], None],
) -> Learning:
    """Learn all merges that the largest vocabulary has room for. `after_slice` hears how many there are."""
    work = folder / WORK_FOLDER
    wanted = MergeSettings(
        most_merges=settings.most_merges, min_frequency=settings.min_frequency, ties=settings.ties
    )
    with map_run(work, words) as run:
        classes = read_classes(run)
        with MergeLearner(
            run, classes, wanted, allowance_bytes=allowance_bytes, folder=work
        ) as learner:
            slices = [np.empty(0, STEP)]
            for steps in learner.learn(settings.most_merges):
                slices.append(steps)
                after_slice(learner.merges)
            return Learning(
                settings=settings,
                steps=np.concatenate(slices),
                totals=totals,
                single_byte_words=totals.words - classes.words_with_pairs,
                is_exhausted=learner.is_exhausted,
                recounts=learner.recounts,
            )
