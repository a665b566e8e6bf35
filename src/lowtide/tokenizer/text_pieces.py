"""A long text in pieces that can be encoded each by itself, with the ids of the whole.

A piece may end only where the pattern always ends a word, whatever comes before or after. The few rules here
are enough for text with blanks or line ends, and work on `str`, for one caller who has no budget. What
`lowtide tokenize` needs (bytes, long lines, minified code, Chinese without a break) is `source/safe_cuts.py`,
a room that this one does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lowtide.tokenizer.patterns import PatternName

PIECE_CHARACTERS = 64 * 1024
"""So long is a piece, more or less: what is needed on the way to its ids stays in the processor's cache."""
_TAIL_CHARACTERS = 4096

_SOLID = r"[^\s\u180e\u200b\ufeff]"
"""What no engine and no version of Unicode has called white space."""
_BLANK_AHEAD = rf"(?<={_SOLID})(?=[ \t])"
"""No word of any pattern goes on from a solid character into a blank."""
_LINE_END_AHEAD = rf"(?<={_SOLID})(?=[\r\n])"
"""In gpt2 none goes on into a line end either. In the others "!\\n" is one word."""
_LINE_BEHIND = rf"(?<=\n)(?=[^/])(?={_SOLID})"
"""In those a word stops behind its line ends; o200k takes "!\\n/" as one, gpt2 parts "\\n\\na" apart."""
_CUTS: dict[PatternName, re.Pattern[str]] = {
    "gpt2": re.compile(f"{_BLANK_AHEAD}|{_LINE_END_AHEAD}"),
    "cl100k": re.compile(f"{_BLANK_AHEAD}|{_LINE_BEHIND}"),
    "o200k": re.compile(f"{_BLANK_AHEAD}|{_LINE_BEHIND}"),
}


def cut_into_pieces(
    texts: Iterable[str], pattern: PatternName | None, unsplittable: Sequence[str]
) -> Iterator[str]:
    """One text that comes in parts, in pieces of about `PIECE_CHARACTERS`. Together they are the text.

    Holds two pieces, or the longest stretch without a cut: all of it, if the pattern is unknown.
    """
    held: list[str] = []
    length, enough = 0, PIECE_CHARACTERS
    for part in _short_parts(texts):
        held.append(part)
        length += len(part)
        if length <= enough:
            continue
        text = "".join(held)
        place = last_cut(text, pattern, unsplittable)
        if place:
            yield text[:place]
        held, length = [text[place:]], len(text) - place
        enough = max(PIECE_CHARACTERS, 2 * length)  # else a long word is searched over and over
    if length:
        yield "".join(held)


def last_cut(text: str, pattern: PatternName | None, unsplittable: Sequence[str]) -> int:
    """The last place at which a text can be cut without changing a token, or 0 where there is none.

    No unsplittable string is cut, nor what may turn out to be one when the text goes on.

    >>> last_cut("It was a dark night", "gpt2", ())
    13
    """
    if pattern is None:
        return 0
    for start in (max(0, len(text) - _TAIL_CHARACTERS), 0):
        places = [match.start() for match in _CUTS[pattern].finditer(text, start)]
        for place in reversed(places):
            if not any(_lies_across(text, place, token) for token in unsplittable):
                return place
    return 0


def _lies_across(text: str, place: int, token: str) -> bool:
    starts = range(max(0, place - len(token) + 1), place)
    return any(token.startswith(text[start : start + len(token)]) for start in starts)


def _short_parts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), PIECE_CHARACTERS):
            yield text[start : start + PIECE_CHARACTERS]
