"""A file of a dataset that is named alone: what lies beside it says what it is, and what evaluates it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowtide import TokenDataset
from lowtide.errors import UsageError, VerificationError
from lowtide.settings import Format
from lowtide.shards.layout import FORMATS, MANIFEST_NAME, ShardLayout
from lowtide.stages.plan import look_at_data
from lowtide.stages.run_source import dataset_source
from tests.dataset.plain import whole_epoch
from tests.shards.streams import NARROW, WIDE, Stream, make_dataset, make_examples, make_stream
from tests.shards.test_read import strip

LENGTHS = [30, 41, 1, 80, 39]
CONTEXT = 8


def one_file(folder: Path, form: Format, *, size: int = NARROW, learnt: bool = False) -> Path:
    """A dataset of which each split is one file; the one to train on."""
    make = make_examples if learnt else make_stream
    layout = ShardLayout(format=form, vocabulary_size=size)
    made = make_dataset(folder, layout, train=make(LENGTHS, size), val=make([20, 7], size, seed=1))
    return folder / made.splits["train"].shards[0].name


def windows(path: Path, split: str = "train", **more: object) -> list[list[list[int]]]:
    dataset = TokenDataset(path, split, CONTEXT, **more)  # type: ignore[arg-type]
    return [array.tolist() for array in whole_epoch(dataset)]


@pytest.mark.parametrize("size", [NARROW, WIDE])
@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_the_file_of_a_split_stands_for_its_dataset(
    tmp_path: Path, form: Format, learnt: bool, size: int
) -> None:
    named = one_file(tmp_path, form, size=size, learnt=learnt)
    asked = [named, named.with_suffix(".idx")] if form == "megatron" else [named]
    for file in asked:
        found = look_at_data(file, None)
        assert found == replace(look_at_data(tmp_path, None), path=str(file))
        assert (found.vocabulary_size, found.vocabulary_known) == (size, True)
        assert found.val_fraction is None
        for split in ("train", "val"):
            assert windows(file, split) == windows(tmp_path, split)
        source, whole = (
            dataset_source(TokenDataset(one, context=CONTEXT)) for one in (file, tmp_path)
        )
        assert replace(source, stream=whole.stream) == whole


@pytest.mark.parametrize("learnt", [False, True])
def test_one_of_several_shards_is_that_shard_with_all_that_is_known_of_it(
    tmp_path: Path, learnt: bool
) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=70)
    make = make_examples if learnt else make_stream
    stream, val = make(LENGTHS, NARROW), make([20, 7], NARROW, seed=1)
    make_dataset(tmp_path / "tokens", layout, train=stream, val=val)
    identities = []
    for number in (0, 1):
        part = slice(70 * number, 70 * number + 70)
        shard = tmp_path / "tokens" / f"train_{number:06d}.npy"
        found = look_at_data(shard, None)
        assert (found.train_tokens, found.vocabulary_known, found.val_fraction) == (70, True, None)
        assert windows(shard, "val") == windows(tmp_path / "tokens", "val")
        dataset = TokenDataset(shard, context=CONTEXT, windows="contiguous", order="sequential")
        x, y = dataset.read(0, 8)  # the ninth is padded
        ids = stream.ids[part].astype(np.int64)
        assert x.ravel().tolist() == ids[:64].tolist()
        if stream.learnt is not None:
            flags = stream.learnt[part]
            assert found.learnt_tokens == dataset.learnt_tokens == np.count_nonzero(flags)
            assert y.ravel().tolist() == np.where(flags, ids, -100)[1:65].tolist()
        identities.append(dataset.identity())
    assert identities[0] != identities[1]


def test_a_share_of_a_named_file_is_what_it_was_without_a_manifest(tmp_path: Path) -> None:
    """So that a run that began with such a share can be resumed."""
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=70)
    train, val = make_stream(LENGTHS, NARROW), make_stream([20, 7], NARROW, seed=1)
    make_dataset(tmp_path / "tokens", layout, train=train, val=val)
    shutil.copytree(tmp_path / "tokens", tmp_path / "bare")
    strip(tmp_path / "bare")
    for name in ("train_000000.npy", "train_000001.npy", "val_000000.npy"):
        for split in ("train", "val"):
            known, bare = (
                TokenDataset(tmp_path / folder / name, split, 4, val_fraction=0.3)
                for folder in ("tokens", "bare")
            )
            assert known.identity() == bare.identity()
            for one, other in zip(whole_epoch(known), whole_epoch(bare), strict=True):
                assert one.tolist() == other.tolist()


def test_the_file_of_a_validation_split_has_nothing_to_train_on(tmp_path: Path) -> None:
    val = one_file(tmp_path, "nanogpt").with_name("val.bin")
    assert windows(val, "val") == windows(tmp_path, "val")
    for look in (lambda: TokenDataset(val, context=CONTEXT), lambda: look_at_data(val, None)):
        with pytest.raises(UsageError):
            look()


def test_beside_a_manifest_that_is_damaged_or_of_other_files_nothing_is_guessed(
    tmp_path: Path,
) -> None:
    named = one_file(tmp_path, "nanogpt")
    shutil.copy(named, other := tmp_path / "other.bin")
    assert not look_at_data(other, None).vocabulary_known
    manifest = tmp_path / MANIFEST_NAME
    manifest.write_bytes(manifest.read_bytes().replace(b'"a.txt"', b'"b.txt"'))
    with pytest.raises(VerificationError):
        look_at_data(named, None)


@pytest.mark.parametrize("form", ["nanogpt", "megatron"])
def test_val_bin_is_the_validation_split_of_a_peers_train_bin(tmp_path: Path, form: Format) -> None:
    named = one_file(tmp_path, form)
    strip(tmp_path)
    found = look_at_data(named, None)
    assert (found.train_tokens, found.val_fraction) == (sum(LENGTHS), None)
    assert windows(named, "val") == windows(tmp_path / "val.bin", "val")
    assert TokenDataset(named, "val", 4, val_fraction=0.3).tokens == 58  # a share of the file alone


@pytest.mark.parametrize("case", ["none", "another format", "another name"])
def test_what_else_lies_beside_a_peers_file_is_not_its_validation_split(
    tmp_path: Path, case: str
) -> None:
    named = one_file(tmp_path, "nanogpt")
    strip(tmp_path)
    val = tmp_path / "val.bin"
    if case == "none":
        val.unlink()
    if case == "another format":
        other = ShardLayout(format="llmc", vocabulary_size=NARROW)
        stream: Stream = make_stream([20, 7], NARROW)
        made = make_dataset(tmp_path / "llmc", other, train=stream)
        (tmp_path / "llmc" / made.splits["train"].shards[0].name).rename(val)
    if case == "another name":
        named = named.rename(tmp_path / "train_2.bin")
    assert look_at_data(named, None).val_fraction == 0.005
    with pytest.raises(UsageError):
        TokenDataset(named, "val", CONTEXT)
