"""Peers' files give the windows of the dataset they came from: exported by us, or written by their recipes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import lowtide
from lowtide.dataset.token_dataset import WindowKind
from lowtide.errors import UsageError
from lowtide.settings import Format, Placement
from lowtide.shards.layout import FORMATS, ShardLayout
from tests.shards.streams import NARROW, WIDE, Stream, fresh_folder, make_dataset, make_stream
from tests.vocabularies import rank_file

CONTEXT = 64
GPT2_END = 50256
SIZES = pytest.mark.parametrize("vocabulary_size", [NARROW, WIDE], ids=["16", "32"])
Batch = tuple[list[list[int]], list[list[int]]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with fresh_folder() as made:
        yield made


def some_stream(vocabulary_size: int, eot: Placement = "end") -> Stream:
    return make_stream([700, 1, 900, 64, 65, 650, 3, 1200], vocabulary_size, eot=eot)


def batches(path: Path, **settings: object) -> list[Batch]:
    """Three epochs in batches that go over their ends."""
    dataset = lowtide.TokenDataset(path, context=CONTEXT, seed=7, **settings)  # type: ignore[arg-type]
    count = 3 * dataset.window_count // 5
    return [(x.tolist(), y.tolist()) for x, y in (dataset.batch(k, 5) for k in range(count))]


def as_a_peer_left_it(folder: Path) -> Path:
    """Without what only lowtide writes."""
    for path in (folder / "lowtide.json", *folder.glob("documents_*")):
        path.unlink()
    return folder


def plain_windows(ids: npt.NDArray[np.generic]) -> tuple[list[list[int]], list[list[int]]]:
    """Whole windows from the front, by numpy alone."""
    count = (len(ids) - 1) // CONTEXT
    x = ids[: count * CONTEXT].reshape(count, CONTEXT)
    y = ids[1 : count * CONTEXT + 1].reshape(count, CONTEXT)
    return x.tolist(), y.tolist()


def assert_gives(path: Path, ids: npt.NDArray[np.generic], **settings: object) -> None:
    """In order, the windows are those of the ids."""
    dataset = lowtide.TokenDataset(path, context=CONTEXT, order="sequential", **settings)  # type: ignore[arg-type]
    assert dataset.tokens == len(ids)
    x, y = dataset.read(0, (len(ids) - 1) // CONTEXT)
    assert (x.tolist(), y.tolist()) == plain_windows(ids)


# What lowtide exports


@pytest.mark.parametrize(
    ("form", "vocabulary_size"),
    [
        (form, size)
        for form in FORMATS
        for size in (NARROW, WIDE)
        if (form, size) != ("nanogpt", WIDE)  # bare wide ids need their tokenizer: below
    ],
)
@pytest.mark.parametrize("source", FORMATS)
def test_an_export_gives_the_batches_of_its_source_with_and_without_a_manifest(
    form: Format, source: Format, vocabulary_size: int, folder: Path
) -> None:
    layout = ShardLayout(format=source, vocabulary_size=vocabulary_size, shard_tokens=1000)
    make_dataset(folder / "source", layout, train=some_stream(vocabulary_size))
    wanted = batches(folder / "source")
    lowtide.export(folder / "source", folder / "copy", form, shard_tokens=700, eot="end")
    assert batches(folder / "copy") == wanted
    assert batches(as_a_peer_left_it(folder / "copy")) == wanted


@pytest.mark.parametrize("form", ["nanogpt", "npy", "megatron"])
def test_bare_wide_ids_are_read_with_their_tokenizer_named(form: Format, folder: Path) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=WIDE, shard_tokens=1000)
    make_dataset(folder / "source", layout, train=some_stream(WIDE))
    wanted = batches(folder / "source")
    lowtide.export(folder / "source", folder / "copy", form)
    o200k = str(rank_file("o200k_base"))
    assert batches(as_a_peer_left_it(folder / "copy"), tokenizer=o200k) == wanted


@SIZES
def test_an_llmc_export_gives_its_own_stream_where_end_of_text_comes_first(
    vocabulary_size: int, folder: Path
) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=vocabulary_size, shard_tokens=1000)
    stream = some_stream(vocabulary_size)
    make_dataset(folder / "source", layout, train=stream)
    lowtide.export(folder / "source", folder / "copy", "llmc", shard_tokens=700)
    moved = np.concatenate([[vocabulary_size - 1], stream.ids[:-1]])
    assert_gives(folder / "copy", moved)
    assert_gives(as_a_peer_left_it(folder / "copy"), moved)


@pytest.mark.parametrize("form", ["nanogpt", "npy", "llmc", "megatron"])
@pytest.mark.parametrize("windows", ["contiguous", "document"])
def test_documents_are_found_again_by_an_index_or_by_the_named_tokenizer(
    form: Format, windows: WindowKind, folder: Path
) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=1000)
    make_dataset(folder / "source", layout, train=some_stream(NARROW))
    source = lowtide.TokenDataset(folder / "source", context=CONTEXT, windows=windows)
    lowtide.export(folder / "source", folder / "copy", form, eot="end", shard_tokens=700)
    peers = lowtide.TokenDataset(
        as_a_peer_left_it(folder / "copy"), context=CONTEXT, windows=windows, tokenizer="gpt2"
    )
    assert peers.window_count == source.window_count
    for k in range(source.window_count // 4):
        wanted = source.batch(k, 4, documents=True)
        found = peers.batch(k, 4, documents=True)
        assert [array.tolist() for array in found] == [array.tolist() for array in wanted]


def test_without_a_tokenizer_or_an_index_document_windows_ask_for_one(folder: Path) -> None:
    make_stream([300, 400], NARROW).ids.astype("<u2").tofile(folder / "train.bin")
    with pytest.raises(UsageError, match="where the documents") as error:
        batches(folder, windows="document")
    assert "tokenizer='gpt2'" in error.value.remedy
    assert batches(folder, windows="document", tokenizer="gpt2")


@pytest.mark.parametrize("form", FORMATS)
def test_both_splits_of_a_peers_folder_are_told_apart(form: Format, folder: Path) -> None:
    layout = ShardLayout(format=form, vocabulary_size=NARROW, shard_tokens=1000)
    train, val = some_stream(NARROW), make_stream([500, 90], NARROW, seed=1)
    make_dataset(folder, layout, train=train, val=val)
    as_a_peer_left_it(folder)
    assert_gives(folder, train.ids)
    assert_gives(folder, val.ids, split="val")


# What peers' own recipes write


def gpt2_documents() -> list[list[int]]:
    """Ids as tiktoken's encode_ordinary gives them: no end-of-text among them."""
    source = np.random.default_rng(9)
    return [source.integers(0, GPT2_END, size).tolist() for size in (300, 1, 77, 640, 128, 900)]


