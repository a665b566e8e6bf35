"""Mixtures: exact by weight after every window, pure in the position, every source in its own order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide import Mixture, TokenDataset
from lowtide.dataset.settings import WindowKind
from lowtide.errors import UsageError
from lowtide.shards.layout import ShardLayout
from lowtide.shards.manifest import read_manifest
from tests.dataset.plain import NUMBERED, Array, numbered, numbered_dataset, rename_tokenizer
from tests.shards.streams import make_dataset, make_stream

NAMES = ("web", "code", "books", "mail")
LENGTHS = {"web": [31] * 30, "code": [7] * 40, "books": [400, 300], "mail": [3] * 20}
FIRST_ID = {name: 10_000 * number for number, name in enumerate(NAMES)}
WEIGHTS = st.lists(st.integers(1, 2000), min_size=1, max_size=len(NAMES))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenDataset]:
    """Four datasets; the ids of a window say which one it comes from. Two have windows of documents."""
    found = {}
    for number, name in enumerate(NAMES):
        folder = tmp_path_factory.mktemp(name)
        stream = make_stream(LENGTHS[name], NUMBERED)
        stream.ids[:] = numbered(len(stream.ids)) + FIRST_ID[name]
        layout = ShardLayout(format="npy", vocabulary_size=NUMBERED, shard_tokens=100)
        make_dataset(folder, layout, train=stream)
        kind: WindowKind = "document" if number % 2 else "contiguous"
        found[name] = TokenDataset(folder, context=10, seed=number, windows=kind)
    return found


def mix(sources: dict[str, TokenDataset], weights: Sequence[float]) -> Mixture:
    return Mixture(
        {name: (sources[name], weight) for name, weight in zip(NAMES, weights, strict=False)}
    )


def window_shares(mixture: Mixture, weights: Sequence[int]) -> list[Fraction]:
    """Weights count tokens: a source whose windows are half empty gives twice as many."""
    rates = [
        weight * Fraction(dataset.window_count, dataset.tokens)
        for weight, dataset in zip(weights, mixture.sources.values(), strict=True)
    ]
    return [rate / sum(rates) for rate in rates]


def sources_of(x: Array) -> Array:
    """The number of the source that each window comes from: its first token says it."""
    return (x[:, 0] - 1) // 10_000


@given(weights=WEIGHTS, first=st.integers(0, 10**9), count=st.integers(1, 400))
def test_after_any_number_of_windows_each_source_has_its_share(
    sources: dict[str, TokenDataset], weights: list[int], first: int, count: int
) -> None:
    mixture = mix(sources, weights)
    chosen, starts = mixture.choose(first, count)
    assert sum(starts) == first
    for number, share in enumerate(window_shares(mixture, weights)):
        taken = starts[number] + np.cumsum(chosen == number)
        for after, windows in enumerate(taken.tolist(), first + 1):
            assert abs(windows - after * share) < len(weights)


@given(weights=WEIGHTS, data=st.data())
def test_every_sources_windows_come_in_its_own_order_without_gap_or_repeat(
    sources: dict[str, TokenDataset], weights: list[int], data: st.DataObject
) -> None:
    mixture = mix(sources, weights)
    windows = data.draw(st.integers(1, 200))
    x, y, ids = mixture.read(0, windows, documents=True)
    chosen = sources_of(x)
    assert np.array_equal(chosen, mixture.choose(0, windows)[0])
    for number, dataset in enumerate(mixture.sources.values()):
        rows = np.flatnonzero(chosen == number)
        if rows.size:
            own = dataset.read(0, len(rows), documents=True)
            for found, wanted in zip((x[rows], y[rows], ids[rows]), own, strict=True):
                assert np.array_equal(found, wanted)


@given(weights=WEIGHTS, first=st.integers(0, 10**7), steps=st.lists(st.integers(1, 30), min_size=1))
def test_a_window_depends_on_its_position_alone(
    sources: dict[str, TokenDataset], weights: list[int], first: int, steps: list[int]
) -> None:
    """Read in any pieces, by any ranks, after any stop: the same windows."""
    whole = mix(sources, weights).read(first, sum(steps))
    at, parts = first, []
    for step in steps:
        parts.append(mix(sources, weights).read(at, step))
        at += step
    for number in (0, 1):
        assert np.array_equal(np.concatenate([part[number] for part in parts]), whole[number])


def test_batches_are_positions_in_a_row(sources: dict[str, TokenDataset]) -> None:
    mixture = mix(sources, [3, 2, 1])
    for k in (5, 0, 6, 1000):
        for one, another in zip(mixture.batch(k, 7), mixture.read(7 * k, 7), strict=True):
            assert np.array_equal(one, another)
    arrays = tuple(np.zeros((7, 10), dtype=np.int64) for _ in range(3))
    mixture.fill(35, arrays)
    for one, another in zip(arrays, mixture.read(35, 7, documents=True), strict=True):
        assert np.array_equal(one, another)


@given(weights=WEIGHTS, scale=st.sampled_from([1e-12, 1e-7, 1e-3, 0.1, 1e9]))
def test_only_the_proportions_of_weights_count(
    sources: dict[str, TokenDataset], weights: list[int], scale: float
) -> None:
    plain, scaled = mix(sources, weights), mix(sources, [weight * scale for weight in weights])
    assert np.array_equal(plain.choose(10**6, 500)[0], scaled.choose(10**6, 500)[0])
    assert plain.choose(10**6, 1)[1] == scaled.choose(10**6, 1)[1]


def test_tokens_and_not_windows_are_weighed(sources: dict[str, TokenDataset]) -> None:
    """Mail is packed at three documents of three tokens a window of ten; web's windows are full."""
    mixture = Mixture({"web": (sources["web"], 0.5), "mail": (sources["mail"], 0.5)})
    x, _ = mixture.read(0, 20_000)
    held = [np.count_nonzero(x[sources_of(x) == number]) for number in (0, 3)]
    assert held[0] / held[1] == pytest.approx(1, abs=1e-3)


