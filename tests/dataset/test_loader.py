"""The loader gives the dataset's own batches: to any number of ranks, after any stop, and then goes away."""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from lowtide import TokenDataset  # noqa: E402
from lowtide.dataset.loader import Loader  # noqa: E402
from lowtide.errors import UsageError, VerificationError  # noqa: E402
from lowtide.shards.layout import ShardLayout  # noqa: E402
from tests.shards.streams import NARROW, make_dataset, make_stream  # noqa: E402

THREAD_NAME = "lowtide-loader"
LENGTHS = [5, 1, 30, 12, 7, 19, 2, 60, 9, 23]


def write(folder: Path, *, seed: int = 0, repeat: int = 1) -> Path:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=64)
    make_dataset(folder, layout, train=make_stream(LENGTHS * repeat, NARROW, seed=seed))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("loader") / "tokens")


@pytest.fixture
def dataset(folder: Path) -> Iterator[TokenDataset]:
    """168 tokens, 34 windows an epoch."""
    opened = TokenDataset(folder, context=5, seed=3)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert wait_until(lambda: not loader_threads())


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def wait_until(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 300
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return is_true()


def take(loader: Loader, count: int) -> list[tuple[torch.Tensor, ...]]:
    """Some batches, and out of the loop."""
    return list(itertools.islice(loader, count)) if count else []


def same(found: tuple[torch.Tensor, ...], wanted: tuple[np.ndarray, ...]) -> bool:
    return len(found) == len(wanted) and all(
        one.dtype == torch.int64 and np.array_equal(one.numpy(), other)
        for one, other in zip(found, wanted, strict=True)
    )


def joined(batches: list[tuple[torch.Tensor, ...]]) -> tuple[np.ndarray, ...]:
    return tuple(torch.cat(one).numpy() for one in zip(*batches, strict=True))


class SlowStream:
    """The dataset on a disk where something happens before each read."""

    def __init__(self, dataset: TokenDataset, before: Callable[[], None]) -> None:
        self.context = dataset.context
        self.read, self.identity = dataset.read, dataset.identity
        self._dataset, self._before = dataset, before

    def fill(self, first: int, arrays: tuple[np.ndarray, ...]) -> None:
        self._before()
        self._dataset.fill(first, arrays)


# Batches


@pytest.mark.parametrize("prefetch", [1, 2, 7])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_batch_k_is_the_datasets_whatever_is_read_ahead(
    dataset: TokenDataset, prefetch: int, documents: bool, device: str | None
) -> None:
    loader = dataset.loader(8, prefetch=prefetch, documents=documents, device=device)
    for k, batch in enumerate(take(loader, 12)):
        x, y, *ids = dataset.batch(k, 8, documents=True)
        assert same(batch, (x, y, *ids) if documents else (x, y))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_the_ranks_rows_together_are_the_batch(dataset: TokenDataset, world_size: int) -> None:
    ranks = [
        take(dataset.loader(8, rank=rank, world_size=world_size, documents=True), 6)
        for rank in range(world_size)
    ]
    for k, shares in enumerate(zip(*ranks, strict=True)):
        assert all(share[0].shape == (8 // world_size, 5) for share in shares)
        wanted = dataset.batch(k, 8, documents=True)
        assert all(map(np.array_equal, joined(list(shares)), wanted))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_one_epoch_gives_each_window_once_and_every_rank_as_many_batches(
    dataset: TokenDataset, world_size: int
) -> None:
    loaders = [
        dataset.loader(8, rank=rank, world_size=world_size, epochs=1) for rank in range(world_size)
    ]
    assert {len(loader) for loader in loaders} == {5}  # 34 windows: the last batch has two
    ranks = [list(loader) for loader in loaders]
    found = [joined(list(shares)) for shares in zip(*ranks, strict=True)]
    assert [len(x) for x, _ in found] == [8, 8, 8, 8, 2]
    for batch, wanted in zip(found, dataset.epoch(8), strict=True):
        assert all(map(np.array_equal, batch, wanted))
    assert {(len(loader), loader.position) for loader in loaders} == {(0, 34)}
    assert [list(loader) for loader in loaders] == [[]] * world_size


def test_the_length_is_what_is_left(dataset: TokenDataset) -> None:
    loader = dataset.loader(8, epochs=2.5, start=3)
    lengths = [len(loader), *(len(loader) for _ in loader)]
    assert lengths == list(range(11, -1, -1))
    with pytest.raises(TypeError, match="epochs"):
        len(dataset.loader(8))


def test_an_epoch_of_document_windows(folder: Path) -> None:
    dataset = TokenDataset(folder, context=16, windows="document")
    found = joined(list(dataset.loader(4, epochs=1, documents=True)))
    assert all(map(np.array_equal, found, dataset.read(0, dataset.window_count, documents=True)))
    assert (found[2] >= 0).sum() == dataset.tokens


# Stopping and going on

STOPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # batches
        st.sampled_from([1, 2, 4, 8]),  # ranks
        st.integers(1, 3),  # windows of one rank
        st.integers(1, 4),  # prefetch
    ),
    max_size=5,
)


@given(stops=STOPS, context=st.integers(1, 40), seed=st.integers(0, 3), start=st.integers(0, 50))
def test_a_run_stopped_anywhere_any_number_of_times_reads_what_one_run_reads(
    folder: Path, stops: list[tuple[int, int, int, int]], context: int, seed: int, start: int
) -> None:
    state, position, found = None, start, []
    for batches, world_size, each, prefetch in stops:
        dataset = TokenDataset(folder, context=context, seed=seed)
        states, ranks = [], []
        for rank in range(world_size):
            loader = dataset.loader(
                world_size * each, rank=rank, world_size=world_size, prefetch=prefetch, start=start
            )
            if state is not None:
                loader.load_state_dict(json.loads(state))
            ranks.append(take(loader, batches))
            states.append(json.dumps(loader.state_dict()))
        assert len(set(states)) == 1
        found += [joined(list(shares)) for shares in zip(*ranks, strict=True)]
        state, position = states[0], position + batches * world_size * each
        assert json.loads(state)["position"] == position
    uninterrupted = TokenDataset(folder, context=context, seed=seed)
    if position > start:
        wanted = uninterrupted.read(start, position - start)
        assert all(map(np.array_equal, map(np.concatenate, zip(*found, strict=True)), wanted))


def test_the_state_tells_what_was_handed_out_and_not_what_was_read_ahead(
    dataset: TokenDataset,
) -> None:
    read = threading.Semaphore(0)
    loader = Loader(SlowStream(dataset, read.release), 4, prefetch=5)
    assert loader.state_dict()["position"] == 0
    for handed_out, _ in enumerate(loader, start=1):
        read_ahead = [read.acquire(timeout=300) for _ in range(6 if handed_out == 1 else 1)]
        assert all(read_ahead)
        assert loader.state_dict()["position"] == loader.position == 4 * handed_out
        if handed_out == 3:
            break
    assert loader.state_dict()["position"] == 12


def test_who_leaves_the_loop_goes_on_where_it_was(dataset: TokenDataset) -> None:
    loader = dataset.loader(4, prefetch=3)
    found = [*take(loader, 2), *take(loader, 1), *take(loader, 4)]
    loader.close()
    found += take(loader, 1)
    assert all(same(batch, dataset.batch(k, 4)) for k, batch in enumerate(found))
    assert len(found) == 8


def test_a_second_iteration_takes_over_from_the_first(dataset: TokenDataset) -> None:
    loader = dataset.loader(4)
    first, second = iter(loader), iter(loader)
    found = [next(first), next(first), next(second)]
    assert list(first) == []
    found += [next(second)]
    assert all(same(batch, dataset.batch(k, 4)) for k, batch in enumerate(found))
    assert len(loader_threads()) == 1
    loader.close()
    assert list(second) == []


def test_a_state_of_other_batches_is_refused_with_what_differs(
    folder: Path, dataset: TokenDataset, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", seed=1)
    longer = write(tmp_path / "longer", repeat=2)
    alike = {"context": 5, "seed": 3}
    strangers = {
        "digest": TokenDataset(other, **alike),
        "tokens": TokenDataset(longer, **alike),
        "seed": TokenDataset(folder, context=5, seed=4),
        "context": TokenDataset(folder, context=6, seed=3),
        "order": TokenDataset(folder, **alike, order="sequential"),
        "windows": TokenDataset(folder, **alike, windows="document"),
        "val_fraction": TokenDataset(folder, **alike, val_fraction=0.1),
        "split": TokenDataset(folder, "val", **alike, val_fraction=0.1),
    }
    loader = dataset.loader(4, start=8)
    for name, stranger in strangers.items():
        with pytest.raises(UsageError) as caught:
            loader.load_state_dict(stranger.loader(4).state_dict())
        was, now = stranger.identity()[name], dataset.identity()[name]
        assert f"{name} was {was!r} and is {now!r}" in caught.value.problem
        assert caught.value.remedy
    assert loader.position == 8


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"position": -1}, {"position": "9"}, {"position": None}]
)
def test_what_is_no_state_is_refused(dataset: TokenDataset, change: dict[str, object]) -> None:
    loader = dataset.loader(4)
    for state in ({**loader.state_dict(), **change}, {}):
        with pytest.raises(UsageError, match="not a loader's state"):
            loader.load_state_dict(state)


