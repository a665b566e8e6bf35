"""JSON of foreign files into checked types, with msgspec's own errors for whatever is wrong with it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode_json(content: bytes | msgspec.Raw, kind: type[T]) -> T:
    """The value; `msgspec.DecodeError` for what is not JSON of that kind, also where it is nested too deeply.

    >>> decode_json(b'{"a": 1}', dict[str, int])
    {'a': 1}
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, RecursionError) as cause:  # msgspec lets both pass as they are
        raise msgspec.DecodeError(str(cause)) from cause


def convert_json(value: object, kind: type[T]) -> T:
    """A parsed value; `msgspec.ValidationError` for another kind.

    Text that is not Unicode is refused where a type has a pattern; elsewhere it passes, as in names of files.
    """
    try:
        return msgspec.convert(value, kind)
    except (
        UnicodeEncodeError
    ) as cause:  # half of a surrogate pair, which msgspec lets pass as it is
        raise msgspec.ValidationError(str(cause)) from cause
