"""Names and digests of files in a record. A record is data from anywhere: it must not lead out of its folder.

As types of fields they are checked wherever a record is decoded. A plain `str` is never joined to a path.
"""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

import msgspec

_NO_NAME = r"(?!\.{1,2}(?:/|\Z))"
_LETTERS = r"[^/\\:\0]" if os.name == "nt" else r"[^/\0]"
_NAME = rf"{_NO_NAME}{_LETTERS}+"
_DIGEST = "[0-9a-f]{32}"

FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")]
"""Of a file in the record's own folder: no separator, and neither `.` nor `..`."""
InnerPath: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}(?:/{_NAME})*\Z")]
"""Of a file in the folder or in one below it: relative, without `..`."""
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{_DIGEST}\Z")]
"""128 bits of xxh3 in hexadecimal."""


def explain(error: msgspec.ValidationError) -> str:
    """What msgspec says of a record, with a bad name or digest told in words and not by the pattern."""
    said = str(error)
    _, _, place = said.rpartition(" - at ")
    if "matching regex" not in said:
        return said
    if _DIGEST in said:
        return f"the digest at {place} is not 32 hexadecimal digits"
    return f"the name at {place} is not that of a file inside the folder"
