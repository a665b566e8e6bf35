"""Bad input to TokenDataset: an error that names what is wrong, with a remedy; never a wrong token."""

from __future__ import annotations

import os
import re
import shlex
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.errors import DataError, LowtideError, StorageError, UsageError, VerificationError
from lowtide.settings import Format
from lowtide.shards.layout import ShardLayout
from tests.commands import lowtide as run_lowtide
from tests.corpora import make_documents, write_inputs
from tests.shards.streams import (
    NARROW,
    WIDE,
    Stream,
    every_layout,
    fresh_folder,
    layout_name,
    make_dataset,
    make_stream,
)

CONTEXT = 16
LAYOUTS = pytest.mark.parametrize("layout", every_layout(shard_tokens=500), ids=layout_name)
SIZES = pytest.mark.parametrize("vocabulary_size", [NARROW, WIDE], ids=["16", "32"])
WINDOWS = pytest.mark.parametrize("windows", ["contiguous", "document"])


@pytest.fixture
def folder() -> Iterator[Path]:
    with fresh_folder() as made:
        yield made


def some_stream(vocabulary_size: int = NARROW) -> Stream:
    return make_stream([70, 1, 390, 165, 99, 400, 75], vocabulary_size)


def make_own(folder: Path, layout: ShardLayout) -> Stream:
    """A dataset of ours in a few shards."""
    stream = some_stream(layout.vocabulary_size)
    make_dataset(folder, layout, train=stream)
    return stream


def make_peers(folder: Path, form: Format, vocabulary_size: int = NARROW) -> Stream:
    """The same without what only lowtide writes."""
    layout = ShardLayout(format=form, vocabulary_size=vocabulary_size, shard_tokens=500)
    stream = make_own(folder, layout)
    for path in (folder / "lowtide.json", *folder.glob("documents_*")):
        path.unlink()
    return stream


def first_shard(folder: Path) -> Path:
    return next(path for path in sorted(folder.glob("train*")) if path.suffix != ".idx")


def read_all(path: Path, **settings: object) -> list[int]:
    """The tokens of one epoch in order, without padding."""
    dataset = lowtide.TokenDataset(path, context=CONTEXT, order="sequential", **settings)  # type: ignore[arg-type]
    rows = [x.reshape(-1) for x, _ in dataset.epoch(8)]
    return np.concatenate(rows)[: dataset.tokens].tolist()


def fails(
    kind: type[LowtideError] | tuple[type[LowtideError], ...],
    naming: str,
    act: Callable[[], object],
) -> LowtideError:
    with pytest.raises(kind) as error:
        act()
    assert naming in error.value.problem
    assert error.value.remedy
    return error.value


# Cut files


@LAYOUTS
@pytest.mark.parametrize("kept", [0, 1, 7, 12, 100, 127, 128, 1023, 1024, 1025, -2, -1])
def test_a_cut_shard_of_ours_is_named(layout: ShardLayout, kept: int, folder: Path) -> None:
    make_own(folder, layout)
    shard = first_shard(folder)
    size = shard.stat().st_size
    os.truncate(shard, kept % size)
    fails(VerificationError, shard.name, lambda: lowtide.TokenDataset(folder, context=CONTEXT))


@SIZES
@pytest.mark.parametrize("form", ["npy", "llmc", "megatron"])
@pytest.mark.parametrize("kept", [0, 1, 7, 100, 127, 128, 1000, -4, -1])
def test_a_peers_file_that_says_its_size_is_named_when_it_was_cut(
    form: Format, kept: int, vocabulary_size: int, folder: Path
) -> None:
    make_peers(folder, form, vocabulary_size)
    shard = first_shard(folder)
    os.truncate(shard, kept % shard.stat().st_size)
    fails(LowtideError, shard.name, lambda: lowtide.TokenDataset(shard, context=CONTEXT))
    fails(LowtideError, folder.name, lambda: lowtide.TokenDataset(folder, context=CONTEXT))


@SIZES
def test_a_bare_file_that_was_cut_inside_an_id_is_named(vocabulary_size: int, folder: Path) -> None:
    make_peers(folder, "nanogpt", vocabulary_size)
    shard = folder / "train.bin"
    os.truncate(shard, shard.stat().st_size - 1)
    fails((VerificationError, DataError), "train.bin", lambda: read_all(shard))


