"""Where a document may be cut so that its two halves give the same tokens as the whole.

The lesson. A byte-level BPE tokenizer first splits text into pre-tokens with a regular expression and
never merges across their borders. So a cut is exact when the expression, run over the whole, ends a
match there *and* nothing before the cut would have matched differently had the text ended at it:

    pre_tokens(left + right) == pre_tokens(left) + pre_tokens(right)        whatever left and right are

None of the patterns looks behind, so `right` always comes out the same once a match ends at the cut.
What remains is `left`: the match that holds its last character must stop there, seen or unseen
the character that follows. The three families, in short (L letter, N digit, M mark, S not white space):

    gpt2     'contraction | ?L+ | ?N+ | ?other+ | white space
    cl100k   'contraction | [not L N \\r \\n]?L+ | N{1,3} | ?other+[\\r\\n]* | \\s*[\\r\\n]+ | white space
    o200k    [not L N \\r \\n]?(L|M)+'contraction? | N{1,3} | ?other+[\\r\\n/]* | \\s*[\\r\\n]+ | white space

From these follow the cuts, `|` marking the place:

1. `S|space`, `S|tab`: no match goes on from S into a space or a tab. A contraction needs a letter, not a
   blank.
2. `L|newline`, `N|newline` (also carriage return): letters and digits swallow no newline. Other characters
   do in cl100k and o200k ("!\\n" is one match); in gpt2 nothing does, so there `S|newline` holds for every
   S.
3. `L|N`, `N|L`, `N|other`, `L|other` where other is punctuation, but not the apostrophe after a letter:
   o200k takes "it's" as one match. Long lines without blanks (minified code, CSV, Chinese prose) are cut
   here.
4. `newline|S` in cl100k and o200k: both newline branches run up to the last newline of the blanks and stop
   before S. Not before "/", which o200k swallows after "!\\n". Not in gpt2: "\\n\\n|a" is two matches,
   "\\n\\n" at a text's end is one.

Never cut after white space otherwise ("a  |b": the last blank belongs to b), nor inside an added token.

Unicode changes: a code point that is a letter in one engine's tables is unassigned in another's. So only
characters on which every version agrees are called letters (ASCII, Chinese ideographs and kana of Unicode
1.1), and every code point that any version or engine called white space is not an S. These cuts hold for the
classic spellings of the patterns in tokenizer.json files as well. They do not hold for a tokenizer that
puts a space in front of its text, or whose added tokens swallow blanks behind them: those need the pattern
"none".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

_TAIL_BYTES = 256
_LETTERS = bytes(range(0x41, 0x5B)) + bytes(range(0x61, 0x7B))
_DIGITS = bytes(range(0x30, 0x3A))
_MARKS = bytes(byte for byte in range(0x21, 0x7F) if byte not in _LETTERS + _DIGITS)
_HIGH = bytes(range(0x80, 0x100))
_BLANKS = b" \t"
_LINE_ENDS = b"\r\n"
_STOP_LEADS = b"\xe3\xef"
# Lead bytes that start no white-space character in any Unicode version; 0xe3 is looked at more closely.
_SOLID_LEADS = bytes(range(0xC3, 0xE1)) + bytes(range(0xE3, 0xEF)) + bytes(range(0xF0, 0xF5))

# 、 。 ！ ， ： ； ？ — punctuation since Unicode 1.1
_STOPS = frozenset(sign.encode() for sign in "\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f")
# Every non-ASCII code point that some Unicode version, or some engine, has called white space.
_ODD_SPACES = tuple(
    chr(code).encode()
    for code in (
        0x85,
        0xA0,
        0x1680,
        0x180E,
        *range(0x2000, 0x200C),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
        0xFEFF,
    )
)

Pattern = Literal["gpt2", "cl100k", "o200k", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRule:
    """How one tokenizer may be cut."""

    pattern: Pattern
    """The family its pre-tokenizer belongs to; "none" allows no cut at all."""
    unsplittable: tuple[bytes, ...] = ()
    """Byte strings no cut may fall into: added tokens, a separator."""


def last_safe_cut(text: bytes | memoryview, rule: CutRule, *, at_least: int = 1) -> int:
    """The largest safe cut `p` with `at_least <= p < len(text)`, or 0 when there is none.

    Looks from the end backwards, so a text with blanks costs microseconds, whatever its length; one without
    any cut is read once, at about 5 ns a byte. A caller that grows its text passes as `at_least` what was
    searched before.

    >>> last_safe_cut(b"It was a dark night", CutRule(pattern="gpt2"))
    13
    """
    if rule.pattern == "none":
        return 0
    allowed = _pair_table(rule.pattern)
    straddlers = _straddlers(rule.unsplittable)
    stop, span = len(text), _TAIL_BYTES
    while stop > at_least:
        start = max(at_least, stop - span)
        for cut in _candidates(text, allowed, start, stop):
            if _holds(text, cut, rule.pattern) and not _is_straddled(text, cut, straddlers):
                return cut
        stop, span = start, span * 2
    return 0


def _candidates(
    text: bytes | memoryview, allowed: npt.NDArray[np.bool_], start: int, stop: int
) -> list[int]:
    """Cuts in `[start, stop)` whose two neighbouring bytes may be parted, the last one first."""
    start = max(start, 1)
    octets = np.frombuffer(text, dtype=np.uint8, count=stop - start + 1, offset=start - 1)
    pairs = octets[:-1].astype(np.uint16) << 8 | octets[1:]
    found: list[int] = (np.flatnonzero(allowed[pairs]) + start).tolist()
    found.reverse()
    return found


@lru_cache(maxsize=4)
def _pair_table(pattern: Pattern) -> npt.NDArray[np.bool_]:
    """For each (left byte, right byte): may a cut fall between them, as far as two bytes can tell?"""
    table = np.zeros((256, 256), dtype=np.bool_)

    def allow(left: bytes, right: bytes) -> None:
        table[np.ix_(list(left), list(right))] = True

    solid = _LETTERS + _DIGITS + _MARKS + _HIGH
    allow(solid, _BLANKS)
    allow(solid if pattern == "gpt2" else _LETTERS + _DIGITS + _HIGH, _LINE_ENDS)
    allow(_LETTERS + _HIGH, _DIGITS + _MARKS.replace(b"'", b""))
    allow(_DIGITS, _LETTERS + _MARKS)
    allow(_LETTERS + _DIGITS + _HIGH, _STOP_LEADS)
    if pattern != "gpt2":
        allow(b"\n", _LETTERS + _DIGITS + _MARKS.replace(b"/", b"") + _SOLID_LEADS)
    return table.reshape(-1)


def _holds(text: bytes | memoryview, cut: int, pattern: Pattern) -> bool:
    """Look at the whole characters around a candidate, where one of them is not ASCII."""
    left, right = text[cut - 1], text[cut]
    if left < 0x80 and right < 0x80:
        return True
    if left == 0x0A:
        # U+3000 starts with 0xe3 0x80; everything beyond 0xe3 0x80 is solid.
        return right != 0xE3 or (cut + 1 < len(text) and text[cut + 1] > 0x80)
    if right >= 0x80 and bytes(text[cut : cut + 3]) not in _STOPS:
        return False
    if left < 0x80:
        return True
    before = bytes(text[max(0, cut - 3) : cut])
    if right in _BLANKS or (pattern == "gpt2" and right in _LINE_ENDS):
        return not before.endswith(_ODD_SPACES)
    return _ends_in_old_letter(before)


def _ends_in_old_letter(before: bytes) -> bool:
    """Whether three bytes are one ideograph or kana: letters since Unicode 1.1, in every engine."""
    try:
        letter = before.decode()
    except UnicodeDecodeError:  # another kind of character, or damaged bytes: no letter
        return False
    return len(letter) == 1 and (
        "\u4e00" <= letter <= "\u9f7f"
        or "\u3041" <= letter <= "\u3096"
        or "\u30a1" <= letter <= "\u30fa"
    )


@lru_cache(maxsize=16)
def _straddlers(unsplittable: tuple[bytes, ...]) -> dict[bytes, tuple[bytes, ...]]:
    """For each beginning of an unsplittable string, how it may go on."""
    endings: dict[bytes, list[bytes]] = {}
    for token in unsplittable:
        for length in range(1, len(token)):
            endings.setdefault(token[:length], []).append(token[length:])
    return {beginning: tuple(rests) for beginning, rests in endings.items()}


def _is_straddled(
    text: bytes | memoryview, cut: int, straddlers: dict[bytes, tuple[bytes, ...]]
) -> bool:
    """Whether an unsplittable string lies, or may turn out to lie, across the cut."""
    longest = max(map(len, straddlers), default=0)
    for length in range(1, min(longest, cut) + 1):
        for rest in straddlers.get(bytes(text[cut - length : cut]), ()):
            # Where the text ends within the string, what follows is not known yet: it might be one.
            if rest.startswith(bytes(text[cut : cut + len(rest)])):
                return True
    return False
