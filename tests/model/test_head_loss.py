"""The chunked head is the plain one: same loss, same gradients, and no logits that ever exist whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.model import head_loss as room
from lowtide.model import turn_logits
from lowtide.model.chunks import chunk_rows
from lowtide.model.head_loss import count_targets, head_loss, head_loss_reference
from lowtide.model.shape import ModelShape
from lowtide.model.targets import IGNORED
from lowtide.model.turn_logits import row_losses, turn_logits_reference
from tests.model.small import batch, lively

PATIENT = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Largest(TorchDispatchMode):
    """Watches every tensor that comes to be, on the way there and back, and remembers the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for value in found if isinstance(found, tuple | list) else [found]:
            if isinstance(value, Tensor):
                self.numbers = max(self.numbers, value.numel())
        return found


def drawn(
    rows: int, width: int, vocabulary: int, seed: int, ignored: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Features, a weight whose rows beyond the vocabulary would win every prediction, targets."""
    generator = torch.Generator().manual_seed(seed)
    padded = -(-vocabulary // 128) * 128
    features = torch.randn(rows, width, generator=generator)
    weight = torch.randn(padded, width, generator=generator)
    weight[vocabulary:] *= 100
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < ignored] = IGNORED
    return features.requires_grad_(), weight.requires_grad_(), targets


@PATIENT
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 9),
    vocabulary=st.integers(1, 300),
    chunk=st.integers(1, 41),
    ignored=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 99),
)
def test_loss_and_gradients_are_autograds_however_rows_are_cut(
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    width: int,
    vocabulary: int,
    chunk: int,
    ignored: float,
    seed: int,
) -> None:
    monkeypatch.setattr(room, "chunk_rows", lambda _rows, _columns: chunk)
    results = []
    for function in (head_loss, head_loss_reference):
        features, weight, targets = drawn(rows, width, vocabulary, seed, ignored)
        loss = function(features, weight, targets, vocabulary, count_targets(targets))
        (loss * 3).backward()
        results.append((loss.detach(), features.grad, weight.grad))
    ours, wanted = results
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)


def test_evaluation_is_the_same_number_however_rows_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, weight, targets = drawn(29, 8, 200, 0, 0.3)
    count = count_targets(targets)
    wanted = head_loss_reference(features, weight, targets, 200, count)
    for chunk in (1, 7, 28, 29, 1000):
        monkeypatch.setattr(room, "chunk_rows", lambda _r, _c, chunk=chunk: chunk)
        with torch.no_grad():
            torch.testing.assert_close(
                head_loss(features, weight, targets, 200, count), wanted.detach()
            )


def test_features_alone_may_ask_for_gradients_or_none_may() -> None:
    features, weight, targets = drawn(9, 4, 50, 0, 0.0)
    wanted = head_loss(features, weight, targets, 50, count_targets(targets)).detach()
    frozen = head_loss(features.detach(), weight.detach(), targets, 50, count_targets(targets))
    assert not frozen.requires_grad
    torch.testing.assert_close(frozen, wanted)
    head_loss(features, weight.detach(), targets, 50, count_targets(targets)).backward()
    assert features.grad is not None


def test_logits_never_exist_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ModelShape(layers=1, heads=1, width=8, context=64, vocabulary_size=1000)
    tokens, targets = batch(shape, rows=16)
    model = lively(shape)
    chunk = 32
    monkeypatch.setattr(room, "chunk_rows", lambda _rows, _columns: chunk)
    whole = tokens.numel() * shape.vocabulary_size
    most = max(chunk * shape.padded_vocabulary, tokens.numel() * 4 * shape.width)
    assert most < whole / 10
    with Largest() as training:
        model(tokens, targets).backward()
    assert training.numbers == most
    with torch.no_grad(), Largest() as evaluating:
        model(tokens, targets)
    assert evaluating.numbers == most
    with Largest() as plain:
        features, weight = model.features(tokens).flatten(0, 1), model.token_embedding.weight
        head_loss_reference(features, weight, targets.flatten(), 1000, torch.tensor(1.0))
    assert plain.numbers == whole  # the watcher does see it


def test_chunks_cover_all_rows_in_whole_tiles_and_a_bounded_size() -> None:
    for rows in (1, 100, 1024, 8 * 1024, 64 * 1024, 1 << 20):
        for columns in (128, 50304, 200_064):
            chunk = chunk_rows(rows, columns)
            assert 1 <= chunk <= rows
            assert chunk == rows or chunk % 256 == 0
            assert chunk * columns <= (1 << 29) + 256 * columns


def test_targets_are_counted_without_the_ignored_and_never_as_none() -> None:
    assert float(count_targets(torch.tensor([3, IGNORED, 0]))) == 2
    assert float(count_targets(torch.tensor([IGNORED, IGNORED]))) == 1


@PATIENT
@given(
    rows=st.integers(1, 12),
    vocabulary=st.integers(1, 40),
    padding=st.integers(0, 9),
    scale=st.floats(0.01, 4),
    seed=st.integers(0, 99),
)
def test_turned_logits_are_autograds_gradient(
    rows: int, vocabulary: int, padding: int, scale: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary + padding, generator=generator) * 5
    targets = torch.randint(-1, vocabulary, (rows,), generator=generator)
    targets[targets == -1] = IGNORED
    leaf = logits.clone().requires_grad_()
    wanted = row_losses(leaf, targets, vocabulary)
    (wanted.sum() * scale).backward()
    losses = turn_logits_reference(logits, targets, torch.tensor(scale), vocabulary)
    torch.testing.assert_close(losses, wanted.detach())
    torch.testing.assert_close(logits, leaf.grad, rtol=1e-4, atol=1e-6)


def test_turned_logits_of_huge_size_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0, 9e9]])
    losses = turn_logits_reference(logits, torch.tensor([1]), torch.tensor(1.0), 3)
    assert losses.tolist() == [2e4]
    assert logits.tolist() == [[1.0, -1.0, 0.0, 0.0]]


@pytest.mark.parametrize("padding", [0, 7])
def test_turning_a_few_rows_at_a_time_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, padding: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(100, 300 + padding, generator=generator) * 5
    targets = torch.randint(0, 300, (100,), generator=generator)
    targets[::9] = IGNORED
    found = []
    for rows in (100, 99, 13, 1):
        monkeypatch.setattr(turn_logits, "slice_rows", lambda _, rows=rows: rows)
        turned = logits.clone()
        losses = turn_logits_reference(turned, targets, torch.tensor(0.37), 300)
        found.append((losses, turned, row_losses(logits, targets, 300)))
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))
