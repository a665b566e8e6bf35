"""Loss masks: what goes in comes out, at any chunk, any mark and any kill; damage is found and named."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import UsageError, VerificationError
from lowtide.shards import loss_mask
from lowtide.shards.layout import (
    MANIFEST_NAME,
    NPY_HEADER_BYTES,
    WORK_FOLDER,
    ShardLayout,
    learnt_name,
)
from lowtide.shards.loss_mask import LossMask, LossMaskWriter
from lowtide.shards.manifest import SplitRecord, file_names, read_manifest, write_manifest
from lowtide.shards.payload import PartialFile
from lowtide.shards.read import open_dataset
from lowtide.shards.verify import verify_dataset
from lowtide.shards.write import SplitWriter, WriterMark
from tests.shards.streams import (
    NARROW,
    Stream,
    folder_bytes,
    fresh_folder,
    make_dataset,
    make_examples,
    make_stream,
    store_mark,
    write_split,
)

NPY = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=100)
FLAGS = st.lists(st.booleans(), min_size=1, max_size=90).map(lambda one: np.array(one, dtype=bool))
NAME = learnt_name("train")


def one_document(flags: np.ndarray) -> Stream:
    return Stream(np.ones(len(flags), dtype=np.uint32), np.array([len(flags)]), flags)


def examples(folder: Path, layout: ShardLayout = NPY) -> Stream:
    stream = make_examples([30, 70, 1, 99, 43], NARROW)
    make_dataset(folder, layout, train=stream, val=make_examples([20, 7], NARROW, seed=5))
    return stream


@given(flags=FLAGS)
def test_the_file_is_what_numpy_saves_of_its_own_packed_bits(flags: np.ndarray) -> None:
    with fresh_folder() as folder:
        record = write_split(folder, NPY, "train", one_document(flags))
        np.save(folder / "numpys.npy", np.packbits(flags, bitorder="little"))
        assert (folder / NAME).read_bytes() == (folder / "numpys.npy").read_bytes()
        unpacked = np.unpackbits(np.load(folder / NAME), bitorder="little")
    assert np.array_equal(unpacked[: len(flags)], flags)
    assert not unpacked[len(flags) :].any()
    assert record.learnt
    assert record.learnt.tokens == flags.sum()


@given(flags=FLAGS, data=st.data())
def test_any_stretch_reads_as_it_was_written(flags: np.ndarray, data: st.DataObject) -> None:
    places = st.tuples(st.integers(0, len(flags)), st.integers(0, len(flags))).map(sorted)
    stretches = data.draw(st.lists(places, max_size=12))
    with fresh_folder() as folder:
        write_split(folder, NPY, "train", one_document(flags))
        bits = LossMask(folder / NAME, len(flags))
        for start, stop in stretches:
            assert np.array_equal(bits.read(start, stop), flags[start:stop])
        starts = np.array([start for start, _ in stretches], dtype=np.int64)
        counts = np.array([stop - start for start, stop in stretches], dtype=np.int64)
        found = bits.read_pieces(starts, counts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loss_mask, "_COUNTED_TOKENS", data.draw(st.integers(1, 100)))
            assert bits.count(0, len(flags)) == flags.sum()
            for start, stop in stretches:
                assert bits.count(start, stop) == flags[start:stop].sum()
    wanted = [flags[start:stop] for start, stop in stretches]
    assert found.dtype == np.bool_
    assert np.array_equal(found, np.concatenate([np.empty(0, dtype=bool), *wanted]))


def test_every_mark_is_a_place_to_go_on_from(tmp_path: Path) -> None:
    """Killed after each token in turn, and gone on with: the waiting bits of an open byte are in the mark."""
    stream = make_examples([11, 9, 13], NARROW)
    with fresh_folder() as folder:
        record = write_split(folder, NPY, "train", stream).learnt
        whole = folder_bytes(folder)
    for kill_at in range(len(stream.ids) + 1):
        folder = tmp_path / str(kill_at)
        with SplitWriter.start(folder, NPY, "train", learnt=True) as writer:
            writer.append(*stream.chunk(0, kill_at))
            stored = WriterMark.from_json(writer.mark().as_json(), folder)
            writer.append(*stream.chunk(kill_at, len(stream.ids)))
        with SplitWriter.resume(folder, NPY, stored) as writer:
            writer.append(*stream.chunk(kill_at, len(stream.ids)))
            assert writer.seal().learnt == record
        assert folder_bytes(folder) == whole


def test_a_seal_without_a_manifest_is_taken_back_at_any_bit(tmp_path: Path) -> None:
    stream = make_examples([19], NARROW)
    for kill_at in range(20):
        folder = tmp_path / str(kill_at)
        with SplitWriter.start(folder, NPY, "train", learnt=True) as writer:
            writer.append(*stream.chunk(0, kill_at))
            mark = writer.mark()
            writer.append(*stream.chunk(kill_at, 19))
            writer.seal()
            whole = folder_bytes(folder)
        with SplitWriter.resume(folder, NPY, mark) as writer:
            assert folder_bytes(folder) == {}
            writer.append(*stream.chunk(kill_at, 19))
            writer.seal()
        assert folder_bytes(folder) == whole


def test_a_split_of_examples_without_tokens_leaves_no_file_and_can_be_sealed_again(
    tmp_path: Path,
) -> None:
    nothing = make_examples([], NARROW)
    with SplitWriter.start(tmp_path, NPY, "val", learnt=True) as writer:
        writer.append(*nothing.chunk(0, 0))
        mark = writer.mark()
        assert writer.seal() == SplitRecord()
    with SplitWriter.resume(tmp_path, NPY, mark) as writer:
        writer.seal()
    assert folder_bytes(tmp_path) == {}
    assert list((tmp_path / WORK_FOLDER).iterdir()) == []


def test_bits_longer_than_every_buffer_come_out_the_same(tmp_path: Path) -> None:
    flags = np.random.default_rng(3).random(11_000_003) < 0.5
    writer = LossMaskWriter(PartialFile.create(tmp_path / "bits", NPY_HEADER_BYTES), "train")
    at = 0
    for length in (1, 7, 9_000_000, 3, 1_999_992):
        writer.append(flags[at : at + length])
        at += length
    writer.append(flags[at:])
    record = writer.finish()
    assert record.tokens == flags.sum()
    assert np.array_equal(np.load(tmp_path / "bits"), np.packbits(flags, bitorder="little"))


def test_examples_bring_a_flag_for_each_token_and_text_brings_none(tmp_path: Path) -> None:
    stream = make_examples([9], NARROW)
    with (
        SplitWriter.start(tmp_path, NPY, "train", learnt=True) as of_examples,
        SplitWriter.start(tmp_path, NPY, "val") as of_text,
    ):
        for flags in (None, stream.learnt[:8]):  # type: ignore[index]
            with pytest.raises(AssertionError, match=r"flag per token|loss mask"):
                of_examples.append(stream.ids, stream.ends, flags)
        with pytest.raises(AssertionError, match="text has none"):
            of_text.append(stream.ids, stream.ends, stream.learnt)


def test_a_progress_file_from_before_there_were_examples_still_loads(tmp_path: Path) -> None:
    stream = make_stream([130], NARROW)
    with SplitWriter.start(tmp_path, NPY, "train") as writer:
        writer.append(stream.ids, stream.ends)
        old = writer.mark().as_json()
    del old["learnt"]
    with SplitWriter.resume(tmp_path, NPY, WriterMark.from_json(old, tmp_path)) as writer:
        assert writer.tokens == 130
        assert writer.seal().learnt is None


def test_resume_refuses_a_flipped_bit_before_the_mark(tmp_path: Path) -> None:
    stream = make_examples([90], NARROW)
    with SplitWriter.start(tmp_path, NPY, "train", learnt=True) as writer:
        writer.append(*stream.chunk(0, 85))
        store_mark(writer, tmp_path / WORK_FOLDER / "progress.json")
        mark = writer.mark()
    damage(tmp_path / WORK_FOLDER / f"{NAME}.partial", NPY_HEADER_BYTES + 3)
    with pytest.raises(VerificationError, match=f"{NAME}.*not what was written"):
        SplitWriter.resume(tmp_path, NPY, mark)


def damage(path: Path, at: int, bit: int = 0) -> None:
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1 << bit
    path.write_bytes(changed)


# The manifest


def test_a_dataset_of_examples_has_version_2_and_says_how_they_were_made(tmp_path: Path) -> None:
    stream = examples(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest.format_version == 2
    assert manifest.examples
    assert (manifest.examples.kind, manifest.examples.context) == ("chat", 64)
    assert manifest.splits["train"].learnt
    assert manifest.splits["train"].learnt.tokens == np.count_nonzero(stream.learnt)
    assert {NAME, learnt_name("val")} <= set(file_names(manifest))
    assert set(file_names(manifest)) | {MANIFEST_NAME} == {p.name for p in tmp_path.iterdir()}


def test_a_manifest_of_text_says_nothing_of_examples(tmp_path: Path) -> None:
    make_dataset(tmp_path, NPY, train=make_stream([9], NARROW))
    text = (tmp_path / MANIFEST_NAME).read_text()
    assert "learnt" not in text
    assert "examples" not in text
    keys = re.findall(r'^  "(\w+)"', text, re.MULTILINE)
    assert keys[-5:] == ["empty_documents", "format_version", "tokens", "documents", "seal"]
    assert read_manifest(tmp_path).format_version == 1


@pytest.mark.parametrize("name", ["../thesis", "learnt_VAL.npy", "train_000000.npy"])
def test_a_manifest_names_no_other_file_for_its_bits(name: str, tmp_path: Path) -> None:
    examples(tmp_path)
    manifest = read_manifest(tmp_path)
    train = manifest.splits["train"]
    assert train.learnt
    forged = dataclasses.replace(train, learnt=dataclasses.replace(train.learnt, name=name))
    write_manifest(tmp_path, dataclasses.replace(manifest, splits={"train": forged}))
    with pytest.raises(VerificationError):
        read_manifest(tmp_path)


def test_examples_without_their_bits_are_never_read_as_text(tmp_path: Path) -> None:
    """Every token of a prompt would be learnt, and nobody would notice."""
    examples(tmp_path)
    manifest = read_manifest(tmp_path)
    bare = dataclasses.replace(manifest.splits["train"], learnt=None)
    write_manifest(tmp_path, dataclasses.replace(manifest, splits={"train": bare}))
    with pytest.raises(VerificationError, match="no loss mask for train"):
        open_dataset(tmp_path)
    (tmp_path / MANIFEST_NAME).unlink()
    with pytest.raises(VerificationError, match=f"holds {NAME} but no {MANIFEST_NAME}"):
        open_dataset(tmp_path)


# Reading and damage


def test_an_open_split_knows_its_bits_and_text_has_none(tmp_path: Path) -> None:
    stream = examples(tmp_path / "examples")
    bits = open_dataset(tmp_path / "examples").splits["train"].loss_mask
    assert bits
    assert (bits.path, bits.tokens) == (tmp_path / "examples" / NAME, 243)
    assert np.array_equal(bits.read(0, 243), stream.learnt)
    make_dataset(tmp_path / "text", NPY, train=make_stream([9], NARROW))
    assert open_dataset(tmp_path / "text").splits["train"].loss_mask is None


def test_reading_beyond_the_tokens_is_refused(tmp_path: Path) -> None:
    examples(tmp_path)
    bits = LossMask(tmp_path / NAME, 243)
    for start, stop in ((-1, 3), (5, 4), (240, 244)):
        with pytest.raises(UsageError, match=NAME):
            bits.read(start, stop)
    for begin, count in ((-1, 3), (240, 4)):
        with pytest.raises(UsageError, match=NAME):
            bits.read_pieces(np.array([0, begin]), np.array([1, count]))


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    examples(tmp_path)
    bits = LossMask(tmp_path / NAME, 243)
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [bits.read_pieces(np.array([3]), np.array([60])) for _ in range(50)]
    assert len(kept) == 50
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("layout", [NPY, ShardLayout(format="megatron", vocabulary_size=NARROW)])
def test_sound_examples_have_no_problems(layout: ShardLayout, tmp_path: Path) -> None:
    examples(tmp_path, layout)
    found = verify_dataset(tmp_path)
    assert found.problems == ()
    assert found.files == len(list(tmp_path.iterdir()))


@given(data=st.data())
def test_any_flipped_bit_of_the_file_is_found(data: st.DataObject) -> None:
    with fresh_folder() as folder:
        examples(folder)
        size = (folder / NAME).stat().st_size
        damage(folder / NAME, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
        problems = verify_dataset(folder).problems
    assert problems
    assert all(problem.startswith(NAME) for problem in problems)


def test_two_tokens_that_changed_places_are_found(tmp_path: Path) -> None:
    """As many are learnt as before: the digest tells."""
    stream = examples(tmp_path)
    assert stream.learnt is not None
    for token in (np.flatnonzero(stream.learnt)[3], np.flatnonzero(~stream.learnt)[5]):
        damage(tmp_path / NAME, NPY_HEADER_BYTES + int(token) // 8, int(token) % 8)
    problems = verify_dataset(tmp_path).problems
    assert problems == (f"{NAME}: its bits are not those that were written",)


def test_bits_behind_the_last_token_are_zero_even_where_the_digest_agrees(tmp_path: Path) -> None:
    import xxhash

    examples(tmp_path)
    damage(tmp_path / NAME, NPY_HEADER_BYTES + 243 // 8, 7)
    manifest = read_manifest(tmp_path)
    train = manifest.splits["train"]
    assert train.learnt
    digest = xxhash.xxh3_128_hexdigest((tmp_path / NAME).read_bytes()[NPY_HEADER_BYTES:])
    forged = dataclasses.replace(train, learnt=dataclasses.replace(train.learnt, digest=digest))
    splits = {**manifest.splits, "train": forged}
    write_manifest(tmp_path, dataclasses.replace(manifest, splits=splits))
    problems = verify_dataset(tmp_path).problems
    assert any("after the last of 243 tokens" in one for one in problems)
    assert any("tokens are learnt instead of" in one for one in problems)


@pytest.mark.parametrize("change", ["cut", "longer", "missing"])
def test_a_file_of_another_length_is_refused_by_name_with_a_remedy(
    change: str, tmp_path: Path
) -> None:
    examples(tmp_path)
    path = tmp_path / NAME
    whole = path.read_bytes()
    bits = open_dataset(tmp_path).splits["train"].loss_mask
    assert bits
    path.unlink()
    if change != "missing":
        path.write_bytes(whole[:-1] if change == "cut" else whole + b"\0")
    assert NAME in "\n".join(verify_dataset(tmp_path).problems)
    with pytest.raises(VerificationError, match=NAME) as refused:
        open_dataset(tmp_path)
    assert NAME in refused.value.remedy
    if change != "longer":
        with pytest.raises(VerificationError, match=NAME):
            bits.read_pieces(np.array([0, 239]), np.array([8, 4]))
    path.write_bytes(whole)
    assert verify_dataset(tmp_path).sound
