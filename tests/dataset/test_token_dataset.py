"""TokenDataset as people use it: a share held out, arrays that are theirs, threads, copies, processes."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import TokenDataset
from lowtide.dataset.batches import ArrayPool
from lowtide.dataset.settings import WindowKind
from lowtide.errors import LowtideError, UsageError
from lowtide.settings import Format
from lowtide.shards.layout import ShardLayout
from tests.dataset.plain import (
    IGNORED,
    NUMBERED,
    Array,
    Shards,
    numbered,
    numbered_dataset,
    numbered_stream,
    whole_epoch,
)
from tests.shards.streams import fresh_folder, make_dataset

LENGTHS = np.random.default_rng(0).integers(1, 40, 1500).tolist()
KINDS = pytest.mark.parametrize("kind", ["contiguous", "document"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """About 30,000 tokens in shards of 4,000."""
    return numbered_dataset(tmp_path, LENGTHS, shard_tokens=4000)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A train.bin of nanoGPT's, with 1,003 tokens."""
    numbered(1003).astype(np.uint16).tofile(tmp_path / "train.bin")
    return tmp_path


def in_order(dataset: TokenDataset) -> list[int]:
    x, _ = whole_epoch(dataset)
    return x[x > 0].tolist()


@given(tokens=st.integers(40, 3000), kept=st.integers(10, 90))
def test_a_share_is_what_people_cut_off_by_hand(tokens: int, kept: int) -> None:
    data = numbered(tokens).astype(np.uint16)
    n = len(data)
    train, val = data[: int(n * (kept / 100))], data[int(n * (kept / 100)) :]
    with fresh_folder() as folder:
        data.tofile(folder / "train.bin")
        for split, wanted in (("train", train), ("val", val)):
            dataset = TokenDataset(
                folder, split, context=2, order="sequential", val_fraction=(100 - kept) / 100
            )
            assert dataset.tokens == len(wanted)
            assert in_order(dataset) == wanted.tolist()


def test_the_last_tenth_is_nanogpts(bare: Path) -> None:
    """Its prepare.py: `data[:int(n*0.9)]` and `data[int(n*0.9):]`; no target crosses over."""
    data = np.fromfile(bare / "train.bin", dtype=np.uint16)
    n = len(data)
    options = {"context": 16, "val_fraction": 0.1}
    train, val = (TokenDataset(bare, split, **options) for split in ("train", "val"))  # type: ignore[arg-type]
    for dataset, wanted in ((train, data[: int(n * 0.9)]), (val, data[int(n * 0.9) :])):
        for epoch in range(3):
            x, y = whole_epoch(dataset, epoch)
            assert sorted(x[x > 0].tolist()) == wanted.tolist()
            assert sorted(y[y != IGNORED].tolist()) == wanted[1:].tolist()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), float("inf")])
def test_a_share_that_cannot_be_held_out(bare: Path, fraction: float) -> None:
    with pytest.raises(UsageError) as caught:
        TokenDataset(bare, context=16, val_fraction=fraction)
    assert TokenDataset(bare, context=16, **named_settings(caught.value)).tokens == 902  # type: ignore[arg-type]


def named_settings(error: LowtideError) -> dict[str, object]:
    """The first `name=value` in a remedy, as a user would type it."""
    found = re.search(r"`(\w+)=([^`]+)`", error.remedy)
    assert found, error.remedy
    value = found[2].strip("'")
    return {found[1]: float(value) if re.fullmatch(r"[\d.]+", value) else value}


def test_a_share_of_another_name(bare: Path) -> None:
    with pytest.raises(UsageError) as caught:
        TokenDataset(bare, "test", context=16, val_fraction=0.1)
    fixed = named_settings(caught.value)
    assert TokenDataset(bare, context=16, val_fraction=0.1, **fixed).tokens == 902  # type: ignore[arg-type]


def test_where_there_is_no_val_the_error_says_how_to_have_one(bare: Path) -> None:
    with pytest.raises(UsageError) as caught:
        TokenDataset(bare, "val", context=16)
    fixed = named_settings(caught.value)
    assert fixed == {"val_fraction": 0.1}
    val, train = (TokenDataset(bare, name, context=16, **fixed) for name in ("val", "train"))  # type: ignore[arg-type]
    assert val.tokens + train.tokens == 1003