# The thread


def test_closing_and_leaving_the_loop_end_the_thread(dataset: TokenDataset) -> None:
    loader = dataset.loader(4)
    loader.close()
    batches = iter(loader)
    next(batches)
    assert [thread.daemon for thread in loader_threads()] == [True]
    loader.close()
    assert not loader_threads()
    loader.close()
    assert loader.position == 4
    for _ in loader:
        assert len(loader_threads()) == 1
        break
    assert wait_until(lambda: not loader_threads())


def test_a_loader_that_nobody_holds_ends_its_thread(dataset: TokenDataset) -> None:
    batches = iter(dataset.loader(4))
    next(batches)
    assert len(loader_threads()) == 1
    del batches
    assert wait_until(lambda: not loader_threads())
    abandon(dataset.loader(4))
    assert len(loader_threads()) == 1
    gc.collect()
    assert wait_until(lambda: not loader_threads())


def test_garbage_collected_under_the_datasets_lock_waits_for_nobody(dataset: TokenDataset) -> None:
    """A collection may come anywhere: also where the loader's thread waits for the lock that is held."""
    gc.disable()
    try:
        abandon(dataset.loader(4, prefetch=100_000))
        collecting = threading.Thread(target=gc.collect, daemon=True)
        with dataset._own_lock():
            collecting.start()
            collecting.join(300)
            assert not collecting.is_alive()
        assert wait_until(lambda: not loader_threads())
    finally:
        gc.enable()


