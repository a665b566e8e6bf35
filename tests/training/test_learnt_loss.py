"""The loss over learnt tokens is the plain one: an example a row, padded, all logits at once.

However the examples are packed, cut into parts, or shared by ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lowtide import TokenDataset
from lowtide.dataset.settings import WindowKind
from lowtide.training.data_parallel import Ranks
from lowtide.training.evaluate import evaluate
from lowtide.training.step import fill_up, take_step
from tests.model.plain_gpt import plain_loss
from tests.model.small import lively
from tests.shards.streams import fresh_folder
from tests.training.small_examples import PACKED, Examples, make_examples, padded, write
from tests.training.small_runs import SHAPE, make_settings, spawner

SETTINGS = make_settings(Path("somewhere"), **PACKED)
SHORT = [5, 3, 12, 16, 2, 9, 7, 1, 14, 4]
LONG = [9, 16, 11, 12, 10, 15]
"""No two of them fit into a window: nothing is packed."""


def plain_step(examples: Examples) -> tuple[float, float, list[Tensor]]:
    """The loss, the gradient's length and the weights after a plain step of SGD."""
    model = lively(SHAPE)
    loss = plain_loss(dict(model.named_parameters()), SHAPE, *padded(examples))
    loss.backward()
    grads = [one.grad for one in model.parameters() if one.grad is not None]
    norm = math.sqrt(sum(float((one.double() ** 2).sum()) for one in grads))
    rate = SETTINGS.learning_rate / (SETTINGS.warmup_steps + 1)
    length = rate * min(1.0, SETTINGS.clip / max(norm, 1e-9))
    moved = [
        one.detach() - length * gradient
        for one, gradient in zip(model.parameters(), grads, strict=True)
    ]
    return loss.item(), norm, moved


def rows_of(dataset: TokenDataset, *, documents: bool) -> tuple[Tensor, ...]:
    found = dataset.read(0, dataset.window_count, documents=documents)
    return tuple(torch.from_numpy(one.copy()) for one in found)


def check_step(examples: Examples, *, micro_batch: int, documents: bool) -> int:
    """A step over all windows is the plain one; how many windows there were."""
    with fresh_folder() as folder:
        dataset = TokenDataset(write(folder / "tokens", examples), context=SHAPE.context)
        rows = rows_of(dataset, documents=documents)
    loss, norm, moved = plain_step(examples)
    model = lively(SHAPE)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    result = take_step(model, plain, replace(SETTINGS, micro_batch=micro_batch), 0, rows)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    assert result.gradient_norm == pytest.approx(norm, rel=1e-4)
    for one, wanted in zip(model.parameters(), moved, strict=True):
        torch.testing.assert_close(one.detach(), wanted, atol=1e-6, rtol=1e-5)
    return len(rows[0])


@given(
    lengths=st.lists(st.integers(1, SHAPE.context), min_size=1, max_size=20),
    seed=st.integers(0, 99),
    micro_batch=st.integers(1, 9),
)
def test_packed_examples_have_the_loss_and_gradients_of_padded_ones(
    lengths: list[int], seed: int, micro_batch: int
) -> None:
    check_step(make_examples(lengths, seed=seed), micro_batch=micro_batch, documents=True)


def test_some_of_them_were_packed() -> None:
    assert check_step(make_examples(SHORT), micro_batch=2, documents=True) < len(SHORT)


def test_without_packing_it_is_the_same_with_and_without_documents() -> None:
    for documents in (False, True):
        assert check_step(make_examples(LONG), micro_batch=4, documents=documents) == len(LONG)


@pytest.mark.parametrize("windows", ["document", "contiguous"])
def test_attention_across_examples_is_another_loss(windows: WindowKind) -> None:
    """Else the tests above would show nothing."""
    examples = make_examples(SHORT)
    with fresh_folder() as folder:
        made = write(folder / "tokens", examples)
        rows = rows_of(TokenDataset(made, context=SHAPE.context, windows=windows), documents=False)
    model = lively(SHAPE)
    found = take_step(model, torch.optim.SGD(model.parameters()), SETTINGS, 0, rows)
    assert found.loss != pytest.approx(plain_step(examples)[0], rel=1e-3)


@pytest.mark.parametrize("micro_batch", [1, 3, 50])
def test_evaluation_is_the_plain_loss_too(tmp_path: Path, micro_batch: int) -> None:
    examples = make_examples(SHORT)
    dataset = TokenDataset(write(tmp_path / "tokens", examples), context=SHAPE.context)
    cut = replace(SETTINGS, micro_batch=micro_batch)
    found = evaluate(lively(SHAPE), dataset, cut, Ranks())
    assert found == pytest.approx(plain_step(examples)[0], rel=1e-5)


def test_rows_of_padding_change_nothing() -> None:
    rows = (*(torch.randint(100, (3, 16)) for _ in range(2)), torch.zeros(3, 16, dtype=torch.int64))
    few = tuple(one[:0] for one in rows)
    assert fill_up(rows, 2) is rows
    tokens, targets, documents = fill_up(few, 1)
    assert (tokens == 0).all()
    assert (targets == -100).all()
    assert (documents == -1).all()
    found = []
    for batch in (rows, fill_up(rows, 7)):
        model = lively(SHAPE)
        found.append(take_step(model, torch.optim.SGD(model.parameters()), SETTINGS, 0, batch))
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-6)
    assert found[0].gradient_norm == pytest.approx(found[1].gradient_norm, rel=1e-5)


def _one_of_two(rank: int, folder: Path) -> None:
    """A rank whose rows have another number of learnt tokens than the other's, or none at all."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dataset = TokenDataset(folder / "tokens", context=SHAPE.context)
    everything = rows_of(dataset, documents=True)
    for split in (1, len(everything[0])):  # in the second, rank 1 has nothing
        place = slice(0, split) if rank == 0 else slice(split, None)
        rows = fill_up(tuple(one[place] for one in everything), 1)
        model = lively(SHAPE)
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        result = take_step(model, plain, replace(SETTINGS, micro_batch=2), 0, rows)
        loss, norm, moved = plain_step(make_examples(SHORT))
        assert result.loss == pytest.approx(loss, rel=1e-5)
        assert result.gradient_norm == pytest.approx(norm, rel=1e-4)
        for one, wanted in zip(model.parameters(), moved, strict=True):
            torch.testing.assert_close(one.detach(), wanted, atol=1e-6, rtol=1e-5)
    dist.destroy_process_group()


def test_two_ranks_share_a_step_by_all_its_learnt_tokens(tmp_path: Path) -> None:
    write(tmp_path / "tokens", make_examples(SHORT))
    ranks = [spawner.Process(target=_one_of_two, args=(rank, tmp_path)) for rank in (0, 1)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(300)
    assert [one.exitcode for one in ranks] == [0, 0]
