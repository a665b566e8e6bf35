"""The bytes on disk depend on the token stream alone: not on chunks, nor on kills and resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError, StorageError, UsageError, VerificationError
from lowtide.shards import payload
from lowtide.shards.layout import WORK_FOLDER, ShardLayout
from lowtide.shards.manifest import SplitRecord
from lowtide.shards.write import SplitWriter, WriterMark, verify_finished
from tests.shards.streams import (
    NARROW,
    Stream,
    every_layout,
    folder_bytes,
    fresh_folder,
    layout_name,
    make_examples,
    make_stream,
    open_writer,
    small_pipeline,
    store_mark,
    write_split,
)

NPY = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=100)
STREAMS = st.lists(st.integers(1, 60), min_size=1, max_size=12)
LAYOUTS = st.builds(
    ShardLayout,
    format=st.sampled_from(["npy", "nanogpt", "llmc", "megatron"]),
    vocabulary_size=st.sampled_from([100, 200019]),
    shard_tokens=st.integers(5, 120),
)
NO_ENDS = np.empty(0, dtype=np.int64)


def written_at_once(layout: ShardLayout, stream: Stream) -> dict[str, bytes]:
    with fresh_folder() as folder:
        write_split(folder, layout, "train", stream)
        return folder_bytes(folder)


@given(layout=LAYOUTS, lengths=STREAMS, data=st.data())
def test_chunks_and_kills_never_change_a_byte(
    layout: ShardLayout, lengths: list[int], data: st.DataObject
) -> None:
    """Random chunks; dropped after any append or mark; garbage in the partial files afterwards."""
    make = data.draw(st.sampled_from([make_stream, make_examples]))
    stream = make(lengths, layout.vocabulary_size)
    with fresh_folder() as folder:
        write_with_accidents(folder, layout, stream, data)
        assert folder_bytes(folder) == written_at_once(layout, stream)
        assert [entry.name for entry in (folder / WORK_FOLDER).iterdir()] == ["progress.json"]


def write_with_accidents(
    folder: Path, layout: ShardLayout, stream: Stream, data: st.DataObject
) -> None:
    progress = folder / WORK_FOLDER / "progress.json"
    writer = SplitWriter.start(folder, layout, "train", learnt=stream.learnt is not None)
    store_mark(writer, progress)
    for _ in range(25):
        event = data.draw(st.sampled_from(["append", "append", "mark", "publish", "kill", "seal"]))
        if event == "append":
            stop = data.draw(st.integers(writer.tokens, len(stream.ids)))
            writer.append(*stream.chunk(writer.tokens, stop))
        elif event == "mark":
            writer.mark()
        elif event == "publish":
            store_mark(writer, progress)
        else:
            if event == "seal" and writer.tokens == len(stream.ids):
                writer.seal()  # and killed before a manifest could be written
            writer.close()
            spill_garbage(folder, layout, data)
            writer = open_writer(folder, layout, progress)
    writer.append(*stream.chunk(writer.tokens, len(stream.ids)))
    writer.seal()
    writer.close()


def spill_garbage(folder: Path, layout: ShardLayout, data: st.DataObject) -> None:
    """What a crash may leave: bytes after the mark, and partial files the mark does not know."""
    work = folder / WORK_FOLDER
    for partial in sorted(work.glob("*.partial")):
        with partial.open("ab") as file:
            file.write(data.draw(st.binary(max_size=20)))
    if data.draw(st.booleans()):
        unknown = {"npy": "train_000999.npy", "llmc": "train_000999.bin", "megatron": "train.idx"}
        name = unknown.get(layout.format, "train.bin")
        if not (work / f"{name}.partial").exists() and not (folder / name).exists():
            (work / f"{name}.partial").write_bytes(b"garbage")


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at_call(number: int) -> Iterator[list[int]]:
    """The `number`-th system call that changes the disk does not happen, nor does any after it."""
    names = ["open", "write", "fsync", "replace", "ftruncate", "unlink", "mkdir"]
    calls = [0]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, dying(getattr(os, name), calls, number))
        yield calls


def dying(original, calls: list[int], number: int):  # type: ignore[no-untyped-def]
    def call(*arguments, **options):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] >= number:
            raise Killed
        return original(*arguments, **options)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("layout", every_layout(shard_tokens=90), ids=layout_name)
@pytest.mark.parametrize("make", [make_stream, make_examples], ids=["text", "examples"])
def test_killed_before_each_change_of_the_disk_in_turn(
    layout: ShardLayout, make: Callable[[Sequence[int], int], Stream]
) -> None:
    stream = make([30, 70, 1, 99, 40, 25], layout.vocabulary_size)

    def job(folder: Path) -> None:
        small_pipeline(folder, layout, stream, lambda at: min(265, at + 47), checkpoint_every=2)

    with fresh_folder() as folder:
        job(folder)
        whole = folder_bytes(folder)
    number, killed = 0, True
    while killed:
        number += 1
        with fresh_folder() as folder:
            killed = dies(lambda: job(folder), number)
            assert set(folder_bytes(folder)) <= set(whole) | leftovers(folder)
            if killed and number % 3 == 0:
                dies(lambda: job(folder), number // 2)
            job(folder)
            assert {k: v for k, v in folder_bytes(folder).items() if k in whole} == whole
    assert number > 40


def leftovers(folder: Path) -> set[str]:
    return {name for name in folder_bytes(folder) if name.endswith(".tmp")}


def dies(work, number: int) -> bool:  # type: ignore[no-untyped-def]
    try:
        with killed_at_call(number):
            work()
    except Killed:
        return True
    return False


@pytest.mark.parametrize("layout", every_layout(), ids=layout_name)
def test_nothing_half_written_stands_under_a_final_name(
    layout: ShardLayout, tmp_path: Path
) -> None:
    """Whatever is published before the seal is a whole shard of the finished dataset."""
    stream = make_stream([40] * 12, layout.vocabulary_size)
    whole = written_at_once(layout, stream)
    with SplitWriter.start(tmp_path, layout, "train") as writer:
        for start in range(0, 480, 16):
            writer.append(*stream.chunk(start, start + 16))
            writer.mark()
            writer.publish_finished()
            found = folder_bytes(tmp_path)
            assert {name: whole[name] for name in found} == found
            full_shards = 0 if layout.file_tokens is None else writer.tokens // layout.file_tokens
            assert len(found) == full_shards


def test_finished_shards_wait_for_their_mark(tmp_path: Path) -> None:
    stream = make_stream([250], NARROW)
    with SplitWriter.start(tmp_path, NPY, "train") as writer:
        writer.append(stream.ids, stream.ends)
        mark = writer.mark()
        assert folder_bytes(tmp_path) == {}
        writer.publish_finished()
        writer.publish_finished()
        assert sorted(folder_bytes(tmp_path)) == ["train_000000.npy", "train_000001.npy"]
    assert [shard.tokens for shard in mark.finished] == [100, 100]
    assert mark.open
    assert (mark.open.tokens, mark.tokens, mark.documents) == (50, 250, 1)


@pytest.mark.parametrize("layout", every_layout(), ids=layout_name)
def test_resume_takes_back_what_a_seal_published_after_the_mark(
    layout: ShardLayout, tmp_path: Path
) -> None:
    """No manifest knows those files: until they are sealed again they must not look finished."""
    stream = make_stream([40] * 12, layout.vocabulary_size)
    with SplitWriter.start(tmp_path, layout, "train") as writer:
        writer.append(*stream.chunk(0, 150))
        mark = writer.mark()
        writer.append(*stream.chunk(150, 480))
        writer.seal()
    with SplitWriter.resume(tmp_path, layout, mark) as writer:
        assert set(folder_bytes(tmp_path)) == {shard.name for shard in mark.finished}
        assert (writer.tokens, writer.documents) == (150, 3)
        writer.append(*stream.chunk(150, 480))
        writer.seal()
    assert folder_bytes(tmp_path) == written_at_once(layout, stream)


def test_a_split_without_tokens_writes_no_files(tmp_path: Path) -> None:
    for layout in every_layout():
        with SplitWriter.start(tmp_path, layout, "val") as writer:
            writer.append(np.empty(0, dtype=np.uint16), NO_ENDS)
            assert writer.seal() == SplitRecord()
        with SplitWriter.start(tmp_path, layout, "val") as writer:
            writer.append(np.empty(0, dtype=np.uint16), np.zeros(2, dtype=np.int64))
            assert writer.seal() == SplitRecord()
        assert folder_bytes(tmp_path) == {}
        assert list((tmp_path / WORK_FOLDER).iterdir()) == []


def test_documents_without_a_token_can_be_sealed_again_after_a_crash(tmp_path: Path) -> None:
    nothing = np.empty(0, dtype=np.uint16)
    with SplitWriter.start(tmp_path, NPY, "val") as writer:
        writer.append(nothing, np.zeros(2, dtype=np.int64))
        mark = writer.mark()
        writer.seal()
    with SplitWriter.resume(tmp_path, NPY, mark) as writer:
        writer.append(np.ones(3, dtype=np.uint16), np.array([0, 3]))
        writer.seal()
    assert np.load(tmp_path / "documents_VAL.npy").tolist() == [0, 0, 0, 3]


def test_a_stream_that_fills_its_shards_exactly_leaves_no_empty_one(tmp_path: Path) -> None:
    record = write_split(tmp_path, NPY, "train", make_stream([120, 80], NARROW))
    assert [shard.tokens for shard in record.shards] == [100, 100]


def test_documents_without_tokens_keep_their_place(tmp_path: Path) -> None:
    ids = np.arange(5, dtype=np.uint32)
    write_split(tmp_path, NPY, "train", Stream(ids, np.array([0, 2, 2, 5, 5])))
    assert np.load(tmp_path / "documents_TRAIN.npy").tolist() == [0, 2, 2, 5, 5]


@pytest.mark.parametrize("layout", every_layout(), ids=layout_name)
def test_ids_beyond_the_vocabulary_are_refused_and_never_wrapped(
    layout: ShardLayout, tmp_path: Path
) -> None:
    with SplitWriter.start(tmp_path, layout, "train") as writer:
        largest = np.array([layout.vocabulary_size - 1], dtype=np.uint32)
        writer.append(largest, NO_ENDS)
        with pytest.raises(DataError, match=f"id {layout.vocabulary_size} is beyond"):
            writer.append(largest + 1, NO_ENDS)


def test_after_a_failed_append_no_mark_is_given(tmp_path: Path) -> None:
    with SplitWriter.start(tmp_path, NPY, "train") as writer:
        with pytest.raises(DataError):
            writer.append(np.array([NARROW], dtype=np.uint32), NO_ENDS)
        with pytest.raises(AssertionError, match="resume from the last mark"):
            writer.mark()


def test_a_full_disk_is_a_storage_error_and_the_mark_still_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream([700_000, 700_000], NARROW)
    layout = ShardLayout(format="nanogpt", vocabulary_size=NARROW)
    with SplitWriter.start(tmp_path, layout, "train") as writer:
        writer.append(*stream.chunk(0, 1000))
        mark = writer.mark()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", no_space)
            with pytest.raises(StorageError, match="ENOSPC"):
                writer.append(*stream.chunk(1000, 1_400_000))
    with SplitWriter.resume(tmp_path, layout, mark) as writer:
        writer.append(*stream.chunk(1000, 1_400_000))
        writer.seal()
    assert folder_bytes(tmp_path) == written_at_once(layout, stream)


def no_space(descriptor: int, data: object) -> int:
    raise OSError(28, "No space left on device")


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_stream([3_000], NARROW)
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    write_split(tmp_path, NPY, "train", stream)
    monkeypatch.undo()
    assert folder_bytes(tmp_path) == written_at_once(NPY, stream)


def marked(folder: Path, layout: ShardLayout = NPY) -> WriterMark:
    """Two shards finished and published, a third begun."""
    stream = make_stream([130, 120], layout.vocabulary_size)
    with SplitWriter.start(folder, layout, "train") as writer:
        writer.append(stream.ids, stream.ends)
        mark = writer.mark()
        writer.publish_finished()
    return mark


@pytest.mark.parametrize(
    "name",
    [
        "train_000000.npy",
        ".lowtide/train_000002.npy.partial",
        ".lowtide/documents_TRAIN.npy.partial",
    ],
)
def test_resume_refuses_what_is_gone_or_cut_short(name: str, tmp_path: Path) -> None:
    mark = marked(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for damaged in (whole[:-1], None):
        (tmp_path / name).unlink(missing_ok=True)
        if damaged is not None:
            (tmp_path / name).write_bytes(damaged)
        with pytest.raises(VerificationError) as refused:
            SplitWriter.resume(tmp_path, NPY, mark)
        assert "--restart" in refused.value.remedy or "make the dataset" in refused.value.remedy


@pytest.mark.parametrize("name", ["train_000002.npy", "documents_TRAIN.npy"])
def test_resume_refuses_a_flipped_bit_before_the_mark(name: str, tmp_path: Path) -> None:
    mark = marked(tmp_path)
    flip(tmp_path / WORK_FOLDER / f"{name}.partial", 128)
    with pytest.raises(VerificationError, match="not what was written"):
        SplitWriter.resume(tmp_path, NPY, mark)


def test_finished_shards_can_be_proven_whole(tmp_path: Path) -> None:
    mark = marked(tmp_path)
    verify_finished(tmp_path, NPY, mark)
    flip(tmp_path / "train_000001.npy", 200)
    with pytest.raises(VerificationError, match="train_000001"):
        verify_finished(tmp_path, NPY, mark)


def flip(path: Path, at: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    path.write_bytes(changed)


def test_start_never_touches_files_that_are_already_there(tmp_path: Path) -> None:
    (tmp_path / "train_000007.npy").write_bytes(b"somebody's work")
    with pytest.raises(UsageError, match=r"already holds train_000007\.npy"):
        SplitWriter.start(tmp_path, NPY, "train")
    SplitWriter.start(tmp_path, NPY, "val").close()
    assert folder_bytes(tmp_path) == {"train_000007.npy": b"somebody's work"}


def test_two_splits_share_a_folder(tmp_path: Path) -> None:
    stream = make_stream([130], NARROW)
    with (
        SplitWriter.start(tmp_path, NPY, "train") as train,
        SplitWriter.start(tmp_path, NPY, "val") as val,
    ):
        for writer in (train, val):
            writer.append(stream.ids, stream.ends)
        mark = val.mark()
    with SplitWriter.resume(tmp_path, NPY, WriterMark(split="train")) as train:
        train.append(stream.ids, stream.ends)
        train.seal()
    with SplitWriter.resume(tmp_path, NPY, mark) as val:
        val.seal()
    found = folder_bytes(tmp_path)
    assert found["train_000001.npy"] == found["val_000001.npy"]
    assert len(found) == 6


def test_a_mark_comes_back_from_json_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    mark = marked(tmp_path)
    assert WriterMark.from_json(mark.as_json(), tmp_path) == mark
    with pytest.raises(VerificationError, match="does not hold what it should"):
        WriterMark.from_json({**mark.as_json(), "finished": 3}, tmp_path)


def test_pieces_larger_and_smaller_than_every_buffer_make_the_same_file(tmp_path: Path) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=3_000_000)
    stream = make_stream([1_500_000, 2_500_000, 100_000], NARROW)
    assert len(stream.ids) * 2 > 2 * payload.BUFFER_BYTES
    with SplitWriter.start(tmp_path, layout, "train") as writer:
        for start in range(0, len(stream.ids), 123_457):
            writer.append(*stream.chunk(start, min(len(stream.ids), start + 123_457)))
        writer.seal()
    assert folder_bytes(tmp_path) == written_at_once(layout, stream)