@pytest.mark.parametrize("kept", [0, 5, 33, 34, 100, -8, -1])
def test_a_cut_megatron_index_is_named(kept: int, folder: Path) -> None:
    make_peers(folder, "megatron")
    index = folder / "train.idx"
    os.truncate(index, kept % index.stat().st_size)
    fails(VerificationError, "train.idx", lambda: lowtide.TokenDataset(folder, context=CONTEXT))


# Widths


@pytest.mark.parametrize("vocabulary_size", [257, NARROW, WIDE])
def test_wide_ids_without_a_header_are_not_read_as_narrow_ones(
    vocabulary_size: int, folder: Path
) -> None:
    some_stream(vocabulary_size).ids.astype("<u4").tofile(folder / "train.bin")
    said = fails((DataError, VerificationError), "train.bin", lambda: read_all(folder))
    assert "tokenizer" in said.remedy
    assert "numpy.save" in said.remedy
    np.save(folder / "train.npy", np.fromfile(folder / "train.bin", dtype="<u4"))
    (folder / "train.bin").unlink()
    assert read_all(folder) == some_stream(vocabulary_size).ids.tolist()


@pytest.mark.parametrize("dtype", ["<i8", "<u8", "<f4", ">u2", "<i2", "|u1", "(10,)<u2"])
def test_an_npy_of_another_kind_is_refused(dtype: str, folder: Path) -> None:
    np.save(folder / "train.npy", np.zeros(100, dtype))
    said = fails(DataError, "train.npy", lambda: read_all(folder))
    assert "1-D array of uint16" in said.remedy


def test_negative_ids_are_refused_and_never_become_large_ones(folder: Path) -> None:
    ids = np.arange(100, dtype="<i4")
    np.save(folder / "train.npy", ids)
    assert read_all(folder) == list(range(100))
    ids[50] = -1
    np.save(folder / "train.npy", ids)
    fails((DataError, VerificationError), "", lambda: read_all(folder))


def test_mixed_widths_and_mixed_formats_are_refused_and_one_file_can_be_named(folder: Path) -> None:
    np.save(folder / "train_0.npy", np.arange(100, dtype="<u2"))
    np.save(folder / "train_1.npy", np.arange(100, dtype="<u4"))
    fails(UsageError, "uint16 and uint32", lambda: read_all(folder))
    assert read_all(folder / "train_1.npy") == list(range(100))
    np.arange(100, dtype="<u2").tofile(folder / "train_1.bin")
    (folder / "train_1.npy").unlink()
    said = fails(UsageError, "train_1.bin is nanogpt", lambda: read_all(folder))
    assert "name one file" in said.remedy
    assert read_all(folder / "train_1.bin") == list(range(100))


# Headers that lie


def patch(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    ("wrong", "right"), [(b"'<u2'", b"'<i2'"), (b"'<u2'", b"'<f2'"), (b"(500,", b"(501,")]
)
def test_an_npy_header_in_a_folder_of_ours_must_be_the_manifests(
    wrong: bytes, right: bytes, folder: Path
) -> None:
    make_own(folder, ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=500))
    shard = first_shard(folder)
    shard.write_bytes(shard.read_bytes().replace(wrong, right, 1))
    fails(VerificationError, shard.name, lambda: read_all(folder))


@pytest.mark.parametrize("count", [-1, 0, 499, 501, 1 << 30])
def test_counts_that_do_not_fit_the_size_are_refused(count: int, folder: Path) -> None:
    make_peers(folder / "llmc", "llmc")
    shard = first_shard(folder / "llmc")
    patch(shard, 8, struct.pack("<i", count))
    fails(VerificationError, shard.name, lambda: read_all(shard))
    make_peers(folder / "npy", "npy")
    shard = first_shard(folder / "npy")
    shard.write_bytes(shard.read_bytes().replace(b"(500,", b"(%d," % count, 1))
    fails((VerificationError, DataError), shard.name, lambda: read_all(shard))