@given(weights=WEIGHTS, tokens=st.integers(1000, 10**12))
def test_the_plan_adds_up(
    sources: dict[str, TokenDataset], weights: list[int], tokens: int
) -> None:
    mixture = mix(sources, weights)
    plan = mixture.plan(tokens)
    assert sum(one.share for one in plan.sources) == pytest.approx(1)
    assert abs(sum(one.taken_tokens for one in plan.sources) - tokens) <= len(weights)
    lines = str(plan).splitlines()
    assert lines[0].split() == ["source", "tokens", "share", "taken", "epochs"]
    for one, weight, line in zip(plan.sources, weights, lines[1:], strict=True):
        assert one.tokens == sources[one.name].tokens
        assert one.share == pytest.approx(weight / sum(weights))
        assert one.taken_tokens == pytest.approx(tokens * one.share, abs=1)
        assert one.epochs * one.tokens == pytest.approx(one.taken_tokens)
        assert line.startswith(one.name)
        assert f"{one.share:.2%}" in line
        assert f"{one.epochs:.2f}" in line


def test_a_run_takes_what_its_plan_says(sources: dict[str, TokenDataset]) -> None:
    mixture = mix(sources, [5, 3, 1, 1])
    x, _ = mixture.read(0, 5000)
    plan = mixture.plan(int(np.count_nonzero(x)))
    for number, one in enumerate(plan.sources):
        taken = np.count_nonzero(x[sources_of(x) == number])
        assert abs(taken - one.taken_tokens) < 10 * mixture.context
        assert abs(taken / one.tokens - one.epochs) < 10 * mixture.context / one.tokens


