"""Examples longer than the context: split, truncated or left out, and counted.

    context 4, learnt *      a a a* a* a a* a     split: a a a* a* | a a* a    truncate: a a a* a*    skip:

A piece in which nothing is learnt is dropped: it would cost a window and teach nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.pipeline.arrange import Run
from lowtide.source.examples.settings import TooLong

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
    is_long = lengths > context
    pieces, origin = _cut(starts, lengths, context, policy)
    learnt_before = np.concatenate(([0], np.cumsum(run.learnt, dtype=np.int64)))
    teaches = learnt_before[pieces[:, 1]] > learnt_before[pieces[:, 0]]
    too_long, dropped = int(is_long.sum()), int((~teaches).sum())
    if not too_long and not dropped:
        return Fitted(run=run, origin=origin, too_long=0, dropped=0)
    kept = pieces[teaches]
    stays = _inside(kept, len(run.tokens))
    fitted = Run(
        tokens=run.tokens[stays],
        ends=np.cumsum(kept[:, 1] - kept[:, 0]),
        learnt=run.learnt[stays],
    )
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
    counts = np.maximum(-(-lengths // context), 1)
    origin = np.repeat(numbers, counts)
    within = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[origin] + within * context
    stops = np.minimum(begins + context, (starts + lengths)[origin])
    return np.stack((begins, stops), axis=1), origin


def _inside(pieces: Numbers, tokens: int) -> npt.NDArray[np.bool_]:
    """A flag for each token that lies in a piece. Pieces are in order and share no token."""
    steps = np.zeros(tokens + 1, dtype=np.int8)
    np.add.at(steps, pieces[:, 0], 1)
    np.subtract.at(steps, pieces[:, 1], 1)
    return np.cumsum(steps[:-1], dtype=np.int8) > 0