def test_nanogpts_recipe(folder: Path) -> None:
    """data/openwebtext/prepare.py: ids and eot appended, a memmap of uint16 filled in batches."""
    documents = [[*ids, GPT2_END] for ids in gpt2_documents()]
    for split, chosen in (("train", documents[:-1]), ("val", documents[-1:])):
        total = sum(len(ids) for ids in chosen)
        filled = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="w+", shape=(total,))
        at = 0
        for batch in chosen:
            filled[at : at + len(batch)] = batch
            at += len(batch)
        filled.flush()
        del filled
    (folder / "meta.pkl").write_bytes(b"not read")
    assert_gives(folder, np.concatenate(documents[:-1]))
    assert_gives(folder, np.concatenate(documents[-1:]), split="val")
    assert_gives(folder / "train.bin", np.concatenate(documents[:-1]), tokenizer="gpt2")


def test_a_bare_file_is_split_as_people_do_it_by_hand(folder: Path) -> None:
    """data/shakespeare_char/prepare.py: the first nine tenths are train, the rest is val."""
    data = np.concatenate(gpt2_documents()).astype(np.uint16)
    data.tofile(folder / "all.bin")
    border = int(len(data) * 0.9)
    assert_gives(folder / "all.bin", data[:border], val_fraction=0.1)
    assert_gives(folder / "all.bin", data[border:], split="val", val_fraction=0.1)


def test_build_nanogpts_recipe(folder: Path) -> None:
    """fineweb.py: eot first, np.save of full uint16 shards; the very first shard is val."""
    stream = np.concatenate([[GPT2_END, *ids] for ids in gpt2_documents()]).astype(np.uint16)
    shards = np.split(stream, range(400, len(stream), 400))
    for number, shard in enumerate(shards):
        split = "val" if number == 0 else "train"
        np.save(folder / f"edufineweb_{split}_{number:06d}", shard)
    assert sorted(path.name for path in folder.iterdir())[0] == "edufineweb_train_000001.npy"
    assert_gives(folder, stream[400:])
    assert_gives(folder, stream[:400], split="val")


@SIZES
def test_llmcs_recipe(vocabulary_size: int, folder: Path) -> None:
    """data_common.py: 256 int32 with magic, version and count, then the ids."""
    ids = some_stream(vocabulary_size, eot="start").ids
    magic, version, dtype = (
        (20240520, 1, "<u2") if vocabulary_size == NARROW else (20240801, 7, "<u4")
    )
    for number, part in enumerate(np.split(ids, [1000, 2000, 3000])):
        header = struct.pack("<256i", magic, version, len(part), *[0] * 253)
        path = folder / f"fineweb_train_{number:06d}.bin"
        path.write_bytes(header + part.astype(dtype).tobytes())
    assert_gives(folder, ids)


@SIZES
def test_megatrons_recipe(vocabulary_size: int, folder: Path) -> None:
    """indexed_dataset.py's builder: lengths, byte offsets and document borders behind the header."""
    stream = some_stream(vocabulary_size)
    code, dtype, width = (8, "<u2", 2) if vocabulary_size == NARROW else (4, "<i4", 4)
    lengths = np.diff(stream.ends, prepend=0)
    starts = stream.ends - lengths
    (folder / "corpus_text_document.bin").write_bytes(stream.ids.astype(dtype).tobytes())
    (folder / "corpus_text_document.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
        + lengths.astype("<i4").tobytes()
        + (starts * width).astype("<i8").tobytes()
        + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    )
    assert_gives(folder, stream.ids)
    assert_gives(folder / "corpus_text_document.bin", stream.ids)
    assert_gives(folder / "corpus_text_document.idx", stream.ids)
    layout = ShardLayout(format="npy", vocabulary_size=vocabulary_size, shard_tokens=1000)
    make_dataset(folder / "ours", layout, train=stream)
    assert batches(folder, windows="document") == batches(folder / "ours", windows="document")
