"""Document windows: what fits is never cut, every token once, no target across a document."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import TokenDataset
from lowtide.dataset.pack_documents import (
    DocumentWindows,
    NativePacker,
    PlainPacker,
    best_fit_reference,
)
from lowtide.dataset.settings import WindowKind
from lowtide.errors import UsageError
from lowtide.native import load_native
from lowtide.settings import Format, Placement
from lowtide.shards.documents import StoredDocuments
from lowtide.shards.layout import ShardLayout, documents_header
from tests.dataset.plain import (
    IGNORED,
    NUMBERED,
    Array,
    held_pieces,
    numbered_dataset,
    plain_pieces,
    whole_epoch,
)
from tests.shards.streams import NARROW, fresh_folder, make_dataset, make_stream

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(lambda some: sum(some) > 1)
PLACEMENTS = st.sampled_from(["end", "start"])
GPT2_END = 50_256


def stored(folder: Path, lengths: Sequence[int]) -> StoredDocuments:
    path = folder / "documents.npy"
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    path.write_bytes(documents_header(len(ends)) + ends.astype("<i8").tobytes())
    return StoredDocuments(path=path, count=len(ends))


def plain_count(lengths: Sequence[int], *, context: int, block_documents: int) -> int:
    """Full windows, and for every block of documents the rows that its rests are packed into."""
    full = sum(length // context for length in lengths)
    blocks = [lengths[at : at + block_documents] for at in range(0, len(lengths), block_documents)]
    rests = [[length % context for length in block if length % context] for block in blocks]
    return full + sum(best_fit_reference(sorted(some, reverse=True), context)[1] for some in rests)


def check_epoch(x: Array, y: Array, lengths: Sequence[int], *, closing: int, border: slice) -> None:
    """Rows hold exactly the pieces that cutting each document by itself gives, with their targets."""
    ends = np.cumsum(lengths)
    context = x.shape[1]
    held = [held_pieces(row, ends.tolist()) for row in x]
    wanted = plain_pieces(lengths, context=context, start=border.start, stop=border.stop)
    assert sorted(piece for row in held for piece in row) == wanted
    closes = dict.fromkeys(ends.tolist(), closing)
    closes.setdefault(border.stop, IGNORED)  # a document that the border cuts does not end there
    for tokens, targets in zip(x, y, strict=True):
        filled = np.count_nonzero(tokens)
        expected = [closes.get(token, token + 1) for token in tokens[:filled].tolist()]
        assert targets.tolist() == expected + [IGNORED] * (context - filled)


@given(
    lengths=LENGTHS,
    context=st.integers(1, 50),
    eot=PLACEMENTS,
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
    shard_tokens=st.integers(3, 60),
)
def test_an_epoch_holds_every_document_whole(
    lengths: list[int], context: int, eot: Placement, seed: int, epoch: int, shard_tokens: int
) -> None:
    with fresh_folder() as folder:
        path = numbered_dataset(folder, lengths, eot=eot, shard_tokens=shard_tokens)
        dataset = TokenDataset(path, context=context, seed=seed, windows="document")
        x, y = whole_epoch(dataset, epoch)
    assert len(x) == dataset.window_count
    assert dataset.tokens == sum(lengths)
    closing = NUMBERED - 1 if eot == "start" else IGNORED
    check_epoch(x, y, lengths, closing=closing, border=slice(0, sum(lengths)))


@given(
    lengths=LENGTHS.filter(lambda some: sum(some) > 20),
    context=st.integers(1, 50),
    kept=st.sampled_from([0.1, 0.5, 0.75, 0.9]),
    eot=PLACEMENTS,
)
def test_a_share_ends_where_it_ends_though_a_document_goes_on(
    lengths: list[int], context: int, kept: float, eot: Placement
) -> None:
    """Train sees no token of val, not even as a target."""
    border = int(sum(lengths) * kept)
    parts = {"train": slice(0, border), "val": slice(border, sum(lengths))}
    with fresh_folder() as folder:
        path = numbered_dataset(folder, lengths, eot=eot)
        closing = NUMBERED - 1 if eot == "start" else IGNORED
        for split, part in parts.items():
            dataset = TokenDataset(
                path, split, context=context, windows="document", val_fraction=1 - kept
            )
            x, y = whole_epoch(dataset)
            check_epoch(x, y, lengths, closing=closing, border=part)


@pytest.mark.parametrize("context", [4, 5, 10])
def test_a_document_that_the_border_cuts_is_not_said_to_end_there(
    tmp_path: Path, context: int
) -> None:
    """Where end-of-text is learnt from a document's last token, the token before the border has none."""
    path = numbered_dataset(tmp_path, [4, 16], eot="start")
    train = TokenDataset(path, context=context, windows="document", val_fraction=0.5)
    x, y = whole_epoch(train)
    assert dict(zip(x[x > 0].tolist(), y[x > 0].tolist(), strict=True)) == {
        **{token: token + 1 for token in range(1, 10)},
        4: NUMBERED - 1,
        10: IGNORED,
    }


