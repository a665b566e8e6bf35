"""What was written is read back, from our folders and from a peer's files, and nothing is mapped short."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.settings import Format, Placement
from lowtide.shards import documents
from lowtide.shards.layout import MANIFEST_NAME, WORK_FOLDER, ShardLayout, llmc_header
from lowtide.shards.read import Dataset, TokenSplit, open_dataset
from tests.shards.streams import (
    NARROW,
    WIDE,
    Stream,
    every_layout,
    fresh_folder,
    layout_name,
    make_dataset,
    make_stream,
    tokenizer_record,
)

ALL = pytest.mark.parametrize("layout", every_layout(), ids=layout_name)


def spans(split: TokenSplit) -> list[tuple[int, int]]:
    return [split.document(number) for number in range(split.document_count or 0)]


def expected_spans(stream: Stream) -> list[tuple[int, int]]:
    ends = stream.ends.tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


@given(
    layout=st.builds(
        ShardLayout,
        format=st.sampled_from(["npy", "nanogpt", "llmc", "megatron"]),
        vocabulary_size=st.sampled_from([100, 65536, 65537, 200019]),
        shard_tokens=st.integers(5, 300),
    ),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    data=st.data(),
)
def test_what_was_written_is_read_back(
    layout: ShardLayout, lengths: list[int], data: st.DataObject
) -> None:
    stream = make_stream(lengths, layout.vocabulary_size)
    with fresh_folder() as folder:
        make_dataset(folder, layout, train=stream)
        train = open_dataset(folder).splits["train"]
        start = data.draw(st.integers(0, train.tokens))
        stop = data.draw(st.integers(start, train.tokens))
        assert train.read(start, stop).tolist() == stream.ids[start:stop].tolist()
        streamed = [token for piece in train.stream(start, stop) for token in piece.tolist()]
        assert streamed == stream.ids[start:stop].tolist()
        assert train.read(0, 1).dtype == layout.dtype
        assert spans(train) == expected_spans(stream)


@ALL
def test_a_peers_files_give_the_same_tokens_and_documents(
    layout: ShardLayout, tmp_path: Path
) -> None:
    """Without manifest and index: format and width by themselves, documents by end-of-text."""
    stream = make_stream([30, 100, 1, 80, 39], layout.vocabulary_size)
    val = make_stream([20, 7], layout.vocabulary_size, seed=1)
    make_dataset(tmp_path, layout, train=stream, val=val)
    strip(tmp_path)
    dataset = open_dataset(tmp_path, tokenizer=tokenizer_record(layout.vocabulary_size))
    assert dataset.format == layout.format
    assert (dataset.manifest, dataset.eot) == (None, "end")
    for name, wanted in {"train": stream, "val": val}.items():
        split = dataset.splits[name]
        assert split.read(0, split.tokens).tolist() == wanted.ids.tolist()
        assert spans(split) == expected_spans(wanted)


def strip(folder: Path) -> None:
    """What is left are files as a peer would have made them."""
    (folder / MANIFEST_NAME).unlink()
    for index in folder.glob("documents_*"):
        index.unlink()


@pytest.mark.parametrize("form", ["npy", "nanogpt", "llmc", "megatron"])
def test_one_file_is_a_dataset_too(form: Format, tmp_path: Path) -> None:
    layout = ShardLayout(format=form, vocabulary_size=NARROW)
    stream = make_stream([30, 9], NARROW)
    make_dataset(tmp_path, layout, train=stream)
    strip(tmp_path)
    for path in tmp_path.iterdir():
        dataset = open_dataset(path)
        assert dataset.format == form
        assert dataset.splits["train"].read(0, 39).tolist() == stream.ids.tolist()


def test_documents_of_bare_files_are_unknown_without_a_tokenizer(tmp_path: Path) -> None:
    np.arange(10, dtype="<u2").tofile(tmp_path / "train.bin")
    train = open_dataset(tmp_path).splits["train"]
    assert train.document_count is None
    with pytest.raises(UsageError, match="nothing says where the documents"):
        train.document(0)


@given(
    ids=st.lists(st.integers(0, 3), max_size=60),
    placement=st.sampled_from(["start", "end"]),
    block=st.integers(1, 20),
    first=st.integers(0, 20),
)
def test_a_scan_finds_what_a_plain_loop_finds(
    ids: list[int], placement: Placement, block: int, first: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, fresh_folder() as folder:
        patch.setattr(documents, "_SCAN_TOKENS", block)
        (folder / "train.bin").write_bytes(np.array(ids, dtype="<u2").tobytes())
        split = open_dataset(folder / "train.bin").splits["train"]
        found = documents.ScannedDocuments(
            split.stream, tokens=len(ids), end_of_text=3, placement=placement
        )
        wanted = plain_ends(ids, placement)
        assert found.count == len(wanted)
        assert [found.end(number) for number in range(len(wanted))] == wanted
        assert [end for ends in found.ends(first) for end in ends.tolist()] == wanted[first:]


def plain_ends(ids: list[int], placement: Placement) -> list[int]:
    """The reference: walk the ids one by one."""
    ends = [at if placement == "start" else at + 1 for at, token in enumerate(ids) if token == 3]
    ends = [end for end in ends if end > 0]
    return ends if not ids or ends[-1:] == [len(ids)] else [*ends, len(ids)]


def test_end_of_text_in_front_is_noticed(tmp_path: Path) -> None:
    layout = ShardLayout(format="llmc", vocabulary_size=NARROW)
    stream = make_stream([5, 6, 1], NARROW, eot="start")
    make_dataset(tmp_path, layout, train=stream, eot="start")
    strip(tmp_path)
    dataset = open_dataset(tmp_path, tokenizer=tokenizer_record(NARROW))
    assert dataset.eot == "start"
    assert spans(dataset.splits["train"]) == [(0, 5), (5, 11), (11, 12)]


@ALL
def test_a_file_that_shrank_is_refused_before_it_is_mapped(
    layout: ShardLayout, tmp_path: Path
) -> None:
    """Mapping it would end the process with SIGBUS; the mapping itself checks again."""
    make_dataset(tmp_path, layout, train=make_stream([9000], layout.vocabulary_size))
    opened = open_dataset(tmp_path).splits["train"]
    for path in sorted(tmp_path.glob("train*")):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(VerificationError):
        opened.read(8998, 9000)
    with pytest.raises(VerificationError):
        list(opened.stream())
    with pytest.raises(VerificationError, match="instead of"):
        open_dataset(tmp_path)


def test_a_megatron_index_that_shrank_is_refused_before_it_is_mapped(tmp_path: Path) -> None:
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    make_dataset(tmp_path, layout, train=make_stream([10] * 50, NARROW))
    strip(tmp_path)
    train = open_dataset(tmp_path).splits["train"]
    assert train.document(49) == (490, 500)
    path = tmp_path / "train.idx"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(VerificationError):
        train.document(49)
    with pytest.raises(VerificationError):
        open_dataset(tmp_path)
    path.write_bytes(b"MMIDIDX")
    with pytest.raises(VerificationError):
        open_dataset(tmp_path)


def test_thousands_of_shards_do_not_use_up_the_file_descriptors(tmp_path: Path) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=1)
    stream = make_stream([300], NARROW)
    make_dataset(tmp_path, layout, train=stream)
    train = open_dataset(tmp_path).splits["train"]
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.is_dir() else 0
    for at in range(300):
        assert train.read(at, at + 1)[0] == stream.ids[at]
    after = len(list(descriptors.iterdir())) if descriptors.is_dir() else 0
    assert after - before <= 64


def test_a_view_is_read_only(tmp_path: Path) -> None:
    make_dataset(tmp_path, every_layout()[0], train=make_stream([50], NARROW))
    with pytest.raises(ValueError, match="read-only"):
        open_dataset(tmp_path).splits["train"].read(0, 5)[0] = 1


def test_questions_beyond_the_stream_are_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path, every_layout()[0], train=make_stream([50], NARROW))
    dataset = open_dataset(tmp_path)
    train = dataset.splits["train"]
    for start, stop in [(0, 51), (-1, 5), (6, 5)]:
        with pytest.raises(UsageError, match="not in split"):
            train.read(start, stop)
    with pytest.raises(UsageError, match="no document 1"):
        train.document(1)
    assert len(train.read(50, 50)) == 0
    assert (dataset.splits["val"].tokens, dataset.splits["val"].document_count) == (0, 0)


def test_unfinished_missing_empty_and_mixed_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no token files"):
        open_dataset(tmp_path)
    np.save(tmp_path / "a.npy", np.arange(3, dtype=np.uint16))
    np.arange(3, dtype="<u2").tofile(tmp_path / "b.bin")
    with pytest.raises(UsageError, match=r"mixes formats: b\.bin is nanogpt, a\.npy is npy"):
        open_dataset(tmp_path)
    (tmp_path / WORK_FOLDER).mkdir()
    with pytest.raises(UsageError, match="not finished"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    "content",
    [np.zeros((2, 2), dtype=np.uint16), np.zeros(3, dtype=np.float32), np.zeros(3, dtype=">u2")],
)
def test_arrays_that_are_no_ids_are_refused(
    content: npt.NDArray[np.generic],
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "train.npy", content)
    with pytest.raises(DataError, match="not a row of token ids"):
        open_dataset(tmp_path)


def test_damaged_headers_are_named_errors(tmp_path: Path) -> None:
    (tmp_path / "train.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff")
    with pytest.raises(DataError, match="damaged npy header"):
        open_dataset(tmp_path)
    (tmp_path / "train.npy").write_bytes(b"text")
    with pytest.raises(DataError, match="not an npy file"):
        open_dataset(tmp_path)


def test_an_llmc_header_that_lies_is_refused(tmp_path: Path) -> None:
    for count in (2, 4, -1):
        (tmp_path / "train.bin").write_bytes(llmc_header(2, count) + bytes(6))
        with pytest.raises(VerificationError):
            open_dataset(tmp_path)
    (tmp_path / "train.bin").write_bytes(llmc_header(2, 3) + bytes(6))
    assert open_dataset(tmp_path).tokens == 3


def test_headerless_files_are_as_wide_as_the_tokenizer(tmp_path: Path) -> None:
    np.array([1, WIDE - 1], dtype="<u4").tofile(tmp_path / "train.bin")
    wide = open_dataset(tmp_path, tokenizer=tokenizer_record(WIDE))
    assert wide.splits["train"].read(0, 2).tolist() == [1, WIDE - 1]
    assert open_dataset(tmp_path).tokens == 4


def test_splits_are_told_by_their_names(tmp_path: Path) -> None:
    for name in ("edufineweb_train_000001", "edufineweb_val_000000", "edufineweb_train_000000"):
        np.save(tmp_path / f"{name}.npy", np.array([int(name[-1])], dtype=np.uint16))
    dataset = open_dataset(tmp_path)
    assert list(dataset.splits) == ["train", "val"]
    assert dataset.splits["train"].read(0, 2).tolist() == [0, 1]


def test_two_megatron_pairs_are_two_splits(tmp_path: Path) -> None:
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    for name in ("books", "code"):
        make_dataset(tmp_path / name, layout, train=make_stream([5], NARROW))
        for suffix in (".bin", ".idx"):
            (tmp_path / name / f"train{suffix}").rename(tmp_path / f"{name}{suffix}")
    dataset: Dataset = open_dataset(tmp_path)
    assert list(dataset.splits) == ["books", "code"]


def test_errors_name_the_file_and_a_remedy(tmp_path: Path) -> None:
    make_dataset(tmp_path, every_layout()[0], train=make_stream([50], NARROW))
    (tmp_path / "train_000000.npy").unlink()
    with pytest.raises(VerificationError, match=re.escape("train_000000.npy is missing")) as error:
        open_dataset(tmp_path)
    assert "put train_000000.npy back" in error.value.remedy