def test_an_llmc_file_of_an_unknown_version_is_not_taken_for_bare_ids(folder: Path) -> None:
    make_peers(folder, "llmc")
    patch(first_shard(folder), 4, struct.pack("<i", 2))
    fails(DataError, "version 2", lambda: read_all(first_shard(folder)))


def test_no_damaged_byte_of_an_npy_header_gives_another_token_or_a_strange_error(
    folder: Path,
) -> None:
    stream = some_stream().ids.astype("<u2")
    path = folder / "train.npy"
    np.save(path, stream)
    whole, wanted = path.read_bytes(), read_all(path)
    for at in range(128):
        for value in (0x00, 0x0A, 0x20, 0xFF, *b"({['9-#}\\"):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy's, about headers of Python 2
                try:
                    assert read_all(path) == wanted, (at, value)
                except LowtideError as error:
                    said = error.problem  # anything else fails the test
            assert "train.npy" in said


@pytest.mark.parametrize("at", [0, 9, 17, 18, 26], ids=["magic", "version", "width", "n", "m"])
def test_a_megatron_index_whose_header_lies_is_refused(at: int, folder: Path) -> None:
    make_peers(folder, "megatron")
    index = folder / "train.idx"
    patch(index, at, bytes([index.read_bytes()[at] + 1]))
    fails((DataError, VerificationError), "train.idx", lambda: read_all(folder))


# Ids beyond the vocabulary


