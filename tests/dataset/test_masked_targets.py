"""Of examples, a target stays one if its own bit is set, and nothing else changes."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import Mixture, TokenDataset
from lowtide.dataset.settings import OrderKind, WindowKind
from lowtide.errors import VerificationError
from lowtide.settings import Format, Placement
from tests.dataset.examples import Flags, numbered_examples, some_flags
from tests.dataset.plain import IGNORED, Array, held_pieces, numbered_dataset, whole_epoch
from tests.shards.streams import fresh_folder

LENGTHS = [9, 31, 4, 1, 17, 60, 12, 8, 8, 25, 3]
TOKENS = sum(LENGTHS)


def plainly_silenced(y: Array, flags: Flags, *, ignored: int = IGNORED) -> Array:
    """Target by target: a numbered target's own position is its id less one."""
    told = [
        [at if at > 0 and flags[at - 1] else ignored for at in row]
        for row in np.where(y == ignored, 0, y).tolist()
    ]
    return np.array(told, dtype=np.int64)


@st.composite
def lengths(draw: st.DrawFn) -> list[int]:
    found = draw(st.lists(st.integers(1, 40), min_size=2, max_size=30))
    return [*found, 20]


@given(
    lengths=lengths(),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    context=st.integers(1, 19),
    windows=st.sampled_from(["contiguous", "document"]),
    order=st.sampled_from(["shuffled", "sequential"]),
    form=st.sampled_from(["npy", "llmc", "nanogpt"]),
    eot=st.sampled_from(["none", "end"]),
    batch_size=st.integers(1, 9),
)
def test_targets_are_those_of_the_text_whose_bit_is_set(
    lengths: list[int],
    seed: int,
    share: float,
    context: int,
    windows: WindowKind,
    order: OrderKind,
    form: Format,
    eot: Placement,
    batch_size: int,
) -> None:
    flags = some_flags(sum(lengths), seed, share)
    with fresh_folder() as folder:
        text = numbered_dataset(folder / "text", lengths, form=form, shard_tokens=23, eot=eot)
        made = numbered_examples(
            folder / "examples", lengths, flags, form=form, shard_tokens=23, eot=eot
        )
        plain, ours = (
            TokenDataset(one, context=context, seed=seed, windows=windows, order=order)
            for one in (text, made)
        )
        for epoch in (0, 1):
            (x, y), (our_x, our_y) = (whole_epoch(one, epoch, batch_size) for one in (plain, ours))
            assert np.array_equal(our_x, x)
            assert np.array_equal(our_y, plainly_silenced(y, flags))
        assert ours.learnt_tokens == flags.sum()
        assert plain.learnt_tokens is None


@pytest.fixture
def flags() -> Flags:
    return some_flags(TOKENS, 3)


@pytest.fixture
def made(tmp_path: Path, flags: Flags) -> Path:
    return numbered_examples(tmp_path / "made", LENGTHS, flags)


def test_examples_are_packed_whole_unless_someone_wants_otherwise(
    tmp_path: Path, made: Path
) -> None:
    text = numbered_dataset(tmp_path / "text", LENGTHS)
    assert TokenDataset(made, context=16).settings.windows == "document"
    assert TokenDataset(made, context=16, windows="contiguous").settings.windows == "contiguous"
    assert TokenDataset(text, context=16).settings.windows == "contiguous"


def test_no_example_that_fits_is_cut_and_none_is_left_out(made: Path) -> None:
    ends = np.cumsum(LENGTHS).tolist()
    for context in (60, 64, 200):
        dataset = TokenDataset(made, context=context)
        x, _ = whole_epoch(dataset)
        pieces = sorted(piece for row in x for piece in held_pieces(row, ends))
        assert pieces == list(zip([0, *ends[:-1]], ends, strict=True))
        assert dataset.padding_share == pytest.approx((x == 0).mean())


def test_the_end_in_front_of_the_next_example_is_no_target(tmp_path: Path, flags: Flags) -> None:
    """Where text would learn that it ends, an example learns what its bits say."""
    all_learnt = np.ones(TOKENS, dtype=np.bool_)
    for chosen in (flags, all_learnt):
        name = f"made-{chosen.sum()}"
        made = numbered_examples(tmp_path / name, LENGTHS, chosen, eot="start")
        x, y = whole_epoch(TokenDataset(made, context=16))
        assert np.isin(y[y != IGNORED], x).all()
        assert chosen[y[y != IGNORED] - 1].all()


def test_a_share_of_a_split_counts_its_own(made: Path, flags: Flags) -> None:
    front = TokenDataset(made, context=16, val_fraction=0.3)
    assert front.tokens < TOKENS
    assert front.learnt_tokens == flags[: front.tokens].sum()
    back = TokenDataset(made, "val", context=16, val_fraction=0.3)
    assert back.learnt_tokens == flags[front.tokens :].sum()
    _, y = whole_epoch(back)
    assert flags[y[y != IGNORED] - 1].all()


def test_every_way_of_reading_gives_the_same_targets(made: Path) -> None:
    dataset = TokenDataset(made, context=16, seed=4)
    x, y = (one.copy() for one in dataset.read(0, dataset.window_count))
    items = dataset.items()
    assert all(np.array_equal(items[at][1], y[at]) for at in range(len(items)))
    for at in range(len(items)):
        labels = dataset.trainer_items()[at]["labels"]
        assert np.array_equal(labels[1:], y[at][:-1])
    loaded = [tensors[1].numpy().copy() for tensors in dataset.loader(3, epochs=1)]
    assert np.array_equal(np.concatenate(loaded), y)
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - as a worker gets it
    assert np.array_equal(again.read(0, len(y))[1], y)
    mixed = Mixture({"all": (dataset, 1.0)})
    assert np.array_equal(mixed.read(0, len(y))[1], y)
    assert x.shape == y.shape


def test_documents_are_numbered_as_they_are_packed(made: Path) -> None:
    ends = np.cumsum(LENGTHS).tolist()
    dataset = TokenDataset(made, context=40)
    x, _, ids = dataset.read(0, dataset.window_count, documents=True)
    for row, numbers in zip(x, ids, strict=True):
        told = [stop - start for start, stop in held_pieces(row, ends)]
        wanted = np.repeat(np.arange(len(told)), told).tolist()
        assert numbers.tolist() == wanted + [-1] * (40 - len(wanted))


def test_the_bits_are_part_of_what_a_resumed_run_must_find(
    tmp_path: Path, made: Path, flags: Flags
) -> None:
    other = numbered_examples(tmp_path / "other", LENGTHS, ~flags)
    text = numbered_dataset(tmp_path / "text", LENGTHS)
    here, there = (TokenDataset(one, context=16).identity() for one in (made, other))
    assert here["learnt"] != there["learnt"]
    assert {**here, "learnt": 0} == {**there, "learnt": 0}
    assert "learnt" not in TokenDataset(text, context=16).identity()


def test_figures_are_shown(made: Path, flags: Flags) -> None:
    facts = TokenDataset(made, context=16).describe()
    assert facts.learnt_tokens == flags.sum()
    assert f"{flags.sum()} tokens" in str(facts)
    assert "% padding" in str(facts)


def test_damaged_or_changed_bits_are_noticed(made: Path) -> None:
    dataset = TokenDataset(made, context=16)
    path = made / "learnt_TRAIN.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(VerificationError, match="rewritten"):
        dataset.read(0, 2)
    with pytest.raises(VerificationError, match="not those that were written"):
        TokenDataset(made, context=16)
