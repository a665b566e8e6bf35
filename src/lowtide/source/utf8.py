"""Check that text is UTF-8, find where it is not, and replace what is not.

Checking costs 0.06 ns a byte for ASCII and about 0.4 for other scripts; only damaged text pays more.
"""

from __future__ import annotations

import codecs

import pyarrow as pa

from lowtide.source.blocks import LISTED_BAD_ROWS

_SMALL_BYTES = 4096
_REPLACEMENT = "\ufffd"


def is_encodable(text: str) -> bool:
    """Whether it has a UTF-8 form: a lone surrogate, or a file name that is not UTF-8, has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_utf8(text: bytes) -> bool:
    """Whether Python's strict decoder would take it, without building the string."""
    if text.isascii():
        return True
    if len(text) < _SMALL_BYTES:  # an Arrow array costs more than decoding so little
        return first_bad_byte(text) is None
    offsets = pa.py_buffer((0).to_bytes(8, "little") + len(text).to_bytes(8, "little"))
    array = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(text)])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def first_bad_byte(text: bytes) -> int | None:
    """Offset of the first byte that is not part of valid UTF-8."""
    try:
        codecs.utf_8_decode(text, "strict", True)
    except UnicodeDecodeError as error:
        return error.start
    return None


def replace_bad(text: bytes) -> tuple[bytes, int]:
    """The text with U+FFFD for what is not UTF-8, as by `errors="replace"`, and the number of replacements."""
    fixed = text.decode("utf-8", "replace")
    # Three bytes that spell U+FFFD themselves are valid wherever they stand: they were there before.
    count = fixed.count(_REPLACEMENT) - text.count(_REPLACEMENT.encode())
    return fixed.encode(), count


def bad_places(text: bytes) -> list[int]:
    """Offsets of the first replaced sequences, as many as a block lists."""
    places: list[int] = []
    start = 0
    view = memoryview(text)
    while len(places) < LISTED_BAD_ROWS:
        try:
            codecs.utf_8_decode(view[start:], "strict", True)
        except UnicodeDecodeError as error:
            places.append(start + error.start)
            start += error.end
        else:
            break
    return places