@LAYOUTS
def test_an_id_beyond_the_vocabulary_is_never_given_out(layout: ShardLayout, folder: Path) -> None:
    stream = make_own(folder, layout)
    number = layout.vocabulary_size
    place = layout.header_bytes + 100 * layout.token_bytes
    patch(first_shard(folder), place, number.to_bytes(layout.token_bytes, "little"))
    dataset = lowtide.TokenDataset(folder, context=CONTEXT, order="sequential")
    x, _ = dataset.read(0, 100 // CONTEXT - 1)
    assert x.reshape(-1).tolist() == stream.ids[: x.size].tolist()
    for first, count in ((100 // CONTEXT, 1), (0, dataset.window_count)):
        fails(VerificationError, f"id {number}", lambda at=(first, count): dataset.read(*at))


def test_a_peers_id_beyond_the_named_vocabulary_is_never_given_out(folder: Path) -> None:
    ids = some_stream().ids.astype("<u2")
    ids[700] = 60_000
    ids.tofile(folder / "train.bin")
    assert 60_000 in read_all(folder)
    fails(VerificationError, "id 60000", lambda: read_all(folder, tokenizer="gpt2"))
    ids[700] = 6
    ids.tofile(folder / "train.bin")
    assert 6 in read_all(folder, tokenizer="gpt2")


# Contexts and splits


@pytest.mark.parametrize("context", [0, -1, 1 << 25, 10**30])
@WINDOWS
def test_a_context_out_of_range_is_refused(context: int, windows: str, folder: Path) -> None:
    make_own(folder, ShardLayout(format="npy", vocabulary_size=NARROW))
    fails(
        UsageError,
        str(context),
        lambda: lowtide.TokenDataset(folder, context=context, windows=windows),  # type: ignore[arg-type]
    )


def test_a_context_longer_than_the_data_names_the_longest_that_works(folder: Path) -> None:
    stream = make_own(folder, ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=500))
    said = fails(UsageError, "1200", lambda: lowtide.TokenDataset(folder, context=1 << 20))
    advised = int(re.findall(r"at most (\d+)", said.remedy)[0])
    fails(UsageError, "", lambda: lowtide.TokenDataset(folder, context=advised + 1))
    dataset = lowtide.TokenDataset(folder, context=advised, order="sequential")
    x, y = dataset.read(0, 1)
    assert x[0].tolist() == stream.ids[:advised].tolist()
    assert y[0].tolist() == stream.ids[1 : advised + 1].tolist()


@WINDOWS
def test_a_dataset_without_tokens_says_so(windows: str, folder: Path) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW)
    make_dataset(folder / "own", layout, train=make_stream([], NARROW))
    (folder / "train.bin").write_bytes(b"")
    np.save(folder / "train.npy", np.zeros(0, dtype="<u2"))
    for name in ("own", "train.bin", "train.npy"):
        said = fails(UsageError, name, lambda at=folder / name: read_all(at, windows=windows))
        assert "is empty" in said.problem


def test_a_split_that_is_not_there_leads_to_one_that_is(folder: Path) -> None:
    np.save(folder / "train.npy", np.arange(100, dtype="<u2"))
    said = fails(UsageError, "'val'", lambda: read_all(folder, split="val"))
    assert "val_fraction=0.1" in said.remedy
    assert read_all(folder, split="val", val_fraction=0.2) == list(range(80, 100))
    said = fails(UsageError, "'tests'", lambda: read_all(folder, split="tests"))
    assert "split='train'" in said.remedy
    assert read_all(folder, split="train") == list(range(100))


# Only text


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "parquet", "folder"])
def test_text_leads_to_the_command_that_makes_tokens(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "my texts"
    inputs = write_inputs(place, make_documents(3, count=40))
    path = inputs.get(kind, place)
    for other in set(inputs.values()) - {path, inputs["txt"]}:
        other.unlink()
    said = fails(UsageError, str(path), lambda: lowtide.TokenDataset(path))
    quoted = re.search(r"`lowtide (tokenize .* --out tokens)`", said.remedy)
    assert quoted, said.remedy
    done = run_lowtide(*shlex.split(quoted[1]), cwd=tmp_path)
    assert done.code == 0, done.err
    dataset = lowtide.TokenDataset(tmp_path / "tokens", context=CONTEXT)
    assert dataset.tokens > 1000
    assert dataset.batch(0, 4)[0].shape == (4, CONTEXT)


def test_a_tokenizers_folder_leads_to_the_command_that_uses_it(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("words and tides " * 500)
    learnt = tmp_path / "my tokenizer"
    lowtide.train_tokenizer([text], learnt, lowtide.TokenizerSettings(vocab_size=(280,)))
    said = fails(UsageError, "tokenizer", lambda: lowtide.TokenDataset(learnt))
    quoted = re.search(r"`lowtide (tokenize [^`]* --out tokens)`", said.remedy)
    assert quoted, said.remedy
    command = shlex.split(quoted[1].replace("INPUT...", shlex.quote(str(text))))
    done = run_lowtide(*command, cwd=tmp_path)
    assert done.code == 0, done.err
    assert lowtide.TokenDataset(tmp_path / "tokens", context=CONTEXT).tokens > 100


# Folders that are not whole


def test_an_unfinished_folder_a_missing_shard_and_nothing_at_all(folder: Path) -> None:
    make_own(folder / "a", ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=500))
    (folder / "a" / "train_000001.npy").unlink()
    fails(VerificationError, "train_000001.npy", lambda: read_all(folder / "a"))
    (folder / "a" / "lowtide.json").unlink()
    (folder / "a" / ".lowtide").mkdir()
    said = fails(UsageError, "not finished", lambda: read_all(folder / "a"))
    assert "again" in said.remedy
    (folder / "b").mkdir()
    fails(UsageError, "no token files", lambda: read_all(folder / "b"))
    fails(UsageError, "does not exist", lambda: read_all(folder / "c"))


@pytest.mark.parametrize("target", ["train_000001.npy", "nowhere.npy"], ids=["loop", "dangling"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "a peer's"])
def test_a_shard_that_is_a_link_to_nowhere_is_missing_and_not_left_out(
    target: str, ours: bool, folder: Path
) -> None:
    make_own(folder, ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=500))
    if not ours:
        (folder / "lowtide.json").unlink()
        (folder / "documents_TRAIN.npy").unlink()
    shard = folder / "train_000001.npy"
    shard.unlink()
    shard.symlink_to(target)
    fails((VerificationError, StorageError), shard.name, lambda: read_all(folder))


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("name", ["train_000000.npy", "lowtide.json", ""])
def test_what_may_not_be_read_is_named(name: str, folder: Path) -> None:
    make_own(folder / "a", ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=500))
    assert read_all(folder / "a")
    folder.chmod(0o755)
    path = folder / "a" / name
    path.chmod(0)
    with as_nobody():
        fails((StorageError, UsageError), str(path), lambda: read_all(folder / "a"))
    path.chmod(0o755)