def test_a_mixture_of_one_is_its_source(sources: dict[str, TokenDataset]) -> None:
    x, y = Mixture({"web": (sources["web"], 0.3)}).read(11, 300)
    own_x, own_y = sources["web"].read(11, 300)
    assert np.array_equal(x, own_x)
    assert np.array_equal(y, own_y)


def test_a_copy_gives_the_same_windows(sources: dict[str, TokenDataset]) -> None:
    mixture = mix(sources, [0.5, 0.2, 0.3])
    twin = copy.copy(mixture)
    assert twin.identity() == mixture.identity()
    assert np.array_equal(twin.batch(9, 16)[0], mixture.batch(9, 16)[0])


def test_identity_knows_the_weights_and_the_order_of_sources(
    sources: dict[str, TokenDataset],
) -> None:
    """Whatever changes a window changes it."""
    identity = mix(sources, [2, 1]).identity()
    assert identity == mix(sources, [4, 2]).identity()
    web, code = sources["web"], sources["code"]
    for other in (
        Mixture({"web": (web, 2), "code": (code, 2)}),
        Mixture({"web": (web, 2), "code": (sources["mail"], 1)}),
        Mixture({"code": (code, 1), "web": (web, 2)}),
    ):
        assert list(identity.items()) != list(other.identity().items())
        assert identity != other.identity()


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_is_above_zero(sources: dict[str, TokenDataset], weight: float) -> None:
    with pytest.raises(UsageError, match="'code'") as caught:
        mix(sources, [1, weight])
    assert "above zero" in caught.value.remedy


def test_a_mixture_has_a_source() -> None:
    with pytest.raises(UsageError):
        Mixture({})


@pytest.mark.parametrize(("k", "size"), [(-1, 4), (0, 0)])
def test_batches_count_from_zero(sources: dict[str, TokenDataset], k: int, size: int) -> None:
    with pytest.raises(UsageError):
        mix(sources, [1, 1]).batch(k, size)


def test_other_tokenizers_do_not_mix(sources: dict[str, TokenDataset], tmp_path: Path) -> None:
    numbered_dataset(tmp_path, [50, 60])
    rename_tokenizer(tmp_path, read_manifest(tmp_path), "e" * 32)
    other = TokenDataset(tmp_path, context=10)
    with pytest.raises(UsageError, match="'web' was made by test and 'more' by other") as caught:
        Mixture({"web": (sources["web"], 1), "more": (other, 1)})
    assert "tokenize 'more' again with the tokenizer of 'web'" in caught.value.remedy
    rename_tokenizer(tmp_path, read_manifest(tmp_path), "f" * 32)
    again = TokenDataset(tmp_path, context=10)
    assert len(Mixture({"web": (sources["web"], 1), "more": (again, 1)}).batch(0, 4)[0]) == 4


def test_an_unknown_tokenizer_is_to_be_named(tmp_path: Path) -> None:
    numbered(500).astype(np.uint16).tofile(tmp_path / "train.bin")
    unknown = TokenDataset(tmp_path, context=10)
    with pytest.raises(UsageError, match="'bare'") as caught:
        Mixture({"bare": (unknown, 1)})
    assert "tokenizer='gpt2'" in caught.value.remedy
    named = TokenDataset(tmp_path, context=10, tokenizer="gpt2")
    assert Mixture({"bare": (named, 1)}).batch(0, 4)[0].shape == (4, 10)


@pytest.mark.parametrize("options", [{"context": 11}, {"context": 10, "ignore_index": -1}])
def test_sources_are_opened_alike(
    sources: dict[str, TokenDataset], tmp_path: Path, options: dict[str, int]
) -> None:
    numbered_dataset(tmp_path, [50, 60])
    other = TokenDataset(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        Mixture({"web": (sources["web"], 1), "more": (other, 1)})
    assert "the same" in caught.value.remedy
    alike = TokenDataset(tmp_path, context=10)
    assert Mixture({"web": (sources["web"], 1), "more": (alike, 1)}).context == 10
