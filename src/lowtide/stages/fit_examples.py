"""Examples longer than the context: split, truncated or left out, and counted.

    context 4, learnt *      a b c* d* e f* g     split: a b c* d* | d e f* g    truncate: a b c* d*    skip:

A piece goes on from the last token of the one before, which is there to be seen and not learnt again: without
it the next token would have nothing before it. Nor has the first token of an example, which is never learnt.
A piece in which nothing is learnt is dropped: it would cost a window and teach nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.settings import TooLong
from lowtide.stages.arrange import Flags, Run

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Examples that fit, and what became of those that did not."""

    run: Run
    origin: Numbers
    """For each piece of `run`, the number of the example it came from."""
    too_long: int
    dropped: int

    @property
    def examples(self) -> int:
        """Examples of which something is left; one that was split counts once."""
        return int(np.count_nonzero(np.diff(self.origin, prepend=-1)))


def fit_examples(run: Run, *, context: int, policy: TooLong) -> Fitted:
    """Pieces of at most `context` tokens, with something to learn in each. The run holds whole examples."""
    assert run.learnt is not None
    starts = np.concatenate(([0], run.ends[:-1])).astype(np.int64)[: len(run.ends)]
    lengths = run.ends - starts
    pieces, origin = _cut(starts, lengths, context, policy)
    teaches = _teaches(pieces, run.learnt)
    too_long, dropped = int((lengths > context).sum()), int((~teaches).sum())
    if too_long or dropped:
        fitted = _copy(run, run.learnt, pieces[teaches])
    else:
        learnt = run.learnt.copy()
        learnt[starts] = False
        fitted = Run(tokens=run.tokens, ends=run.ends, learnt=learnt)
    return Fitted(run=fitted, origin=origin[teaches], too_long=too_long, dropped=dropped)


def _cut(
    starts: Numbers, lengths: Numbers, context: int, policy: TooLong
) -> tuple[Numbers, Numbers]:
    """Where pieces begin and end, a row each, and the example that each belongs to."""
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
    """Whether something is learnt in a piece behind its first token, a flag each."""
    places = np.flatnonzero(learnt)
    begins, stops = pieces[:, 0], pieces[:, 1]
    before = np.searchsorted(places, np.minimum(begins + 1, stops))
    found: Flags = np.searchsorted(places, stops) > before
    return found


def _copy(run: Run, learnt: Flags, pieces: Numbers) -> Run:
    """The tokens of the pieces, one behind the other; a token that two of them share comes twice."""
    begins, stops = pieces[:, 0], pieces[:, 1]
    ends = np.cumsum(stops - begins)
    firsts = ends - (stops - begins)
    again = begins[1:] < stops[:-1]
    shared = begins[1:][again]
    places = (firsts[1:] - (np.cumsum(again) - again))[again]
    stays = _inside(pieces, len(run.tokens))
    flags = np.insert(learnt[stays], places, False)
    flags[firsts] = False
    return Run(
        tokens=np.insert(run.tokens[stays], places, run.tokens[shared]), ends=ends, learnt=flags
    )


def _inside(pieces: Numbers, tokens: int) -> Flags:
    """A flag for each token that lies in a piece. Pieces are in order."""
    steps = np.zeros(tokens + 1, dtype=np.int8)
    np.add.at(steps, pieces[:, 0], 1)
    np.subtract.at(steps, pieces[:, 1], 1)
    found: Flags = np.cumsum(steps[:-1], dtype=np.int8) > 0
    return found
