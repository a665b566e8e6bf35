"""A split's tokens with end-of-text where another format's readers expect it, in pieces.

a b E | c E      behind each document, as nanoGPT has it
E a b | E c      in front, as llm.c has it: the same stream, one place later
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowtide.errors import VerificationError
from lowtide.shards.layout import EndArray, Placement, TokenArray
from lowtide.shards.read import TokenSplit


def pieces_with_ends(
    split: TokenSplit,
    *,
    source_eot: Placement,
    eot: Placement,
    end_of_text: int | None,
    tokens: int,
    documents: int,
) -> Iterator[tuple[TokenArray, EndArray]]:
    """What follows the first `tokens` and `documents`: pieces of at most 8 MiB with their document ends."""
    if source_eot == eot or end_of_text is None or not split.tokens:
        stream = split.stream(tokens)
    else:
        _check_movable(split, source_eot, end_of_text)
        move = _eot_in_front if eot == "start" else _eot_behind
        stream = move(split, tokens, end_of_text)
    if split.documents is None:
        return ((piece, np.empty(0, dtype=np.int64)) for piece in stream)
    return _with_ends(stream, split.document_ends(documents), tokens)


def _eot_in_front(split: TokenSplit, start: int, end_of_text: int) -> Iterator[TokenArray]:
    """Documents `a b E | c E` as `E a b | E c`: the stream one place later, from `start` on."""
    if start == 0:
        yield np.array([end_of_text], dtype="<u4")
    yield from split.stream(max(0, start - 1), split.tokens - 1)


def _eot_behind(split: TokenSplit, start: int, end_of_text: int) -> Iterator[TokenArray]:
    """Documents `E a b | E c` as `a b E | c E`: the stream one place earlier."""
    if start < split.tokens:
        yield from split.stream(start + 1)
        yield np.array([end_of_text], dtype="<u4")


def _check_movable(split: TokenSplit, eot: Placement, end_of_text: int) -> None:
    at = split.tokens - 1 if eot == "end" else 0
    if int(split.read(at, at + 1)[0]) != end_of_text:
        raise VerificationError(
            f"end-of-text does not stand at the {eot} of split {split.name}",
            remedy=f"keep it where it is with `--eot {eot}`",
        )


def _with_ends(
    tokens: Iterator[TokenArray], more_ends: Iterator[EndArray], start: int
) -> Iterator[tuple[TokenArray, EndArray]]:
    """Pieces of tokens, each with the document ends that lie in it, counted from its start."""
    ends = np.empty(0, dtype=np.int64)
    for piece in tokens:
        stop = start + len(piece)
        while not len(ends) or ends[-1] <= stop:
            more = next(more_ends, None)
            if more is None:
                break
            ends = np.concatenate([ends, more])
        here = int(np.searchsorted(ends, stop, side="right"))
        yield piece, ends[:here] - start
        ends = ends[here:]
        start = stop
