"""Peers read what we write: by their own code where it can be installed, else by its published rules."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.shards.documents import StoredDocuments
from lowtide.shards.layout import NPY_HEADER_BYTES, EndArray, ShardLayout
from lowtide.shards.megatron import cut_documents, index_pieces
from tests.shards.streams import NARROW, WIDE, Stream, make_dataset, make_stream

WIDTHS = pytest.mark.parametrize("vocabulary_size", [NARROW, WIDE])


def written(folder: Path, form: str, vocabulary_size: int) -> Stream:
    layout = ShardLayout(
        format=form,  # type: ignore[arg-type]
        vocabulary_size=vocabulary_size,
        shard_tokens=1000,
    )
    stream = make_stream([700, 1, 900, 650], vocabulary_size)
    make_dataset(folder, layout, train=stream, val=make_stream([90], vocabulary_size))
    return stream


@WIDTHS
def test_numpy_loads_the_shards_and_the_document_index(
    vocabulary_size: int, tmp_path: Path
) -> None:
    stream = written(tmp_path, "npy", vocabulary_size)
    shards = [np.load(path, mmap_mode="r") for path in sorted(tmp_path.glob("train*.npy"))]
    assert [len(shard) for shard in shards] == [1000, 1000, 251]
    assert np.concatenate(shards).tolist() == stream.ids.tolist()
    assert shards[0].dtype == (np.uint16 if vocabulary_size == NARROW else np.uint32)
    assert np.load(tmp_path / "documents_TRAIN.npy").tolist() == stream.ends.tolist()


def test_build_nanogpt_finds_the_shards_of_a_split_and_nothing_else(tmp_path: Path) -> None:
    """Its DataLoaderLite: every file whose name contains the split, sorted, np.load, int32."""
    stream = written(tmp_path, "npy", NARROW)
    for split, count in (("train", 3), ("val", 1)):
        names = sorted(name.name for name in tmp_path.iterdir() if split in name.name)
        assert len(names) == count
    shards = sorted(path for path in tmp_path.iterdir() if "train" in path.name)
    tokens = np.concatenate([np.load(path).astype(np.int32) for path in shards])
    assert tokens.tolist() == stream.ids.tolist()


def test_nanogpts_get_batch_recipe_reads_train_and_val(tmp_path: Path) -> None:
    """train.py: np.memmap(uint16), x = data[i : i + block], y shifted by one, as int64."""
    stream = written(tmp_path, "nanogpt", NARROW)
    data = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r")
    assert len(data) == len(stream.ids)
    for i in (0, 699, len(data) - 65):
        x = data[i : i + 64].astype(np.int64)
        y = data[i + 1 : i + 65].astype(np.int64)
        assert x.tolist() == stream.ids[i : i + 64].tolist()
        assert y.tolist() == stream.ids[i + 1 : i + 65].tolist()
    assert len(np.memmap(tmp_path / "val.bin", dtype=np.uint16, mode="r")) == 90


@WIDTHS
def test_llmc_accepts_the_header_and_the_size(vocabulary_size: int, tmp_path: Path) -> None:
    """dataloader.h: magic, version, and file size = header + count x width, or it exits."""
    stream = written(tmp_path, "llmc", vocabulary_size)
    width, magic, version = (2, 20240520, 1) if vocabulary_size == NARROW else (4, 20240801, 7)
    found = []
    for path in sorted(tmp_path.glob("train_*.bin")):
        content = path.read_bytes()
        header = np.frombuffer(content[:1024], dtype=np.int32)
        assert (header[0], header[1]) == (magic, version)
        assert len(content) == 1024 + width * int(header[2])
        found.append(np.frombuffer(content, dtype=f"<u{width}", offset=1024))
    assert np.concatenate(found).tolist() == stream.ids.tolist()


def test_modded_nanogpt_reads_a_shard_in_one_call(tmp_path: Path) -> None:
    """train_gpt.py: 256 int32, magic and version asserted, readinto of exactly 2 x count bytes."""
    written(tmp_path, "llmc", NARROW)
    path = tmp_path / "train_000000.bin"
    header = np.fromfile(path, dtype=np.int32, count=256)
    assert header[0] == 20240520
    assert header[1] == 1
    tokens = np.empty(int(header[2]), dtype=np.uint16)
    with path.open("rb", buffering=0) as file:
        file.seek(256 * 4)
        assert file.readinto(tokens.data.cast("B")) == 2 * header[2]


@WIDTHS
def test_megatrons_rules_find_every_document(vocabulary_size: int, tmp_path: Path) -> None:
    """indexed_dataset.py's _IndexReader and get, followed line by line."""
    stream = written(tmp_path, "megatron", vocabulary_size)
    lengths, pointers, firsts, dtype = follow_index_reader(tmp_path / "train.idx")
    assert lengths.shape[0] == firsts[-1]
    payload = (tmp_path / "train.bin").read_bytes()
    starts = [0, *stream.ends.tolist()]
    assert len(firsts) == len(starts)
    for number in range(len(lengths)):
        count, offset = int(lengths[number]), int(pointers[number])
        sequence: npt.NDArray[np.integer] = np.frombuffer(payload, dtype, count, offset)
        wanted = stream.ids[starts[number] : starts[number + 1]]
        assert sequence.tolist() == wanted.tolist()


