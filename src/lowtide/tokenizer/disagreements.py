"""The code points on which gigatoken and the reference encoders cut words differently.

gigatoken 0.10 has the tables of Unicode 17, tiktoken 0.14 and tokenizers 0.23 those of Unicode 16.
A code point that became a letter, a number or (for o200k only) a mark between the two, or changed its case,
ends a word for one and continues it for the other: a text with one must go through the reference.
`bench/code_points.py` finds them again: it tries every scalar value beside every class of neighbour, with a
vocabulary that shows any border.

    contains_disagreement("a\\u088fb".encode(), "tiktoken", "gpt2")  ->  True    new in Unicode 17
    contains_disagreement("a\\u088eb".encode(), "tiktoken", "gpt2")  ->  False   older by a version
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lowtide.settings import PatternName

Reference = Literal["tiktoken", "tokenizers"]
Ranges = tuple[tuple[int, int], ...]
Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]
CodePoints = np.ndarray[tuple[int], np.dtype[np.int64]]

_LETTERS_AND_NUMBERS: Ranges = (
    (0x088F, 0x088F),
    (0x0C5C, 0x0C5C),
    (0x0CDC, 0x0CDC),
    (0xA7CE, 0xA7CF),
    (0xA7D2, 0xA7D2),
    (0xA7D4, 0xA7D4),
    (0xA7F1, 0xA7F1),
    (0x10940, 0x10959),
    (0x10EC5, 0x10EC7),
    (0x11DB0, 0x11DDB),
    (0x11DE0, 0x11DE9),
    (0x16EA0, 0x16EB8),
    (0x16EBB, 0x16ED3),
    (0x16FF2, 0x16FF6),
    (0x187F8, 0x187FF),
    (0x18D09, 0x18D1E),
    (0x18D80, 0x18DF2),
    (0x1E6C0, 0x1E6DE),
    (0x1E6E0, 0x1E6E2),
    (0x1E6E4, 0x1E6E5),
    (0x1E6E7, 0x1E6ED),
    (0x1E6F0, 0x1E6F4),
    (0x1E6FE, 0x1E6FF),
    (0x2B73A, 0x2B73F),
    (0x2CEA2, 0x2CEAD),
    (0x323B0, 0x33479),
)
_MARKS: Ranges = (
    (0x1ACF, 0x1ADD),
    (0x1AE0, 0x1AEB),
    (0x10EFA, 0x10EFB),
    (0x11B60, 0x11B67),
    (0x1E6E3, 0x1E6E3),
    (0x1E6E6, 0x1E6E6),
    (0x1E6EE, 0x1E6EF),
    (0x1E6F5, 0x1E6F5),
)
_CASES: Ranges = ((0x0295, 0x0295),)
"""A lower-case letter until Unicode 16, without case since. It matters to o200k only."""
_BY_PATTERN: dict[PatternName, Ranges] = {
    "gpt2": _LETTERS_AND_NUMBERS,
    "cl100k": _LETTERS_AND_NUMBERS,
    "o200k": tuple(sorted(_LETTERS_AND_NUMBERS + _MARKS + _CASES)),
}

DISAGREEMENTS: dict[Reference, dict[PatternName, Ranges]] = {
    "tiktoken": _BY_PATTERN,
    "tokenizers": _BY_PATTERN,
}
"""First and last code point of every range, ascending. The references agree with each other on all."""

_SCREENS: dict[bytes, tuple[bytes, ...]] = {
    b"\xca": (b"\xca\x95",),
    b"\xe0": (b"\xa2\x8f", b"\xb1\x9c", b"\xb3\x9c"),
    b"\xe1": (b"\xe1\xab",),
    b"\xea": (b"\xea\x9f",),
}
"""For each lead byte except 0xF0: pairs of bytes. Every listed code point with that lead byte has one of them.
The pairs are rare: Hindi, Thai, Telugu, Georgian, Khmer and Korean share the lead bytes and have none."""
_LENGTHS = {b"\xca": 2, b"\xe0": 3, b"\xe1": 3, b"\xea": 3, b"\xf0": 4}
"""The lead bytes of listed code points, and the number of bytes in a character that begins with them."""

_EMOJI = 0x9F
"""After 0xF0 this byte means U+1F000 to U+1FFFF: nearly all emoji, and nothing that is listed."""

_PIECE_BYTES = 256 * 1024
"""Number of bytes examined at once, so that numpy's intermediate arrays stay in the processor's cache."""


def contains_disagreement(text: bytes, reference: Reference, pattern: PatternName) -> bool:
    """Whether valid UTF-8 holds a code point on which gigatoken and the reference differ. The answer is exact.

    ASCII is answered at once; Latin, Greek, Cyrillic, Arabic and Chinese after one `memchr` for each of five
    lead bytes, 0.06 ns a byte in all. Only where such a byte occurs are pairs of bytes compared (0.1 to
    0.6 ns a byte), and only after a suspicious pair are code points made and looked up (1 to 2 ns).
    """
    if text.isascii():
        return False
    ranges = DISAGREEMENTS[reference][pattern]
    return any(
        (start := text.find(lead)) >= 0 and _holds_listed(text, start, lead, ranges)
        for lead in _LENGTHS
    )


def _holds_listed(text: bytes, start: int, lead: bytes, ranges: Ranges) -> bool:
    octets = np.frombuffer(text, dtype=np.uint8)
    for begin in range(start, len(text), _PIECE_BYTES):
        piece = octets[begin : begin + _PIECE_BYTES + 3]  # a character may begin on the last byte
        if _is_suspicious(piece, lead) and _any_listed(_code_points(piece, lead), ranges):
            return True
    return False


def _is_suspicious(piece: Octets, lead: bytes) -> bool:
    """Whether the piece may hold a listed code point that begins with this byte; seldom wrong."""
    left, right = piece[:-1], piece[1:]
    if lead == b"\xf0":
        return bool(((left == 0xF0) & (right != _EMOJI)).any())
    return any(((left == pair[0]) & (right == pair[1])).any() for pair in _SCREENS[lead])


def _code_points(piece: Octets, lead: bytes) -> CodePoints:
    """Every character of the piece that begins with this byte and ends inside it."""
    length = _LENGTHS[lead]
    starts = np.flatnonzero(piece[: max(0, len(piece) - length + 1)] == lead[0])
    values = np.full(len(starts), lead[0] & (0x7F >> length), dtype=np.int64)
    for offset in range(1, length):
        values = values << 6 | piece[starts + offset] & 0x3F
    return values


def _any_listed(values: CodePoints, ranges: Ranges) -> bool:
    borders = np.array([(first, last + 1) for first, last in ranges]).ravel()
    return bool((np.searchsorted(borders, values, side="right") & 1).any())
