"""Between encoder and shards: end-of-text put where it belongs, ids narrowed, documents sent to their split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.settings import Placement
from lowtide.shards.layout import EndArray, TokenArray
from lowtide.tokenizer.encode import EncodedBlock

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Tokens as they will lie on disk, and where in them documents end."""

    tokens: TokenArray
    ends: EndArray
    learnt: Flags | None = None
    """Of examples, a flag for each token."""


def arrange(
    encoded: EncodedBlock,
    *,
    placement: Placement,
    end_of_text: int,
    width: np.dtype[np.unsignedinteger],
    continues: bool,
    learnt: Flags | None = None,
) -> Run:
    """Turn delimiters into end-of-text tokens; `continues` when the block opens inside a document.

    ids 5 6 D 7 D   end: 5 6 E 7 E   start: E 5 6 E 7   none: 5 6 7      (D delimiter, E end-of-text)

    `learnt` has a flag for each id. An end-of-text behind an example is learnt if the token before it is;
    one in front, never.
    """
    ids, ends = encoded.ids, encoded.ends
    if placement == "end":
        ids[ends] = end_of_text
        if learnt is not None and len(ends):
            learnt[ends] = learnt[ends - 1]
        return Run(tokens=_narrow(ids, width), ends=ends + 1, learnt=learnt)
    if placement == "none":
        kept = np.delete(ids, ends)
        return Run(
            tokens=_narrow(kept, width),
            ends=ends - np.arange(len(ends)),
            learnt=None if learnt is None else np.delete(learnt, ends),
        )
    closed = bool(len(ends)) and int(ends[-1]) == len(ids) - 1
    ids[ends] = end_of_text
    body = ids[:-1] if closed else ids
    if continues or not len(ids):
        return Run(tokens=_narrow(body, width), ends=ends, learnt=learnt)
    opened = np.empty(len(body) + 1, dtype=width)
    opened[0] = end_of_text
    opened[1:] = _narrow(body, width)
    if learnt is not None:
        learnt = np.concatenate(([np.False_], learnt))[: len(opened)]
    return Run(tokens=opened, ends=ends + 1, learnt=learnt)


def _narrow(ids: TokenArray, width: np.dtype[np.unsignedinteger]) -> TokenArray:
    """To the width on disk, never by wrapping: 70000 must not become 4464."""
    if len(ids):
        assert int(ids.max()) <= np.iinfo(width).max, "an id is wider than the vocabulary says"
    return ids.astype(width, copy=False)


def split_documents(run: Run, held_out: Flags) -> tuple[Run, Run]:
    """The same run as (train, val); `held_out` has a flag for each document, the unfinished one included."""
    if not held_out.any():
        return run, _nothing(run)
    if held_out.all():
        return _nothing(run), run
    borders = np.concatenate(([0], run.ends, [len(run.tokens)]))[: len(held_out) + 1]
    lengths = np.diff(borders)
    of_token = np.repeat(held_out, lengths)
    finished = held_out[: len(run.ends)]
    return (
        Run(
            tokens=run.tokens[~of_token],
            ends=np.cumsum(lengths * ~held_out)[: len(finished)][~finished],
            learnt=None if run.learnt is None else run.learnt[~of_token],
        ),
        Run(
            tokens=run.tokens[of_token],
            ends=np.cumsum(lengths * held_out)[: len(finished)][finished],
            learnt=None if run.learnt is None else run.learnt[of_token],
        ),
    )


def _nothing(like: Run) -> Run:
    learnt = None if like.learnt is None else like.learnt[:0]
    return Run(tokens=like.tokens[:0], ends=like.ends[:0], learnt=learnt)
