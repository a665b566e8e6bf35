"""Between encoder and shards: end-of-text put where it belongs, ids narrowed, documents sent to their split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.settings import Placement
from lowtide.shards.layout import EndArray, TokenArray
from lowtide.tokenizer.encode import EncodedBlock

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """Tokens as they will be on disk, and where documents end in them."""

    tokens: TokenArray
    ends: EndArray
    learnt: Flags | None = None
    """A flag for each token of examples: whether it is a target. None for text."""


def arrange(
    encoded: EncodedBlock,
    *,
    placement: Placement,
    end_of_text: int,
    width: np.dtype[np.unsignedinteger],
    continues: bool,
    learnt: Flags | None = None,
) -> Arranged:
    """Turn delimiters into end-of-text tokens; `continues` when the block opens inside a document.

    ids 5 6 D 7 D   end: 5 6 E 7 E   start: E 5 6 E 7   none: 5 6 7      (D delimiter, E end-of-text)

    `learnt` has a flag for each id. An end-of-text behind an example is a target if the token before it is;
    one in front never is.
    """
    ids, ends = encoded.ids, encoded.ends
    if placement == "end":
        ids[ends] = end_of_text
        if learnt is not None and len(ends):
            learnt[ends] = learnt[ends - 1]
        return Arranged(tokens=_narrow(ids, width), ends=ends + 1, learnt=learnt)
    if placement == "none":
        kept = np.delete(ids, ends)
        return Arranged(
            tokens=_narrow(kept, width),
            ends=ends - np.arange(len(ends)),
            learnt=None if learnt is None else np.delete(learnt, ends),
        )
    closed = bool(len(ends)) and int(ends[-1]) == len(ids) - 1
    ids[ends] = end_of_text
    body = ids[:-1] if closed else ids
    if continues or not len(ids):
        return Arranged(tokens=_narrow(body, width), ends=ends, learnt=learnt)
    opened = np.empty(len(body) + 1, dtype=width)
    opened[0] = end_of_text
    opened[1:] = _narrow(body, width)
    if learnt is not None:
        learnt = np.concatenate(([np.False_], learnt))[: len(opened)]
    return Arranged(tokens=opened, ends=ends + 1, learnt=learnt)


def _narrow(ids: TokenArray, width: np.dtype[np.unsignedinteger]) -> TokenArray:
    """The ids in the width on disk. They must fit: 70000 must not wrap to 4464."""
    if len(ids):
        assert int(ids.max()) <= np.iinfo(width).max, "an id is wider than the vocabulary says"
    return ids.astype(width, copy=False)


def split_documents(arranged: Arranged, held_out: Flags) -> tuple[Arranged, Arranged]:
    """The tokens of train and of val. `held_out` has a flag for each document, the unfinished one included."""
    if not held_out.any():
        return arranged, _nothing(arranged)
    if held_out.all():
        return _nothing(arranged), arranged
    borders = np.concatenate(([0], arranged.ends, [len(arranged.tokens)]))[: len(held_out) + 1]
    lengths = np.diff(borders)
    of_token = np.repeat(held_out, lengths)
    finished = held_out[: len(arranged.ends)]
    return (
        Arranged(
            tokens=arranged.tokens[~of_token],
            ends=np.cumsum(lengths * ~held_out)[: len(finished)][~finished],
            learnt=None if arranged.learnt is None else arranged.learnt[~of_token],
        ),
        Arranged(
            tokens=arranged.tokens[of_token],
            ends=np.cumsum(lengths * held_out)[: len(finished)][finished],
            learnt=None if arranged.learnt is None else arranged.learnt[of_token],
        ),
    )


def _nothing(like: Arranged) -> Arranged:
    learnt = None if like.learnt is None else like.learnt[:0]
    return Arranged(tokens=like.tokens[:0], ends=like.ends[:0], learnt=learnt)
