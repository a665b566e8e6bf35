"""Cut a long text into pieces that can be encoded one by one, with the ids of the whole text.

A piece may end only where the pattern always ends a word, whatever comes before or after. The few rules here
are enough for text with spaces or line ends, and work on `str`, for `Tokenizer`, which has no budget. What
`lowtide tokenize` needs (bytes, long lines, minified code, Chinese without spaces) is in `source/safe_cuts.py`,
a package that this one may not import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lowtide.settings import PatternName

PIECE_CHARACTERS = 64 * 1024
"""Approximate length of a piece: what its encoding needs stays in the processor's cache."""
_TAIL_CHARACTERS = 4096

_SOLID = r"[^\s\u180e\u200b\ufeff]"
"""A character that is not white space in any engine or version of Unicode."""
_BLANK_AHEAD = rf"(?<={_SOLID})(?=[ \t])"
"""In no pattern does a word continue from a solid character into a space or tab."""
_LINE_END_AHEAD = rf"(?<={_SOLID})(?=[\r\n])"
"""In gpt2 no word continues into a line end either. In the others "!\\n" is one word."""
_LINE_BEHIND = rf"(?<=\n)(?=[^/])(?={_SOLID})"
"""In those a word ends behind its line ends. o200k takes "!\\n/" as one word, and gpt2 cuts "\\n\\na" apart."""
_CUTS: dict[PatternName, re.Pattern[str]] = {
    "gpt2": re.compile(f"{_BLANK_AHEAD}|{_LINE_END_AHEAD}"),
    "cl100k": re.compile(f"{_BLANK_AHEAD}|{_LINE_BEHIND}"),
    "o200k": re.compile(f"{_BLANK_AHEAD}|{_LINE_BEHIND}"),
}


def cut_into_pieces(
    texts: Iterable[str], pattern: PatternName | None, unsplittable: Sequence[str]
) -> Iterator[str]:
    """Cut one text, which comes in parts, into pieces of about `PIECE_CHARACTERS`. Joined they are the text.

    Holds two pieces, or the longest stretch without a cut: the whole text, if the pattern is unknown.
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

    Neither an unsplittable string is cut nor what may become one when the text continues.

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