def test_garbage_collected_by_the_loaders_own_thread_ends_it_quietly(
    dataset: TokenDataset,
) -> None:
    abandoned, complaints = threading.Event(), []
    before, sys.unraisablehook = sys.unraisablehook, complaints.append
    gc.disable()
    try:
        slow = SlowStream(dataset, lambda: abandoned.wait(0.3) and gc.collect())
        abandon(Loader(slow, 4, prefetch=1))
        abandoned.set()
        assert wait_until(lambda: not loader_threads())
    finally:
        gc.enable()
        sys.unraisablehook = before
    assert [str(complaint.exc_value) for complaint in complaints] == []


def abandon(loader: Loader) -> None:
    """Leave a loader at work in a circle that only a collection finds."""
    circle: list[object] = [loader, iter(loader)]
    circle.append(circle)
    next(circle[1])


def test_closing_ends_an_iteration_that_waits(dataset: TokenDataset) -> None:
    reads, found, go_on = itertools.count(), [], threading.Event()
    slow = SlowStream(dataset, lambda: next(reads) < 1 or go_on.wait(300))
    loader = Loader(slow, 4)
    iteration = itertools.islice(loader, 9)
    waiting = threading.Thread(target=lambda: found.extend(iteration), daemon=True)
    waiting.start()
    assert wait_until(lambda: len(found) == 1)  # and the second batch does not come
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    time.sleep(0.05)
    go_on.set()
    closing.join(300)
    waiting.join(300)
    assert not waiting.is_alive()
    assert len(found) == 1


def test_what_goes_wrong_in_the_thread_is_raised_to_the_caller(tmp_path: Path) -> None:
    loader = TokenDataset(write(tmp_path / "tokens"), context=5).loader(4, prefetch=1)
    batches = iter(loader)
    next(batches)
    for shard in tmp_path.rglob("*.npy"):
        os.truncate(shard, 100)
    with pytest.raises(VerificationError, match=r"train_\d+\.npy") as caught:
        list(batches)
    assert caught.value.remedy
    assert 4 <= loader.position <= 12  # what had been read ahead was still handed out
    assert not loader_threads()
    with pytest.raises(VerificationError):  # and again, rather than waiting for ever
        next(iter(loader))


def test_what_the_caller_keeps_is_not_written_over(dataset: TokenDataset) -> None:
    whole, rows, arrays = [], [], []
    for k, (x, y) in enumerate(itertools.islice(dataset.loader(4, prefetch=3), 60)):
        kept = (whole, rows, arrays, [])[k % 4]
        kept.append((k, (x, y) if kept is whole else x[1] if kept is rows else y[2:].numpy()))
        del x, y
    assert all(same(kept, dataset.batch(k, 4)) for k, kept in whole)
    assert all(np.array_equal(kept.numpy(), dataset.batch(k, 4)[0][1]) for k, kept in rows)
    assert all(np.array_equal(kept, dataset.batch(k, 4)[1][2:]) for k, kept in arrays)


def test_loaders_that_share_a_dataset_do_not_disturb_each_other(folder: Path) -> None:
    shared, alone = TokenDataset(folder, context=3), TokenDataset(folder, context=3)
    starts = (0, 5000)
    loaders = [shared.loader(4, start=start, prefetch=800) for start in starts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        batches = list(itertools.islice(zip(*loaders, strict=True), 800))
    finally:
        sys.setswitchinterval(interval)
    for start, found in zip(starts, zip(*batches, strict=True), strict=True):
        assert all(map(np.array_equal, joined(list(found)), alone.read(start, 3200)))
