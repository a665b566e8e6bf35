"""`verify` finds one flipped bit, a missing or extra byte or file, an edit, ids and ends that lie."""

from __future__ import annotations

import dataclasses
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import VerificationError
from lowtide.shards.layout import MANIFEST_NAME, NPY_HEADER_BYTES, ShardLayout, documents_header
from lowtide.shards.manifest import (
    DocumentIndexRecord,
    ShardRecord,
    SplitRecord,
    file_names,
    read_manifest,
    write_manifest,
)
from lowtide.shards.read import open_dataset
from lowtide.shards.verify import verify_dataset
from lowtide.storage.sealed_json import read_sealed, write_sealed
from tests.shards.streams import (
    NARROW,
    every_layout,
    fresh_folder,
    layout_name,
    make_dataset,
    make_stream,
    tokenizer_record,
)

ALL = pytest.mark.parametrize("layout", every_layout(), ids=layout_name)


def sound_dataset(folder: Path, layout: ShardLayout) -> Path:
    make_dataset(
        folder,
        layout,
        train=make_stream([30, 100, 1, 80, 39], layout.vocabulary_size),
        val=make_stream([20, 7], layout.vocabulary_size, seed=1),
    )
    return folder


def problems(folder: Path) -> str:
    return "\n".join(verify_dataset(folder).problems)


@ALL
def test_a_sound_dataset_has_no_problems(layout: ShardLayout, tmp_path: Path) -> None:
    found = verify_dataset(sound_dataset(tmp_path, layout))
    assert found.sound
    assert (found.tokens, found.documents, found.ids_checked) == (277, 7, True)
    assert found.files == len(list(tmp_path.iterdir()))


@ALL
def test_one_flipped_bit_anywhere_is_found(layout: ShardLayout) -> None:
    with fresh_folder() as folder:
        sound_dataset(folder, layout)

        @given(data=st.data())
        def flip_one(data: st.DataObject) -> None:
            path = data.draw(st.sampled_from(sorted(folder.iterdir())))
            whole = path.read_bytes()
            changed = bytearray(whole)
            changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(changed)
            try:
                assert problems(folder)
            finally:
                path.write_bytes(whole)

        flip_one()
        assert not problems(folder)


@ALL
def test_a_missing_or_extra_byte_at_the_end_of_any_file_is_found(
    layout: ShardLayout, tmp_path: Path
) -> None:
    sound_dataset(tmp_path, layout)
    for name in file_names(read_manifest(tmp_path)):
        path = tmp_path / name
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole + b"\0", b""):
            path.write_bytes(damaged)
            assert name in problems(tmp_path)
        path.write_bytes(whole)
    assert not problems(tmp_path)


@ALL
def test_a_missing_extra_or_renamed_file_is_found(layout: ShardLayout, tmp_path: Path) -> None:
    sound_dataset(tmp_path, layout)
    for name in file_names(read_manifest(tmp_path)):
        (tmp_path / name).rename(tmp_path / "elsewhere.bin")
        found = problems(tmp_path)
        assert f"{name} is missing" in found
        assert "elsewhere.bin is in the folder but not in the manifest" in found
        shutil.copy(tmp_path / "elsewhere.bin", tmp_path / name)
        assert "elsewhere.bin" in problems(tmp_path)
        (tmp_path / "elsewhere.bin").unlink()
    assert not problems(tmp_path)


def test_a_missing_manifest_is_found(tmp_path: Path) -> None:
    sound_dataset(tmp_path, every_layout()[0])
    (tmp_path / MANIFEST_NAME).unlink()
    assert "lowtide.json is missing" in problems(tmp_path)


@ALL
def test_two_files_that_changed_places_are_found(layout: ShardLayout, tmp_path: Path) -> None:
    sound_dataset(tmp_path, layout)
    first, second = sorted([*tmp_path.glob("train*"), *tmp_path.glob("val*")])[:2]
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert problems(tmp_path)


