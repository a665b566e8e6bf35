"""Decode untrusted JSON into checked types; msgspec's own errors say what is wrong with it.

A record must not lead out of its folder: the types below check the names that it gives wherever it is decoded.
A plain `str` out of a record is never joined to a path.
"""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

_NOT_A_DOT_NAME = r"(?!\.{1,2}(?:/|\Z))"
_LETTERS = r"[^/\\:\0]" if os.name == "nt" else r"[^/\0]"
_NAME = rf"{_NOT_A_DOT_NAME}{_LETTERS}+"
_DIGEST = "[0-9a-f]{32}"

FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")]
"""The name of a file in the record's own folder: no separator, and neither `.` nor `..`."""
InnerPath: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}(?:/{_NAME})*\Z")]
"""The path of a file in the record's folder or in one below it: relative, without `..`."""
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_DIGEST}\Z")]
"""128 bits of xxh3 in hexadecimal."""


def decode_json(content: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode JSON as a value of this type.

    Raises `msgspec.DecodeError` for anything else, also for JSON that is nested too deeply.

    >>> decode_json(b'{"a": 1}', dict[str, int])
    {'a': 1}
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as cause:  # msgspec lets both pass as they are
        raise msgspec.DecodeError(str(cause)) from cause


def convert_json(value: object, kind: type[T]) -> T:
    """Convert parsed JSON into a value of this type; `msgspec.ValidationError` where it does not match.

    Text that is not Unicode is refused where a type has a pattern. Elsewhere it passes, as in file names.
    """
    try:
        return msgspec.convert(value, kind)
    except UnicodeEncodeError as cause:  # msgspec lets half of a surrogate pair pass as it is
        raise msgspec.ValidationError(str(cause)) from cause


def explain_field(error: msgspec.ValidationError) -> tuple[str, str]:
    """The field that an error is about, and what is wrong with it.

    "Expected `int`, got `str` - at `$.steps`" is about `steps`.
    """
    reason, _, place = str(error).partition(" - at `$")
    return place.strip("`").lstrip("."), f"{reason[:1].lower()}{reason[1:]}"


def explain(error: msgspec.ValidationError) -> str:
    """What msgspec says about a record, but with words in place of the patterns for names and digests."""
    message = str(error)
    if "matching regex" not in message:
        return message
    place = message.rpartition(" - at ")[2]
    if _DIGEST in message:
        return f"the digest at {place} is not 32 hexadecimal digits"
    return f"the name at {place} is not that of a file inside the folder"
