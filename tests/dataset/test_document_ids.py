"""Document ids number what a row holds, whether an index or the end-of-text token tells documents apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import TokenDataset
from lowtide.dataset.document_ids import IndexedBorders
from lowtide.dataset.order import border_shifts
from lowtide.dataset.settings import WindowKind
from lowtide.settings import Placement
from lowtide.shards.documents import StoredDocuments
from lowtide.shards.layout import documents_header
from tests.dataset.plain import Array, numbered_dataset, plain_document_ids, plain_positions
from tests.shards.streams import NARROW, fresh_folder, make_stream

SOME = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(lambda some: sum(some) > 2)
FULL = st.lists(st.integers(1, 30), min_size=1, max_size=40).filter(lambda some: sum(some) > 2)


def held_positions(dataset: TokenDataset, first: int, count: int, start: int) -> list[list[int]]:
    """Where the tokens of contiguous windows lie in the stream."""
    epochs, numbers = dataset.order_run(first, count)
    shifts = border_shifts(epochs, context=dataset.context, seed=dataset.settings.seed)
    return [
        [
            start + at
            for at in plain_positions(
                dataset.tokens, context=dataset.context, shift=shift, number=number
            )
        ]
        for shift, number in zip(shifts.tolist(), numbers.tolist(), strict=True)
    ]


def expected_ids(
    dataset: TokenDataset, lengths: Sequence[int], first: int, count: int, start: int = 0
) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    return [
        plain_document_ids(positions, ends, dataset.context)
        for positions in held_positions(dataset, first, count, start)
    ]


@given(lengths=SOME, data=st.data(), seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_contiguous_windows_number_the_documents_of_the_index(
    lengths: list[int], data: st.DataObject, seed: int, epoch: int
) -> None:
    context = data.draw(st.integers(1, min(60, sum(lengths) - 1)))
    with fresh_folder() as folder:
        path = numbered_dataset(folder, lengths, shard_tokens=data.draw(st.integers(3, 60)))
        dataset = TokenDataset(path, context=context, seed=seed)
        first, count = epoch * dataset.window_count, dataset.window_count
        x, y, ids = dataset.read(first, count, documents=True)
        without = dataset.read(first, count)
    assert ids.tolist() == expected_ids(dataset, lengths, first, count)
    assert np.array_equal(x, without[0])
    assert np.array_equal(y, without[1])
    assert np.array_equal(ids == -1, x == 0)


@given(lengths=SOME.filter(lambda some: sum(some) > 20), data=st.data())
def test_a_share_numbers_its_own_documents(lengths: list[int], data: st.DataObject) -> None:
    fraction = data.draw(st.sampled_from([0.25, 0.5]))
    border = int(sum(lengths) * (1 - fraction))
    context = data.draw(st.integers(1, min(border, sum(lengths) - border) - 1))
    with fresh_folder() as folder:
        path = numbered_dataset(folder, lengths)
        for split, start in (("train", 0), ("val", border)):
            dataset = TokenDataset(path, split, context=context, val_fraction=fraction)
            count = 2 * dataset.window_count
            _, _, ids = dataset.read(0, count, documents=True)
            assert ids.tolist() == expected_ids(dataset, lengths, 0, count, start)


@given(
    lengths=FULL.filter(lambda some: sum(some) > 10),
    data=st.data(),
    eot=st.sampled_from(["end", "start"]),
    share=st.sampled_from([None, 0.5]),
)
def test_the_end_of_text_token_tells_the_same_documents_as_an_index(
    lengths: list[int], data: st.DataObject, eot: Placement, share: float | None
) -> None:
    """A bare file whose tokenizer was named; of a share, end and start are another document each."""
    lengths = [
        *lengths,
        2,
    ]  # the last token is not a lone end-of-text: where it stands is plain to see
    context = data.draw(st.integers(1, sum(lengths) // 2 - 1))
    split = "train" if share is None else "val"
    with fresh_folder() as folder:
        make_stream(lengths, NARROW, eot=eot).ids.astype(np.uint16).tofile(folder / "train.bin")
        dataset = TokenDataset(folder, split, context=context, val_fraction=share, tokenizer="gpt2")
        count = 2 * dataset.window_count
        _, _, ids = dataset.read(0, count, documents=True)
    start = sum(lengths) - dataset.tokens
    assert ids.tolist() == expected_ids(dataset, lengths, 0, count, start)


@given(lengths=SOME, context=st.integers(1, 50), epoch=st.integers(0, 3))
def test_document_windows_number_what_was_packed(
    lengths: list[int], context: int, epoch: int
) -> None:
    with fresh_folder() as folder:
        path = numbered_dataset(folder, lengths)
        dataset = TokenDataset(path, context=context, windows="document")
        count = dataset.window_count
        x, _, ids = dataset.read(epoch * count, count, documents=True)
    assert ids.tolist() == ids_of_numbered_rows(x, lengths)


def ids_of_numbered_rows(x: Array, lengths: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    return [plain_document_ids((row[row > 0] - 1).tolist(), ends, x.shape[1]) for row in x]


@pytest.mark.parametrize("context", [1000, 1024, 2500, 7000])
@pytest.mark.parametrize("kind", ["contiguous", "document"])
def test_a_window_may_hold_thousands_of_documents(
    tmp_path: Path, context: int, kind: WindowKind
) -> None:
    """More than the 1,024 that are looked up at a time; some of them empty."""
    lengths = [1] * 3000 + [0] * 1500 + [2, 0, 3] * 1200
    path = numbered_dataset(tmp_path, lengths, shard_tokens=4000)
    dataset = TokenDataset(path, context=context, windows=kind)
    x, _, ids = dataset.read(0, 2 * dataset.window_count, documents=True)
    assert ids.tolist() == ids_of_numbered_rows(x, lengths)
    assert ids.max() > 100


@given(
    lengths=st.lists(st.integers(0, 2), min_size=1, max_size=3000).filter(sum),
    data=st.data(),
)
def test_ends_between_two_places_are_found(lengths: list[int], data: st.DataObject) -> None:
    ends = np.cumsum(lengths)
    start = data.draw(st.integers(0, int(ends[-1])))
    stop = data.draw(st.integers(start, int(ends[-1])))
    with fresh_folder() as folder:
        path = folder / "documents.npy"
        path.write_bytes(documents_header(len(ends)) + ends.astype("<i8").tobytes())
        borders = IndexedBorders(StoredDocuments(path=path, count=len(ends)))
        found = borders.between(start, stop).tolist()
    assert found == sorted({end for end in ends.tolist() if start < end < stop})


def test_a_row_begins_with_zero_and_padding_is_minus_one(tmp_path: Path) -> None:
    path = numbered_dataset(tmp_path, [3, 2, 1])
    dataset = TokenDataset(path, context=5, windows="document")
    x, _, ids = dataset.batch(0, 2, documents=True)
    rows = sorted(zip(x.tolist(), ids.tolist(), strict=True))
    assert rows == [([1, 2, 3, 4, 5], [0, 0, 0, 1, 1]), ([6, 0, 0, 0, 0], [0, -1, -1, -1, -1])]
