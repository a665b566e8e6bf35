"""How a budget is spent on `tokenize`: workers, block size and limits follow from it, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.errors import DoesNotFitError
from lowtide.memory.budget import Budget
from lowtide.tokenizer.encode import (
    PEAK_BYTES_PER_TEXT_BYTE,
    PEAK_BYTES_PER_WORD_BYTE,
    encoder_bytes,
    reference_bytes,
)
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import KIB, MIB, format_bytes, round_up_to_mib

_BLOCK_SIZES = (1024 * KIB, 512 * KIB, 256 * KIB)
_LIBRARIES_BYTES = 64 * MIB
"""Interpreter, numpy, pyarrow and the terminal's libraries: 45 to 55 MiB were measured."""
_WRITER_BYTES = 8 * MIB
_LEAST_CACHE_BYTES = 16 * MIB
_MOST_CACHE_BYTES = 96 * MIB
_TEXT_COPIES = 3
"""A block waiting for its turn: raw, as text, and as the tokens it became."""
_ROW_COPIES = 5
"""A row while it is read: measured 2.1 × for a JSON line and 3.4 × for a parquet value, and the block."""


def foreign_bytes(private_at_start: int) -> int:
    """What a process held before the stage began and that is none of its business, as in a notebook."""
    return max(0, private_at_start - _LIBRARIES_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """What each part of the stage may use."""

    workers: int
    block_bytes: int
    cache_bytes: int
    """How far one encoder may grow before it is renewed."""
    row_limit_bytes: int
    """The longest line or value that can be read."""
    word_limit_bytes: int
    """The longest stretch of text without a safe cut that can be encoded."""
    needs: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """The sum of the needs: at most the budget."""
        return sum(self.needs.values())

    @property
    def renew_after_bytes(self) -> int:
        """Text after which an encoder has usually filled its share: source code grew it by a third of that."""
        return 3 * self.cache_bytes

    @property
    def renew_above_bytes(self) -> int:
        """Private memory above which encoders give their caches back: what stays free is for peaks."""
        return (
            self.total_bytes - self.needs["reference encoder"] - self.needs["encoder caches"] // 4
        )


def spend(budget: Budget, vocabulary: Vocabulary, *, workers: int) -> Allowances:
    """The most workers, up to `workers`, and the largest blocks that the budget carries."""
    for count in range(workers, 0, -1):
        for block_bytes in _BLOCK_SIZES:
            needs = _needs(vocabulary, workers=count, block_bytes=block_bytes)
            if sum(needs.values()) <= budget.total_bytes:
                return _with_rest(budget, needs, workers=count, block_bytes=block_bytes)
    least = smallest_budget(vocabulary)
    raise DoesNotFitError(
        f"tokenizing with {vocabulary.name} needs {format_bytes(least)} and the budget is "
        f"{format_bytes(budget.total_bytes)}",
        remedy=f"pass `--memory {round_up_to_mib(least)}` or more",
    )


def smallest_budget(vocabulary: Vocabulary) -> int:
    """What one worker with the smallest blocks needs."""
    return sum(_needs(vocabulary, workers=1, block_bytes=_BLOCK_SIZES[-1]).values())


def _needs(vocabulary: Vocabulary, *, workers: int, block_bytes: int) -> dict[str, int]:
    waiting = 2 * workers + 2
    return {
        "interpreter and libraries": _LIBRARIES_BYTES,
        "reference encoder": reference_bytes(vocabulary),
        "encoders": workers * encoder_bytes(vocabulary),
        "encoder caches": workers * _LEAST_CACHE_BYTES,
        "blocks": block_bytes * (waiting * _TEXT_COPIES + workers * PEAK_BYTES_PER_TEXT_BYTE),
        "shard writers": _WRITER_BYTES,
    }


def _with_rest(
    budget: Budget, needs: dict[str, int], *, workers: int, block_bytes: int
) -> Allowances:
    """Half of what is left makes the caches larger; all of it may be used by one huge document,
    for which the caches are given back first."""
    rest = budget.total_bytes - sum(needs.values())
    caches = min(needs["encoder caches"] + rest // 2, workers * _MOST_CACHE_BYTES)
    spare = rest + needs["encoder caches"] + needs["blocks"]
    return Allowances(
        workers=workers,
        block_bytes=block_bytes,
        cache_bytes=caches // workers,
        row_limit_bytes=spare // _ROW_COPIES,
        word_limit_bytes=spare // (PEAK_BYTES_PER_WORD_BYTE + _TEXT_COPIES),
        needs=needs | {"encoder caches": caches},
    )
