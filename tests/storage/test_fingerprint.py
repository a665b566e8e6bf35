"""A changed file has another fingerprint; a changed byte has another digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, StorageError, VerificationError
from lowtide.memory.meter import PeakMeter
from lowtide.storage.fingerprint import digest_file, fingerprint_file
from lowtide.units import GIB, KIB, MIB

_same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@_same_folder
@given(data=st.binary(min_size=1, max_size=4000), position=st.integers(min_value=0))
def test_any_changed_byte_of_a_small_file_changes_its_fingerprint(
    tmp_path: Path, data: bytes, position: int
) -> None:
    path = tmp_path / "small"
    path.write_bytes(data)
    before = fingerprint_file(path)
    assert fingerprint_file(path) == before
    at = position % len(data)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert fingerprint_file(path) != before


def test_up_to_one_mib_every_byte_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size_bytes in (MIB - 1, MIB):
        found = set()
        for position in (None, 0, 65_537, size_bytes // 2, size_bytes - 1):
            data = bytearray(size_bytes)
            if position is not None:
                data[position] = 1
            path.write_bytes(data)
            found.add(fingerprint_file(path))
        assert len(found) == 5


@pytest.mark.parametrize("size_bytes", [MIB + 1, 5 * MIB + 3])
def test_a_large_file_is_looked_at_in_sixteen_places_and_both_ends(
    tmp_path: Path, size_bytes: int
) -> None:
    path = tmp_path / "file"
    room = size_bytes - 64 * KIB
    found = set()
    for position in [0, size_bytes - 1, *(room * k // 15 + 100 for k in range(16))]:
        data = bytearray(size_bytes)
        data[position] = 1
        path.write_bytes(data)
        found.add(fingerprint_file(path))
    assert len(found) == 18


def test_another_size_is_another_fingerprint_even_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    found = set()
    for size_bytes in (0, 1, 2, MIB, MIB + 1, 300 * MIB, 300 * MIB + 1):
        with path.open("wb") as file:
            file.truncate(size_bytes)
        found.add(fingerprint_file(path))
    assert len(found) == 7


def test_a_file_of_any_size_costs_one_mib_to_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(64 * GIB)
    with PeakMeter() as meter:
        assert len(fingerprint_file(path)) == 32
    assert meter.peak.private_bytes - meter.last.private_bytes < 8 * MIB


def test_an_unreadable_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fingerprint_file(tmp_path / "gone")
    assert str(tmp_path / "gone") in caught.value.problem


@_same_folder
@given(
    data=st.binary(max_size=3000),
    offset=st.integers(min_value=0, max_value=3000),
    length=st.none() | st.integers(min_value=0, max_value=3000),
)
def test_a_digest_is_that_of_the_bytes_named(
    tmp_path: Path, data: bytes, offset: int, length: int | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    named = data[offset:] if length is None else data[offset : offset + length]
    if length is not None and len(named) < length:
        with pytest.raises(VerificationError, match="cut short"):
            digest_file(path, offset, length)
        return
    assert digest_file(path, offset, length) == xxhash.xxh3_128(named).hexdigest()


def test_a_digest_goes_on_across_its_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = os.urandom(3 * MIB + 17)
    path.write_bytes(data)
    assert digest_file(path) == xxhash.xxh3_128(data).hexdigest()
    assert digest_file(path, 5, 2 * MIB) == xxhash.xxh3_128(data[5 : 5 + 2 * MIB]).hexdigest()


def test_a_file_that_cannot_be_read_is_the_disks_problem(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        digest_file(tmp_path / "gone")