@ALL
def test_an_edited_manifest_is_found(layout: ShardLayout, tmp_path: Path) -> None:
    path = sound_dataset(tmp_path, layout) / MANIFEST_NAME
    whole = path.read_text()
    for before, after in [('"end"', '"none"'), ("0.0005", "0.0006"), (whole, ""), (whole, "{}")]:
        assert before in whole
        path.write_text(whole.replace(before, after, 1))
        assert MANIFEST_NAME in problems(tmp_path)
        with pytest.raises(VerificationError):
            open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["../a.npy", "/etc/passwd", "a/b", "a\\b", "..", "", "C:x"])
def test_a_manifest_that_names_other_folders_is_refused(name: str, tmp_path: Path) -> None:
    manifest = make_dataset(tmp_path, every_layout()[0], train=make_stream([9], NARROW))
    shard = dataclasses.replace(manifest.splits["train"].shards[0], name=name)
    forged = dataclasses.replace(manifest, splits={"train": SplitRecord(shards=(shard,))})
    write_manifest(tmp_path, forged)
    with pytest.raises(VerificationError):
        open_dataset(tmp_path)
    assert MANIFEST_NAME in problems(tmp_path)


@ALL
def test_ids_beyond_the_vocabulary_are_found(layout: ShardLayout, tmp_path: Path) -> None:
    """Digest and seal agree with the data: only the range gives it away."""
    manifest = make_dataset(
        tmp_path, layout, train=make_stream([50], layout.vocabulary_size), val=None
    )
    shard = manifest.splits["train"].shards[0]
    path = tmp_path / shard.name
    content = bytearray(path.read_bytes())
    payload = np.frombuffer(content, dtype=layout.dtype, offset=layout.header_bytes)
    payload[7] = layout.vocabulary_size
    path.write_bytes(content)
    digest = xxhash.xxh3_128_hexdigest(payload.tobytes())
    forged = dataclasses.replace(
        manifest.splits["train"], shards=(dataclasses.replace(shard, digest=digest),)
    )
    write_manifest(tmp_path, dataclasses.replace(manifest, splits={"train": forged}))
    assert f"id {layout.vocabulary_size} is beyond the vocabulary" in problems(tmp_path)


@ALL
@pytest.mark.parametrize(
    ("ends", "complaint"),
    [
        ([30, 20, 50], "out of order"),
        ([-1, 20, 50], "out of order"),
        ([10, 20, 49], "last document ends at 49, the tokens at 50"),
        ([10, 20, 51], "last document ends at 51, the tokens at 50"),
        ([10, 1 << 62, 50], "out of order"),
    ],
)
def test_an_index_that_does_not_fit_is_found(
    layout: ShardLayout, ends: list[int], complaint: str, tmp_path: Path
) -> None:
    manifest = make_dataset(tmp_path, layout, train=make_stream([50], layout.vocabulary_size))
    payload = np.array(ends, dtype="<i8").tobytes()
    (tmp_path / "documents_TRAIN.npy").write_bytes(documents_header(3) + payload)
    index = DocumentIndexRecord(
        name="documents_TRAIN.npy", documents=3, digest=xxhash.xxh3_128_hexdigest(payload)
    )
    forged = dataclasses.replace(manifest.splits["train"], index=index)
    write_manifest(tmp_path, dataclasses.replace(manifest, splits={"train": forged}))
    assert complaint in problems(tmp_path)


def test_an_idx_of_other_documents_is_found(tmp_path: Path) -> None:
    """Both indexes are sound in themselves, but they do not agree."""
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    make_dataset(tmp_path / "a", layout, train=make_stream([20, 30], NARROW))
    make_dataset(tmp_path / "b", layout, train=make_stream([30, 20], NARROW))
    shutil.copy(tmp_path / "b" / "train.idx", tmp_path / "a" / "train.idx")
    assert "train.idx: it does not fit documents_TRAIN.npy" in problems(tmp_path / "a")