def follow_index_reader(
    path: Path,
) -> tuple[npt.NDArray[np.int32], EndArray, EndArray, npt.DTypeLike]:
    with path.open("rb") as stream:
        assert stream.read(9) == b"MMIDIDX\x00\x00"
        assert struct.unpack("<Q", stream.read(8))[0] == 1
        dtype = {8: np.uint16, 4: np.int32}[struct.unpack("<B", stream.read(1))[0]]
        sequence_count = struct.unpack("<Q", stream.read(8))[0]
        document_count = struct.unpack("<Q", stream.read(8))[0]
        offset = stream.tell()
    buffer = path.read_bytes()
    lengths = np.frombuffer(buffer, np.int32, sequence_count, offset)
    offset += lengths.nbytes
    pointers = np.frombuffer(buffer, np.int64, sequence_count, offset)
    offset += pointers.nbytes
    firsts = np.frombuffer(buffer, np.int64, document_count, offset)
    assert offset + firsts.nbytes == len(buffer)
    return lengths, pointers, firsts, dtype


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # it warns of what it would use on a GPU
@WIDTHS
def test_megatrons_own_reader_opens_it(vocabulary_size: int, tmp_path: Path) -> None:
    from megatron.core.datasets import indexed_dataset as indexed

    stream = written(tmp_path, "megatron", vocabulary_size)
    dataset = indexed.IndexedDataset(str(tmp_path / "train"))
    assert len(dataset) == len(stream.ends)
    assert dataset.document_indices.tolist() == list(range(len(stream.ends) + 1))
    assert np.concatenate([dataset[i] for i in range(len(dataset))]).tolist() == (
        stream.ids.tolist()
    )


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20), longest=st.integers(1, 15))
def test_documents_longer_than_a_sequence_are_cut_and_stay_documents(
    lengths: list[int], longest: int
) -> None:
    parts, cut = cut_documents(np.array(lengths, dtype=np.int64), longest)
    assert cut.max(initial=0) <= longest
    borders = np.concatenate([[0], np.cumsum(parts)])
    sums = [int(cut[a:b].sum()) for a, b in pairwise(borders)]
    assert sums == lengths


def test_an_idx_with_cut_documents_still_points_at_every_token(tmp_path: Path) -> None:
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    ends = np.array([3, 10, 10, 14], dtype="<i8")
    (tmp_path / "ends").write_bytes(bytes(NPY_HEADER_BYTES) + ends.tobytes())
    pieces = index_pieces(StoredDocuments(path=tmp_path / "ends", count=4), layout, longest=3)
    (tmp_path / "train.idx").write_bytes(b"".join(piece.tobytes() for piece in pieces))
    lengths, pointers, firsts, _ = follow_index_reader(tmp_path / "train.idx")
    assert lengths.tolist() == [3, 3, 3, 1, 0, 3, 1]
    assert pointers.tolist() == [0, 6, 12, 18, 20, 20, 26]
    assert firsts.tolist() == [0, 1, 4, 5, 7]
