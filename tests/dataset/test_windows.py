"""Contiguous windows: exact epochs over any files, the same for any batch size, world size and stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import TokenDataset
from lowtide.dataset.order import border_shifts
from lowtide.errors import UsageError
from lowtide.shards.token_pieces import MappedCopier, Pieces, PlainCopier
from tests.dataset.plain import (
    IGNORED,
    Array,
    Shards,
    numbered,
    plain_positions,
    plain_window,
    shards,
    whole_epoch,
)
from tests.shards.streams import fresh_folder

SEEDS = st.integers(0, 2**32)
WORLD_SIZES = (1, 2, 4, 8)


def draw_context(data: st.DataObject, stream: Shards) -> int:
    return data.draw(st.integers(1, min(stream.tokens - 1, 80)), label="context")


def expected_windows(dataset: TokenDataset, ids: list[int], first: int, count: int) -> list[object]:
    """Positions `first` and on of the endless order, from the whole stream."""
    epochs, numbers = dataset.order_run(first, count)
    shifts = border_shifts(epochs, context=dataset.context, seed=dataset.settings.seed)
    return [
        plain_window(ids, context=dataset.context, shift=shift, number=number)
        for shift, number in zip(shifts.tolist(), numbers.tolist(), strict=True)
    ]


@given(stream=shards(), data=st.data(), seed=SEEDS, epoch=st.integers(0, 1000))
def test_an_epoch_holds_every_token_once_and_every_target_once(
    stream: Shards, data: st.DataObject, seed: int, epoch: int
) -> None:
    batch_size = data.draw(st.integers(1, 9), label="batch size")
    with fresh_folder() as folder:
        dataset = TokenDataset(stream.write(folder), context=draw_context(data, stream), seed=seed)
        x, y = whole_epoch(dataset, epoch, batch_size)
    assert len(x) == dataset.window_count == -(-stream.tokens // dataset.context)
    assert np.array_equal(np.sort(x[x > 0]), numbered(stream.tokens))
    assert np.array_equal(np.sort(y[y != IGNORED]), numbered(stream.tokens)[1:])
    followed = y != IGNORED
    assert np.array_equal(y[followed], x[followed] + 1)


@given(stream=shards(), data=st.data(), seed=SEEDS, epoch=st.integers(0, 1000))
def test_another_epoch_has_other_borders(
    stream: Shards, data: st.DataObject, seed: int, epoch: int
) -> None:
    with fresh_folder() as folder:
        dataset = TokenDataset(stream.write(folder), context=draw_context(data, stream), seed=seed)
        borders = [set(whole_epoch(dataset, one)[0][:, 0].tolist()) for one in (epoch, epoch + 1)]
    if dataset.context > 1:
        assert borders[0] != borders[1]


def test_another_epoch_or_seed_has_another_order(tmp_path: Path) -> None:
    path = Shards((30_000,), "npy", wide=False).write(tmp_path)
    dataset = TokenDataset(path, context=16)
    first, second, other = (
        whole_epoch(dataset, 0)[0][:, 0],
        whole_epoch(dataset, 1)[0][:, 0],
        whole_epoch(TokenDataset(path, context=16, seed=1), 0)[0][:, 0],
    )
    for one, another in ((first, second), (first, other)):
        assert np.count_nonzero(np.abs(one - another) < dataset.context) < 30
    assert not np.array_equal(np.sort(first), first)


@given(stream=shards(), data=st.data(), seed=SEEDS)
def test_windows_are_those_of_the_whole_stream(
    stream: Shards, data: st.DataObject, seed: int
) -> None:
    """Anywhere in the endless order, over the ends of epochs, in batches of any size."""
    count = data.draw(st.integers(1, 12), label="count")
    with fresh_folder() as folder:
        dataset = TokenDataset(stream.write(folder), context=draw_context(data, stream), seed=seed)
        near_an_end = data.draw(st.integers(1, 50)) * dataset.window_count - 3
        first = max(0, data.draw(st.sampled_from([0, near_an_end, 12_345_678]), label="first"))
        x, y = dataset.read(first, count)
        assert x.dtype == y.dtype == np.int64
        found = list(zip(x.tolist(), y.tolist(), strict=True))
        assert found == expected_windows(dataset, stream.ids.tolist(), first, count)


@given(stream=shards(), data=st.data())
def test_the_sequential_order_is_the_streams_own(stream: Shards, data: st.DataObject) -> None:
    with fresh_folder() as folder:
        context = draw_context(data, stream)
        dataset = TokenDataset(stream.write(folder), context=context, order="sequential")
        first, again = (whole_epoch(dataset, epoch) for epoch in (0, 3))
    ids = stream.ids.tolist()
    wanted = [
        plain_window(ids, context=context, shift=0, number=number)
        for number in range(dataset.window_count)
    ]
    assert list(zip(first[0].tolist(), first[1].tolist(), strict=True)) == wanted
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])


@given(stream=shards(), data=st.data(), seed=SEEDS, each=st.integers(1, 3))
def test_ranks_together_read_the_same_batches_for_every_world_size(
    stream: Shards, data: st.DataObject, seed: int, each: int
) -> None:
    batch_size = 8 * each
    with fresh_folder() as folder:
        path, context = stream.write(folder), draw_context(data, stream)
        whole = TokenDataset(path, context=context, seed=seed).read(0, 3 * batch_size)
        for world_size in WORLD_SIZES:
            ranks = [TokenDataset(path, context=context, seed=seed) for _ in range(world_size)]
            batches = [
                read_as_ranks(ranks, k * batch_size, batch_size // world_size) for k in range(3)
            ]
            for part in (0, 1):
                assert np.array_equal(np.concatenate([one[part] for one in batches]), whole[part])


def read_as_ranks(ranks: list[TokenDataset], first: int, each: int) -> tuple[Array, Array]:
    found = [dataset.read(first + rank * each, each) for rank, dataset in enumerate(ranks)]
    return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])


@given(
    stream=shards(),
    data=st.data(),
    seed=SEEDS,
    legs=st.lists(
        st.tuples(st.sampled_from(WORLD_SIZES), st.integers(1, 4), st.integers(1, 4)),
        min_size=1,
        max_size=6,
    ),
)
def test_stopped_anywhere_and_going_on_with_other_ranks_and_batches_changes_nothing(
    stream: Shards, data: st.DataObject, seed: int, legs: list[tuple[int, int, int]]
) -> None:
    """Each leg is a run of its own: processes start anew, with another world size and batch size."""
    with fresh_folder() as folder:
        path, context = stream.write(folder), draw_context(data, stream)
        seen: list[Array] = []
        position = 0
        for world_size, each, batches in legs:
            ranks = [TokenDataset(path, context=context, seed=seed) for _ in range(world_size)]
            for _ in range(batches):
                seen.append(read_as_ranks(ranks, position, each)[0])
                position += world_size * each
        uninterrupted = TokenDataset(path, context=context, seed=seed)
        one_by_one = [uninterrupted.batch(k, 1)[0] for k in range(position)]
    assert np.array_equal(np.concatenate(seen), np.concatenate(one_by_one))


@given(stream=shards(), data=st.data(), calls=st.lists(st.integers(0, 9000), max_size=8))
def test_a_batch_does_not_depend_on_those_before(
    stream: Shards, data: st.DataObject, calls: list[int]
) -> None:
    """Leaps back and forth, beyond what is looked up ahead (4,096 windows)."""
    batch_size = data.draw(st.integers(1, 5))
    with fresh_folder() as folder:
        path, context = stream.write(folder), draw_context(data, stream)
        used = TokenDataset(path, context=context)
        for k in [*calls, *calls[:2]]:
            fresh = TokenDataset(path, context=context)
            for one in (k, k + 1):
                found, wanted = used.batch(one, batch_size), fresh.batch(one, batch_size)
                assert np.array_equal(found[0], wanted[0])
                assert np.array_equal(found[1], wanted[1])


@pytest.mark.parametrize("context", [1, 7])
def test_reading_on_and_on_is_the_same_as_leaping(tmp_path: Path, context: int) -> None:
    """Over several looks ahead: 4,096 windows are not a multiple of the batch or of the epoch."""
    path = Shards((1000, 1, 0, 999), "llmc", wide=True).write(tmp_path)
    running = TokenDataset(path, context=context)
    for k in range(1000):
        x, y = running.batch(k, 13)
        if k % 37 == 1 or 4096 - 13 < k * 13 % 4096 < 4096 + 13:
            other_x, other_y = TokenDataset(path, context=context).read(k * 13, 13)
            assert np.array_equal(x, other_x)
            assert np.array_equal(y, other_y)


LARGE = [  # ids that fill their bytes
    Shards((60_000,), "npy", wide=False),
    Shards((30_000, 2, 0, 9_998), "llmc", wide=False),
    Shards((150_000,), "llmc", wide=True),
]


@given(stream=shards() | st.sampled_from(LARGE), data=st.data())
def test_mapped_and_plain_copies_are_the_same(stream: Shards, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, min(stream.tokens, 60)), label="width")
    most = stream.tokens - width
    starts = data.draw(st.lists(st.integers(0, most), min_size=1, max_size=70), label="starts")
    pieces = Pieces(
        starts=np.array(starts),
        counts=np.full(len(starts), width),
        places=np.arange(len(starts)) * width,
    )
    wanted = np.stack([stream.ids[start : start + width] for start in starts])
    with fresh_folder() as folder:
        files = TokenDataset(stream.write(folder), context=1).files
        for copier in (MappedCopier(files, scattered=True), PlainCopier(files)):
            for _ in range(2):  # the second time from maps that are there
                copier.fetch(pieces)
                target = np.zeros_like(wanted)
                copier.copy(pieces, target.reshape(-1))
                assert np.array_equal(target, wanted)
            if width > 1:
                check_widened(copier, pieces, wanted)
            copier.close()


def check_widened(copier: MappedCopier | PlainCopier, pieces: Pieces, wanted: Array) -> None:
    x, y = (np.zeros((len(wanted), wanted.shape[1] - 1), dtype=np.int64) for _ in range(2))
    largest = copier.widen(pieces, x, y)
    if largest is None:
        assert isinstance(copier, PlainCopier)
        assert not x.any()
        return
    assert largest == wanted.max()
    assert np.array_equal(x, wanted[:, :-1])
    assert np.array_equal(y, wanted[:, 1:])


def test_the_example_in_the_module(tmp_path: Path) -> None:
    """Tokens 0 … 9, context 4, shift 1: `[1 2 3 4] [5 6 7 8] [9 0]`, and 0 is not a target."""
    held = [plain_positions(10, context=4, shift=1, number=number) for number in range(3)]
    assert held == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 0]]
    path = Shards((10,), "npy", wide=False).write(tmp_path)
    dataset = TokenDataset(path, context=4, seed=seed_of_shift(1, context=4))
    x, y = whole_epoch(dataset)
    rows = sorted(zip(x.tolist(), y.tolist(), strict=True))
    assert rows == [
        ([2, 3, 4, 5], [3, 4, 5, 6]),
        ([6, 7, 8, 9], [7, 8, 9, 10]),
        ([10, 1, 0, 0], [IGNORED, 2, IGNORED, IGNORED]),
    ]


def seed_of_shift(shift: int, *, context: int) -> int:
    zero = np.zeros(1, dtype=np.int64)
    return next(
        seed for seed in range(1000) if border_shifts(zero, context=context, seed=seed)[0] == shift
    )


@pytest.mark.parametrize("tokens", [2, 3, 10])
def test_a_context_longer_than_the_data_is_refused_with_one_that_fits(
    tmp_path: Path, tokens: int
) -> None:
    path = Shards((tokens,), "npy", wide=False).write(tmp_path)
    with pytest.raises(UsageError) as caught:
        TokenDataset(path, context=tokens)
    assert f"at most {tokens - 1}" in caught.value.remedy
    x, y = whole_epoch(TokenDataset(path, context=tokens - 1))
    assert np.array_equal(np.sort(x[x > 0]), numbered(tokens))
    assert np.array_equal(np.sort(y[y > 0]), numbered(tokens)[1:])


def test_one_token_is_too_few_and_the_remedy_does_not_name_a_context(tmp_path: Path) -> None:
    path = Shards((1,), "npy", wide=False).write(tmp_path)
    with pytest.raises(UsageError) as caught:
        TokenDataset(path, context=1)
    assert "context" not in caught.value.remedy