@pytest.mark.parametrize(
    "shards",
    [
        [("train_000000.npy", 99), ("train_000001.npy", 51)],
        [("train_000000.npy", 101), ("train_000001.npy", 49)],
        [("train_000000.npy", 100), ("train_000002.npy", 50)],
        [("train_000000.npy", 100), ("train_000001.npy", 0)],
    ],
)
def test_a_manifest_that_its_own_layout_contradicts_is_found(
    shards: list[tuple[str, int]], tmp_path: Path
) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=100)
    manifest = make_dataset(tmp_path, layout, train=make_stream([150], NARROW))
    records = tuple(
        ShardRecord(name=name, tokens=tokens, digest="0" * 32) for name, tokens in shards
    )
    forged = dataclasses.replace(manifest.splits["train"], shards=records)
    write_manifest(tmp_path, dataclasses.replace(manifest, splits={"train": forged}))
    assert f"{MANIFEST_NAME}: " in problems(tmp_path)


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path, every_layout()[0], train=make_stream([9], NARROW))
    for version in (2, 3):  # 2 is that of examples, which these are not
        payload = read_sealed(tmp_path / MANIFEST_NAME)
        write_sealed(tmp_path / MANIFEST_NAME, {**payload, "format_version": version})
        assert f"format version {version}" in problems(tmp_path)


def test_progress_counts_every_token_byte(tmp_path: Path) -> None:
    sound_dataset(tmp_path, every_layout()[0])
    seen: list[tuple[int, int]] = []
    verify_dataset(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (277 * 2, 277 * 2)
    assert seen == sorted(seen)


@pytest.mark.parametrize("form", ["npy", "nanogpt", "llmc", "megatron"])
def test_a_peers_files_are_checked_against_themselves(form: str, tmp_path: Path) -> None:
    layout = ShardLayout(format=form, vocabulary_size=NARROW)  # type: ignore[arg-type]
    make_dataset(tmp_path, layout, train=make_stream([20, 30], NARROW))
    (tmp_path / MANIFEST_NAME).unlink()
    (tmp_path / "documents_TRAIN.npy").unlink()
    assert verify_dataset(tmp_path).sound
    assert not verify_dataset(tmp_path).ids_checked
    assert verify_dataset(tmp_path, tokenizer=tokenizer_record(NARROW)).ids_checked
    too_small = verify_dataset(tmp_path, tokenizer=tokenizer_record(NARROW - 1))
    assert f"id {NARROW - 1} is beyond the vocabulary" in too_small.problems[0]
    for name in {entry.name for entry in tmp_path.iterdir()}:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-1])
        assert not verify_dataset(tmp_path).sound
        (tmp_path / name).write_bytes(whole)


@pytest.mark.parametrize(
    ("at", "form", "value", "complaint"),
    [
        (34, "<i", 21, "do not lie one behind another"),
        (34 + 4, "<i", 31, "demands 102"),
        (34 + 8 + 8, "<q", 42, "demands 102"),
        (34 + 8 + 16, "<q", 1, "do not cover"),
        (34 + 8 + 16 + 8, "<q", 3, "out of order"),
    ],
)
def test_a_peers_megatron_index_that_does_not_fit_is_found(
    at: int, form: str, value: int, complaint: str, tmp_path: Path
) -> None:
    layout = ShardLayout(format="megatron", vocabulary_size=NARROW)
    make_dataset(tmp_path, layout, train=make_stream([20, 30], NARROW))
    (tmp_path / MANIFEST_NAME).unlink()
    (tmp_path / "documents_TRAIN.npy").unlink()
    content = bytearray((tmp_path / "train.idx").read_bytes())
    struct.pack_into(form, content, at, value)
    (tmp_path / "train.idx").write_bytes(content)
    assert complaint in problems(tmp_path)


def test_an_index_header_is_compared_too(tmp_path: Path) -> None:
    sound_dataset(tmp_path, every_layout()[0])
    path = tmp_path / "documents_TRAIN.npy"
    content = path.read_bytes()
    path.write_bytes(content[: NPY_HEADER_BYTES - 2] + b"\t" + content[NPY_HEADER_BYTES - 1 :])
    assert "documents_TRAIN.npy: its header" in problems(tmp_path)
