"""A sealed file reads back; a changed one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import StorageError, VerificationError
from lowtide.storage.sealed_json import JsonObject, read_sealed, write_sealed

_text = st.text(st.characters(), max_size=8)  # lone surrogates too: names of files hold them
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _text
_finite = _scalars.filter(lambda value: value not in (float("inf"), float("-inf")))
_values = st.recursive(
    _finite, lambda inner: st.lists(inner) | st.dictionaries(_text, inner), max_leaves=12
)
_payloads = st.dictionaries(_text.filter(lambda key: key != "seal"), _values, max_size=5)
_same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

PAYLOAD: JsonObject = {
    "format_version": 1,
    "shards": [{"name": "train_000000.npy", "tokens": 42}, {"name": "ä.npy", "tokens": 7}],
    "share": 0.0005,
}


@_same_folder
@given(payload=_payloads)
def test_what_was_sealed_reads_back_as_it_was(tmp_path: Path, payload: JsonObject) -> None:
    path = tmp_path / "sealed.json"
    write_sealed(path, payload)
    first = path.read_bytes()
    assert read_sealed(path) == payload
    write_sealed(path, payload)
    assert path.read_bytes() == first


def test_the_file_is_plain_json_for_everyone_else(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    write_sealed(path, PAYLOAD)
    value = json.loads(path.read_text())
    assert list(value) == [*PAYLOAD, "seal"]
    assert len(value.pop("seal")) == 32
    assert value == PAYLOAD


def test_every_single_changed_byte_is_found_unless_it_is_white_space(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    write_sealed(path, {"tokens": 42, "names": ["a", None, True], "share": 0.5})
    whole = path.read_bytes()
    for position, byte in enumerate(whole):
        if chr(byte).isspace():
            continue
        path.write_bytes(whole[:position] + bytes([byte ^ 1]) + whole[position + 1 :])
        with pytest.raises(VerificationError):
            read_sealed(path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    write_sealed(path, PAYLOAD)
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(VerificationError):
            read_sealed(path)


def test_a_file_that_was_only_reindented_still_reads(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    write_sealed(path, PAYLOAD)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert read_sealed(path) == PAYLOAD


def test_a_repeated_key_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    write_sealed(path, PAYLOAD)
    path.write_text(path.read_text().replace("{", '{"format_version": 2,', 1))
    with pytest.raises(VerificationError, match="twice"):
        read_sealed(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[1, 2]",
        b"null",
        b'{"a": 1}',
        b'{"a": NaN, "seal": "00"}',
        b'{"a": 1e999, "seal": "00"}',
        b'{"a": 1, "seal": 7}',
        b'\xff\xfe{"a": 1}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b', "seal": "00"}',
    ],
)
def test_a_file_without_a_seal_is_a_verification_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "sealed.json"
    path.write_bytes(text)
    with pytest.raises(VerificationError) as caught:
        read_sealed(path)
    assert str(path) in caught.value.problem
    assert "--restart" in caught.value.remedy


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="is missing"):
        read_sealed(tmp_path / "gone.json")


def test_a_folder_in_its_place_is_the_disks_problem(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        read_sealed(tmp_path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_cannot_express_is_never_written(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError):
        write_sealed(tmp_path / "sealed.json", {"number": number})
    assert list(tmp_path.iterdir()) == []