@given(
    lengths=LENGTHS,
    context=st.integers(1, 50),
    block_documents=st.sampled_from([1, 2, 3, 7, 256]),
    data=st.data(),
)
def test_blocks_of_any_size_hold_every_document_whole(
    lengths: list[int], context: int, block_documents: int, data: st.DataObject
) -> None:
    """By the places of pieces alone: the last target of a cut document is the only token read twice."""
    start = data.draw(st.integers(0, sum(lengths) - 1))
    tokens = data.draw(st.integers(1, sum(lengths) - start))
    with fresh_folder() as folder:
        windows = DocumentWindows(
            stored(folder, lengths),
            start=start,
            tokens=tokens,
            context=context,
            block_documents=block_documents,
        )
        numbers = np.arange(windows.count)
        rows = windows.rows(numbers)
        assert windows.tokens_in(np.zeros_like(numbers), numbers) == tokens
    assert rows.filled is not None
    ends = np.cumsum(lengths)
    found = [
        (at, at + count - (column + count > context))
        for at, count, column in zip(
            rows.pieces.starts.tolist(),
            rows.pieces.counts.tolist(),
            (rows.pieces.places - rows.piece_rows * (context + 1)).tolist(),
            strict=True,
        )
    ]
    assert sorted(found) == plain_pieces(lengths, context=context, start=start, stop=start + tokens)
    assert len(rows.closing) == len({stop for _, stop in found} & set(ends.tolist()))
    assert len(rows.silent) == (start + tokens not in ends), "the one document that the border cuts"
    if not start and tokens == sum(lengths):
        wanted = plain_count(lengths, context=context, block_documents=block_documents)
        assert windows.count == wanted
        assert windows.long_documents == sum(length > context for length in lengths)


@given(room=st.integers(1, 300), data=st.data())
def test_the_compiled_packer_is_the_plain_one(room: int, data: st.DataObject) -> None:
    packer = NativePacker(room, load_native())
    for _ in range(2):  # what the first packing left behind does not show in the second
        lengths = data.draw(st.lists(st.integers(1, room), max_size=120))
        lengths.sort(reverse=True)
        rows, made = packer.pack(np.array(lengths, dtype=np.int64))
        assert (rows.tolist(), made) == best_fit_reference(lengths, room)
        plain_rows, plain_made = PlainPacker(room).pack(np.array(lengths, dtype=np.int64))
        assert np.array_equal(rows, plain_rows)
        assert made == plain_made
        used = np.bincount(rows, weights=lengths, minlength=made) if lengths else np.zeros(0)
        assert (used <= room).all()


def test_the_packer_of_the_module_and_of_the_c_file_pack_their_example() -> None:
    assert best_fit_reference([6, 5, 3, 2], 8) == ([0, 1, 1, 0], 2)


