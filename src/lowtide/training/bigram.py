"""How well pairs of neighbours alone predict a text: the mark that a model must pass to know more than pairs.

p(b | a) = (count(a b) + alpha) / (count(a) + alpha * vocabulary_size)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]

SMOOTHING = 0.05
"""Of the order that suits real text: 1 would give most of the weight to pairs never seen."""
_PART = 1 << 22


def bigram_loss(
    train_ids: Ids, val_ids: Ids, vocabulary_size: int, *, alpha: float = SMOOTHING
) -> float:
    """Cross-entropy in nats a token of val, under pairs counted in train. The counts are exact.

    Holds parts of 4 million ids and the distinct pairs of train, never a square of the vocabulary. An
    id outside the vocabulary is a fault of the caller's.
    """
    if len(val_ids) < 2 or alpha <= 0:
        raise ValueError("a bigram's loss needs two ids to predict on, and an alpha above 0")
    pairs, pair_counts = _count_pairs(train_ids, vocabulary_size)
    firsts = np.zeros(vocabulary_size, dtype=np.int64)
    np.add.at(firsts, pairs // vocabulary_size, pair_counts)
    total = 0.0
    for part in _pairs_in_parts(val_ids, vocabulary_size):
        together = _look_up(part, pairs, pair_counts)
        alone = firsts[part // vocabulary_size]
        total -= float(np.log((together + alpha) / (alone + alpha * vocabulary_size)).sum())
    return total / (len(val_ids) - 1)


def _count_pairs(
    ids: Ids, vocabulary_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Distinct pairs `a * vocabulary_size + b` in order, and how often each occurs."""
    pairs = np.zeros(0, dtype=np.int64)
    counts = np.zeros(0, dtype=np.int64)
    for part in _pairs_in_parts(ids, vocabulary_size):
        new, new_counts = np.unique(part, return_counts=True)
        both, places = np.unique(np.concatenate((pairs, new)), return_inverse=True)
        summed = np.zeros(len(both), dtype=np.int64)
        np.add.at(summed, places, np.concatenate((counts, new_counts)))
        pairs, counts = both, summed
    return pairs, counts


def _pairs_in_parts(ids: Ids, vocabulary_size: int) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(0, len(ids) - 1, _PART):
        part = ids[start : start + _PART + 1].astype(np.int64)
        if part.min() < 0 or part.max() >= vocabulary_size:
            raise ValueError(f"an id lies outside the vocabulary of {vocabulary_size}")
        yield part[:-1] * vocabulary_size + part[1:]


def _look_up(
    wanted: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The count of each wanted pair; 0 where it was never seen."""
    if not len(pairs):
        return np.zeros(len(wanted), dtype=np.int64)
    places = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    return np.where(pairs[places] == wanted, counts[places], 0)