@pytest.mark.parametrize("form", ["npy", "nanogpt", "llmc", "megatron"])
def test_a_dataset_with_splits_of_its_own_has_no_share(tmp_path: Path, form: Format) -> None:
    """Both remedies: leave `val_fraction` out, or name one file."""
    layout = ShardLayout(format=form, vocabulary_size=NUMBERED, shard_tokens=200)
    make_dataset(tmp_path, layout, train=numbered_stream([190]), val=numbered_stream([40]))
    with pytest.raises(UsageError, match=r"train \(190 tokens\), val \(40 tokens\)") as caught:
        TokenDataset(tmp_path, context=16, val_fraction=0.1)
    assert "leave `val_fraction` out, or name one file" in caught.value.remedy
    assert TokenDataset(tmp_path, "val", context=16).tokens == 40
    one_file = next(one for one in tmp_path.glob("train*") if one.suffix in (".npy", ".bin"))
    assert in_order(
        TokenDataset(one_file, context=16, order="sequential", val_fraction=0.1)
    ) == list(range(1, 172))


def test_an_unknown_split_names_one_that_is_there(path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        TokenDataset(path, "validation", context=16)
    assert TokenDataset(path, context=16, **named_settings(caught.value)).tokens == sum(LENGTHS)  # type: ignore[arg-type]


WRONG: dict[str, Callable[[TokenDataset], object]] = {
    "batch before the first": lambda dataset: dataset.batch(-1, 4),
    "batch of nothing": lambda dataset: dataset.batch(0, 0),
    "position before the first": lambda dataset: dataset.read(-1, 2),
    "no windows": lambda dataset: dataset.read(0, 0),
    "epoch in batches of nothing": lambda dataset: dataset.epoch(0),
    "epoch before the first": lambda dataset: dataset.epoch(4, epoch=-1),
    "no context": lambda dataset: TokenDataset(dataset.settings.path, context=0),
    "windows": lambda dataset: TokenDataset(dataset.settings.path, windows="other"),  # type: ignore[arg-type]
    "order": lambda dataset: TokenDataset(dataset.settings.path, order="random"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_refused_before_anything_is_read(path: Path, wrong: str) -> None:
    with pytest.raises(UsageError):
        WRONG[wrong](TokenDataset(path, context=16))


HOLDS: dict[str, Callable[[Array], object]] = {
    "itself": lambda array: array,
    "a row": lambda array: array[1],
    "a slice of a slice": lambda array: array[1:][:, 3:][::2],
    "transposed": lambda array: array.T,
    "another shape": lambda array: array.reshape(-1)[5:],
    "another kind": lambda array: array.view(np.uint8),
    "a memoryview": lambda array: memoryview(array)[1:],
    "an array of a memoryview": lambda array: np.asarray(memoryview(array[2])),
    "the buffer's array": lambda array: np.frombuffer(array, dtype=np.uint64),
    "a broadcast": lambda array: np.broadcast_to(array[0], (3, array.shape[1])),
    "strides": lambda array: np.lib.stride_tricks.sliding_window_view(array[1], 4),
}


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_what_the_caller_holds_is_never_overwritten(path: Path, hold: str, part: int) -> None:
    dataset = TokenDataset(path, context=16)
    kept = HOLDS[hold](dataset.batch(0, 4, documents=True)[part])
    before = np.array(kept, copy=True)
    for k in range(1, 30):
        dataset.batch(k, 4, documents=True)
    gc.collect()
    dataset.batch(31, 4, documents=True)
    assert np.array_equal(np.asarray(kept), before)


def test_memory_that_nobody_holds_is_used_again() -> None:
    """Fresh memory would be zeros."""
    pool = ArrayPool()
    first, second = pool.take(2, 32, 16)
    first[:], second[:] = 7, 8
    del first
    (other,) = pool.take(1, 64, 16)
    assert not other.any(), "the second array is still held"
    del second
    first, second = pool.take(2, 32, 16)
    assert (first == 7).all()
    assert (second == 8).all()


def test_memory_is_used_again_however_many_arrays_are_held() -> None:
    pool, held = ArrayPool(), deque[object](maxlen=16)
    memory = set()
    for _ in range(200):
        arrays = pool.take(2, 32, 16)
        memory.add(arrays[0].__array_interface__["data"][0])
        held.append(arrays)
    assert len(memory) <= 17


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([4, 8]), st.integers(0, 9)), max_size=60
    )
)
def test_a_pool_lends_nothing_twice(steps: list[tuple[int, int, int]]) -> None:
    """Take arrays, hold slices of some, drop others in any order: what is held stays as it was written."""
    pool = ArrayPool()
    held: dict[int, tuple[Array, int]] = {}
    for number, (arrays, rows, slot) in enumerate(steps):
        taken = pool.take(arrays, rows, 5)
        for one in taken:
            one[:] = number
        held[slot] = (taken[-1][1:, ::2], number)
        if slot % 3 == 0:
            held.pop(slot)
        del taken, one
        for view, written in held.values():
            assert (view == written).all()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers here")