@pytest.mark.parametrize("form", ["nanogpt", "llmc", "npy"])
@pytest.mark.parametrize("eot", ["end", "start"])
@pytest.mark.parametrize("kind", ["contiguous", "document"])
def test_bare_files_give_the_windows_of_the_dataset_with_an_index(
    tmp_path: Path, form: Format, eot: Placement, kind: WindowKind
) -> None:
    """Documents are found by their end-of-text token; one document is that token alone."""
    path, bare = tmp_path / "ours", tmp_path / "bare"
    make_gpt2_dataset(path, form, [30, 1, 7, 200, 64, 1, 1, 90, 33], eot)
    bare.mkdir()
    for file in path.glob("train*"):
        shutil.copy(file, bare)
    peers = TokenDataset(bare, context=32, windows=kind, tokenizer="gpt2")
    assert_same_windows(TokenDataset(path, context=32, windows=kind), peers)
    if form == "nanogpt":
        one_file = TokenDataset(bare / "train.bin", context=32, windows=kind, tokenizer="gpt2")
        assert_same_windows(peers, one_file)


@pytest.mark.parametrize("kind", ["contiguous", "document"])
def test_a_megatron_pair_gives_the_windows_of_the_dataset_it_was(
    tmp_path: Path, kind: WindowKind
) -> None:
    path, pair = tmp_path / "ours", tmp_path / "pair"
    make_gpt2_dataset(path, "megatron", [30, 1, 7, 200, 64, 90], "end")
    pair.mkdir()
    for name in ("train.bin", "train.idx"):
        shutil.copy(path / name, pair)
    ours = TokenDataset(path, context=32, windows=kind)
    for place in (pair, pair / "train.bin", pair / "train.idx"):
        assert_same_windows(ours, TokenDataset(place, context=32, windows=kind))


def make_gpt2_dataset(folder: Path, form: Format, lengths: list[int], eot: Placement) -> None:
    layout = ShardLayout(format=form, vocabulary_size=NARROW, shard_tokens=100)
    make_dataset(folder, layout, train=make_stream(lengths, NARROW, eot=eot), eot=eot)


def assert_same_windows(ours: TokenDataset, peers: TokenDataset) -> None:
    assert ours.window_count == peers.window_count
    for epoch in range(2):
        count = ours.window_count
        for one, another in zip(
            ours.read(epoch * count, count, documents=True),
            peers.read(epoch * count, count, documents=True),
            strict=True,
        ):
            assert np.array_equal(one, another)


def test_without_an_index_or_a_tokenizer_the_error_says_what_to_name(tmp_path: Path) -> None:
    ids = make_stream([30, 40, 50], NARROW).ids.astype(np.uint16)
    assert ids[29] == GPT2_END
    ids.tofile(tmp_path / "train.bin")
    for make in (
        lambda: TokenDataset(tmp_path, context=16, windows="document"),
        lambda: TokenDataset(tmp_path, context=16).batch(0, 1, documents=True),
    ):
        with pytest.raises(UsageError) as caught:
            make()
        assert "tokenizer='gpt2'" in caught.value.remedy
    dataset = TokenDataset(tmp_path, context=16, windows="document", tokenizer="gpt2")
    x, _, _ = dataset.batch(0, dataset.window_count, documents=True)
    assert np.count_nonzero(x == GPT2_END) == 3


@pytest.mark.parametrize("context", [512, 1024, 2048])
def test_little_of_a_corpus_of_short_documents_is_padding(tmp_path: Path, context: int) -> None:
    """Lengths as web pages have them: half below 400 tokens, a few of many thousands."""
    lengths = np.random.default_rng(0).lognormal(6, 1, 20_000).astype(np.int64) + 1
    index = stored(tmp_path, lengths.tolist())
    windows = DocumentWindows(index, start=0, tokens=int(lengths.sum()), context=context)
    padding = 1 - windows.tokens / (windows.count * context)
    assert padding < 0.02


def test_windows_of_documents_come_in_another_order_in_each_epoch(tmp_path: Path) -> None:
    path = numbered_dataset(tmp_path, [13] * 400, shard_tokens=1000)
    dataset = TokenDataset(path, context=26, windows="document")
    first, second = (whole_epoch(dataset, epoch)[0][:, 0] for epoch in (0, 1))
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert np.count_nonzero(first == second) < 20
