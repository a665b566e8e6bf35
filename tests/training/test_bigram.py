"""Pairs counted with numpy are pairs counted with a dictionary."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.training import bigram
from lowtide.training.bigram import SMOOTHING, bigram_loss


def _plain_loss(train: list[int], val: list[int], vocabulary_size: int) -> float:
    pairs = Counter(pairwise(train))
    firsts = Counter(train[:-1])
    losses = [
        -math.log((pairs[a, b] + SMOOTHING) / (firsts[a] + SMOOTHING * vocabulary_size))
        for a, b in pairwise(val)
    ]
    return sum(losses) / len(losses)


_IDS = st.lists(st.integers(0, 6), max_size=60)


@given(
    train=_IDS, val=st.lists(st.integers(0, 6), min_size=2, max_size=60), part=st.integers(1, 70)
)
def test_it_is_the_loss_of_the_plain_version(train: list[int], val: list[int], part: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bigram, "_PART", part)
        ids = np.array(train, dtype=np.uint16), np.array(val, dtype=np.uint16)
        assert bigram_loss(*ids, 7) == pytest.approx(_plain_loss(train, val, 7), rel=1e-12)


def test_a_large_vocabulary_needs_no_square_and_does_not_wrap() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50_257, 20_000).astype(np.uint16)
    found = bigram_loss(ids, ids[:2000], 50_257)
    assert found == pytest.approx(_plain_loss(ids.tolist(), ids[:2000].tolist(), 50_257), rel=1e-9)


def test_what_cannot_be_measured_is_refused() -> None:
    ids = np.array([0, 1, 2])
    with pytest.raises(ValueError, match="two ids"):
        bigram_loss(ids, ids[:1], 3)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        bigram_loss(ids, ids, 2)