def test_an_interrupt_is_not_lost_while_memory_comes_back() -> None:
    pool, is_armed, raised, caught = ArrayPool(), False, 0, 0

    def interrupt(*_: object) -> None:
        nonlocal is_armed, raised
        if is_armed:
            is_armed, raised = False, raised + 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # an interrupt inside a finalizer of another test's objects is lost
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(200):
            try:
                is_armed = True
                while is_armed:
                    pool.take(1, 4, 4)
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert (raised, caught) == (200, 200)


def test_arrays_outlive_the_dataset(path: Path) -> None:
    dataset = TokenDataset(path, context=16)
    x, _ = dataset.batch(0, 4)
    before = x.copy()
    dataset.close()
    del dataset
    gc.collect()
    assert np.array_equal(x, before)
    x[:] = 0  # the caller's to change


def test_a_closed_dataset_opens_its_files_again(path: Path) -> None:
    dataset = TokenDataset(path, context=16)
    before = dataset.batch(5, 4)
    dataset.close()
    dataset.close()
    assert np.array_equal(dataset.batch(5, 4)[0], before[0])


@KINDS
def test_several_threads_read_the_same_as_one(path: Path, kind: WindowKind) -> None:
    """In a process of its own: what once was wrong here ended it."""
    process = multiprocessing.get_context("spawn").Process(
        target=read_in_threads, args=(str(path), kind)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


def read_in_threads(path: str, kind: WindowKind) -> None:
    sys.setswitchinterval(1e-5)
    dataset = TokenDataset(path, context=16, windows=kind)
    wanted = [dataset.read(8 * k, 8)[0].copy() for k in range(120)]
    wrong: list[int] = []

    def read_from(start: int) -> None:
        for step in range(160):
            k = (start + step) % len(wanted)
            if not np.array_equal(dataset.batch(k, 8)[0], wanted[k]):
                wrong.append(k)

    threads = [threading.Thread(target=read_from, args=(start,)) for start in (0, 40, 80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if wrong else 0)


OPTIONS: list[dict[str, object]] = [
    {"context": 16, "seed": 3},
    {"context": 32, "windows": "document", "ignore_index": -1},
    {"context": 8, "order": "sequential", "val_fraction": 0.25, "split": "val"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_copy_gives_the_same_batches(path: Path, options: dict[str, object]) -> None:
    dataset = TokenDataset(path, **options)  # type: ignore[arg-type]
    dataset.batch(0, 4)
    for twin in (copy.copy(dataset), copy.deepcopy(dataset)):
        assert twin.settings == dataset.settings
        assert twin.identity() == dataset.identity()
        for k in (0, 1, 700):
            for one, another in zip(dataset.batch(k, 4), twin.batch(k, 4), strict=True):
                assert np.array_equal(one, another)
    dataset.close()
    assert np.array_equal(twin.batch(3, 4)[0], dataset.batch(3, 4)[0])


def test_another_process_gives_the_same_batches(path: Path) -> None:
    datasets = [TokenDataset(path, **options) for options in OPTIONS]  # type: ignore[arg-type]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.map(read_there, datasets)
        pool.close()
        pool.join()
    for dataset, batches in zip(datasets, there, strict=True):
        assert batches == [[part.tolist() for part in dataset.batch(k, 4)] for k in (0, 1, 50)]


def read_there(dataset: TokenDataset) -> list[list[list[list[int]]]]:
    return [[part.tolist() for part in dataset.batch(k, 4)] for k in (0, 1, 50)]


@KINDS
def test_figures_of_an_epoch_are_what_the_epoch_holds(path: Path, kind: WindowKind) -> None:
    dataset = TokenDataset(path, context=16, windows=kind, ignore_index=-7)
    x, y = whole_epoch(dataset)
    facts = dataset.describe()
    assert (len(x), np.count_nonzero(x)) == (dataset.window_count, dataset.tokens)
    assert facts.padding_share == pytest.approx(np.count_nonzero(x == 0) / x.size)
    assert (y[x == 0] == -7).all()
    assert facts.documents == len(LENGTHS)


def test_the_last_batch_of_an_epoch_may_be_short_and_no_other(tmp_path: Path) -> None:
    dataset = TokenDataset(Shards((100,), "npy", wide=False).write(tmp_path), context=9)
    assert [len(x) for x, _ in dataset.epoch(5, epoch=2)] == [5, 5, 2]
    x, y = dataset.batch(2, 5)
    assert x.shape == y.shape == (5, 9)
