"""Names, widths and headers are those of the peers."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import UsageError
from lowtide.shards.layout import (
    FORMATS,
    LLMC_LARGEST_SHARD_TOKENS,
    ShardLayout,
    documents_name,
    llmc_header,
    npy_header,
    shard_header,
    shard_name,
    shard_number,
)


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i8"])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 99_999, 1_000_000])
def test_an_npy_header_is_what_numpy_writes(dtype: str, count: int) -> None:
    saved = io.BytesIO()
    np.save(saved, np.zeros(count, dtype=dtype))
    assert npy_header(dtype, count) == saved.getvalue()[:128]


@given(st.integers(0, 10**15))
def test_an_npy_header_has_128_bytes_for_any_count(count: int) -> None:
    header = io.BytesIO(npy_header("<u2", count))
    assert np.lib.format.read_magic(header) == (1, 0)
    assert np.lib.format.read_array_header_1_0(header) == ((count,), False, np.dtype("<u2"))
    assert header.tell() == 128


def test_an_llmc_header_is_256_int32_with_magic_version_and_count() -> None:
    narrow = np.frombuffer(llmc_header(2, 77), dtype="<i4")
    assert len(narrow) == 256
    assert narrow[:3].tolist() == [20240520, 1, 77]
    assert not narrow[3:].any()
    assert np.frombuffer(llmc_header(4, 5), dtype="<i4")[:3].tolist() == [20240801, 7, 5]


@pytest.mark.parametrize(
    ("vocabulary_size", "token_bytes"), [(1, 2), (50257, 2), (65536, 2), (65537, 4), (200019, 4)]
)
def test_the_width_follows_the_vocabulary(vocabulary_size: int, token_bytes: int) -> None:
    for form in FORMATS:
        layout = ShardLayout(format=form, vocabulary_size=vocabulary_size)
        assert layout.token_bytes == token_bytes
        assert len(shard_header(layout, 3)) == layout.header_bytes
        assert layout.file_bytes(3) == layout.header_bytes + 3 * token_bytes


def test_files_are_named_as_people_know_them() -> None:
    names = {
        form: shard_name(ShardLayout(format=form, vocabulary_size=9), "val", 0) for form in FORMATS
    }
    assert names == {
        "npy": "val_000000.npy",
        "nanogpt": "val.bin",
        "llmc": "val_000000.bin",
        "megatron": "val.bin",
    }
    assert "train" not in documents_name("train")  # build-nanogpt would take it for a shard


@given(st.sampled_from(FORMATS), st.integers(0, 999_999))
def test_a_shard_number_comes_back_from_its_name(form: str, number: int) -> None:
    layout = ShardLayout(format=form, vocabulary_size=9)  # type: ignore[arg-type]
    number = number if layout.file_tokens else 0
    assert shard_number(layout, "train", shard_name(layout, "train", number)) == number
    assert shard_number(layout, "val", shard_name(layout, "train", number)) is None


def test_too_large_an_llmc_shard_is_refused_with_a_remedy_that_works() -> None:
    with pytest.raises(UsageError) as refused:
        ShardLayout(format="llmc", vocabulary_size=9, shard_tokens=LLMC_LARGEST_SHARD_TOKENS + 1)
    advised = re.search(r"--shard-tokens (\d+)", refused.value.remedy)
    assert advised
    ShardLayout(format="llmc", vocabulary_size=9, shard_tokens=int(advised.group(1)))


@pytest.mark.parametrize("wrong", [{"vocabulary_size": 0}, {"shard_tokens": 0}])
def test_impossible_layouts_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        ShardLayout(**{"format": "npy", "vocabulary_size": 9, **wrong})  # type: ignore[arg-type]


def test_a_shard_number_of_seven_digits_is_refused() -> None:
    layout = ShardLayout(format="npy", vocabulary_size=9, shard_tokens=1)
    with pytest.raises(UsageError, match="more than 1000000 shards"):
        shard_name(layout, "train", 1_000_000)
