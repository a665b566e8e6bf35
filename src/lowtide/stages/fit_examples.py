"""Examples longer than the context: split, truncated or left out, and counted.

    context 4, learnt *      a b c* d* e f* g     split: a b c* d* | d e f* g    truncate: a b c* d*    skip:

A piece begins with the last token of the one before, as context: it is not a target again. The first token of
an example has no context and is never a target. A piece without a target is dropped: it would take up a
sequence and teach nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.settings import TooLong
from lowtide.stages.arrange import Arranged, Flags

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Examples cut to the context, and how many were too long or dropped."""

    arranged: Arranged
    origin: Numbers
    """For each piece of `arranged`, the number of the example it came from."""
    too_long: int
    dropped: int

    @property
    def examples(self) -> int:
        """Number of examples of which something is left; one that was split counts once."""
        return int(np.count_nonzero(np.diff(self.origin, prepend=-1)))


def fit_examples(arranged: Arranged, *, context: int, policy: TooLong) -> Fitted:
    """Pieces of at most `context` tokens, with something to learn in each. All examples are whole."""
    assert arranged.learnt is not None
    starts = np.concatenate(([0], arranged.ends[:-1])).astype(np.int64)[: len(arranged.ends)]
    lengths = arranged.ends - starts
    pieces, origin = _cut(starts, lengths, context, policy)
    teaches = _teaches(pieces, arranged.learnt)
    too_long, dropped = int((lengths > context).sum()), int((~teaches).sum())
    if too_long or dropped:
        fitted = _copy(arranged, arranged.learnt, pieces[teaches])
    else:
        learnt = arranged.learnt.copy()
        learnt[starts] = False
        fitted = Arranged(tokens=arranged.tokens, ends=arranged.ends, learnt=learnt)
    return Fitted(arranged=fitted, origin=origin[teaches], too_long=too_long, dropped=dropped)


def _cut(
    starts: Numbers, lengths: Numbers, context: int, policy: TooLong
) -> tuple[Numbers, Numbers]:
    """Where each piece begins and ends, a row each, and the number of its example."""
    numbers = np.arange(len(starts))
    if policy == "skip":
        numbers = numbers[lengths <= context]
    if policy != "split":
        stops = starts[numbers] + np.minimum(lengths[numbers], context)
        return np.stack((starts[numbers], stops), axis=1), numbers
    step = context - 1
    counts = np.maximum(-(-(lengths - 1) // step), 1)
    origin = np.repeat(numbers, counts)
    within = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[origin] + within * step
    stops = np.minimum(begins + context, (starts + lengths)[origin])
    return np.stack((begins, stops), axis=1), origin


def _teaches(pieces: Numbers, learnt: Flags) -> Flags:
    """A flag for each piece: whether there is a target after its first token."""
    places = np.flatnonzero(learnt)
    begins, stops = pieces[:, 0], pieces[:, 1]
    before = np.searchsorted(places, np.minimum(begins + 1, stops))
    found: Flags = np.searchsorted(places, stops) > before
    return found


def _copy(arranged: Arranged, learnt: Flags, pieces: Numbers) -> Arranged:
    """The tokens of the pieces, one after another; a token that two of them share comes twice."""
    begins, stops = pieces[:, 0], pieces[:, 1]
    ends = np.cumsum(stops - begins)
    firsts = ends - (stops - begins)
    again = begins[1:] < stops[:-1]
    shared = begins[1:][again]
    places = (firsts[1:] - (np.cumsum(again) - again))[again]
    stays = _inside(pieces, len(arranged.tokens))
    flags = np.insert(learnt[stays], places, False)
    flags[firsts] = False
    return Arranged(
        tokens=np.insert(arranged.tokens[stays], places, arranged.tokens[shared]),
        ends=ends,
        learnt=flags,
    )


def _inside(pieces: Numbers, tokens: int) -> Flags:
    """A flag for each token that lies in a piece. Pieces are in order."""
    steps = np.zeros(tokens + 1, dtype=np.int8)
    np.add.at(steps, pieces[:, 0], 1)
    np.subtract.at(steps, pieces[:, 1], 1)
    found: Flags = np.cumsum(steps[:-1], dtype=np.int8) > 0
    return found
