"""JSON that people can read and nobody changes unnoticed: the last key is a checksum of the rest.

    {"format_version": 1, "tokens": 42, "seal": "0d9c…"}

The seal covers the values, not the white space: a file that was only reindented still reads.
It finds accidents and edits; it is not a signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import xxhash

from lowtide.errors import VerificationError
from lowtide.storage.publish import storage_errors, write_atomically

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
JsonObject: TypeAlias = dict[str, JsonValue]

_SEAL = "seal"


def write_sealed(path: Path, payload: Mapping[str, JsonValue]) -> None:
    """Publish the payload with its seal, keys in the order given: same payload, same bytes."""
    assert _SEAL not in payload, "the caller must not write the seal"
    sealed = {**payload, _SEAL: _seal_of(payload)}
    text = json.dumps(sealed, indent=2, allow_nan=False) + "\n"
    write_atomically(path, text.encode("ascii"))


def read_sealed(path: Path) -> JsonObject:
    """Read the payload as it was written, without the seal; VerificationError for anything else."""
    payload = _parse(path)
    seal = payload.pop(_SEAL, None)
    if seal is None:
        raise _broken(path, "has no seal: it is cut short, edited, or not written by lowtide")
    if seal != _seal_of(payload):
        raise _broken(path, "was changed after it was written: its seal does not match")
    return payload


def _seal_of(payload: Mapping[str, JsonValue]) -> str:
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return xxhash.xxh3_128_hexdigest(canonical.encode("ascii"))


def _parse(path: Path) -> JsonObject:
    try:
        if path.is_fifo():
            raise _broken(path, "is a pipe")  # reading it would block for ever
        with storage_errors(path, doing="read"):
            text = path.read_bytes() if path.exists() else None
        if text is None:
            raise _broken(path, "is missing")
        value = json.loads(text, object_pairs_hook=_unique_keys)
        json.dumps(value, allow_nan=False)  # NaN and 1e999 parse, and no seal can cover them
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"is not whole JSON ({error})") from error
    if not isinstance(value, dict):
        raise _broken(path, "is not a JSON object")
    return value


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Refuse a repeated key: parsers keep the last one only, so the other could hide an edit."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _broken(path: Path, what: str) -> VerificationError:
    return VerificationError(
        f"{path} {what}",
        remedy=f"put {path.name} back from a copy, or run the same command with `--restart`",
    )
