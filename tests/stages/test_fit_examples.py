"""Too long examples and learnt flags, against loops that anybody can read."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.settings import Placement, TooLong
from lowtide.stages.arrange import Arranged, arrange, split_documents
from lowtide.stages.fit_examples import fit_examples
from lowtide.tokenizer.encode import EncodedBlock

Example = list[tuple[int, bool]]
EXAMPLES = st.lists(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=12), max_size=8)
DELIMITER, END_OF_TEXT = 101, 100


def run_of(examples: list[Example]) -> Arranged:
    tokens = [token for example in examples for token, _ in example]
    learnt = [flag for example in examples for _, flag in example]
    return Arranged(
        tokens=np.array(tokens, dtype=np.uint16),
        ends=np.cumsum([len(example) for example in examples], dtype=np.int64),
        learnt=np.array(learnt, dtype=np.bool_),
    )


def examples_of(run: Arranged) -> list[Example]:
    assert run.learnt is not None
    starts = [0, *run.ends.tolist()]
    pairs = list(zip(run.tokens.tolist(), run.learnt.tolist(), strict=True))
    assert starts[-1] == len(pairs)
    return [pairs[a:b] for a, b in zip(starts[:-1], run.ends.tolist(), strict=True)]


def split_plainly(example: Example, context: int) -> list[Example]:
    """Token by token. A full piece ends, and the next one opens with its last token, to be seen again."""
    pieces: list[Example] = [[]]
    for token, flag in example:
        if len(pieces[-1]) == context:
            pieces.append([(pieces[-1][-1][0], False)])
        pieces[-1].append((token, flag and len(pieces[-1]) > 0))
    return pieces


def fit_plainly(
    examples: list[Example], context: int, policy: TooLong
) -> tuple[list[Example], list[int], int, int]:
    kept: list[Example] = []
    origin: list[int] = []
    too_long = dropped = 0
    for number, example in enumerate(examples):
        pieces = split_plainly(example, context)
        if len(example) > context:
            too_long += 1
            pieces = {"split": pieces, "truncate": pieces[:1], "skip": []}[policy]
        for piece in pieces:
            if any(flag for _, flag in piece):
                kept.append(piece)
                origin.append(number)
            else:
                dropped += 1
    return kept, origin, too_long, dropped


@pytest.mark.parametrize("policy", get_args(TooLong))
@given(examples=EXAMPLES, context=st.integers(2, 6))
def test_examples_are_fitted_as_a_plain_loop_does_it(
    policy: TooLong, examples: list[Example], context: int
) -> None:
    kept, origin, too_long, dropped = fit_plainly(examples, context, policy)
    fitted = fit_examples(run_of(examples), context=context, policy=policy)
    assert examples_of(fitted.arranged) == kept
    assert fitted.origin.tolist() == origin
    assert (fitted.too_long, fitted.dropped) == (too_long, dropped)
    assert fitted.examples == len(set(origin))


def targets_of(examples: list[Example]) -> list[tuple[int, int]]:
    """What a model is asked: the learnt tokens that have one before them, with that one."""
    return [
        (before, token)
        for example in examples
        for (before, _), (token, learnt) in pairwise(example)
        if learnt
    ]


@given(examples=EXAMPLES, context=st.integers(2, 6))
def test_a_split_loses_no_target_and_every_bit_is_one(
    examples: list[Example], context: int
) -> None:
    fitted = examples_of(fit_examples(run_of(examples), context=context, policy="split").arranged)
    assert targets_of(fitted) == targets_of(examples)
    assert sum(flag for example in fitted for _, flag in example) == len(targets_of(examples))
    assert all(len(example) <= context for example in fitted)


@given(examples=EXAMPLES)
def test_the_run_that_is_fitted_stays_as_it_was(examples: list[Example]) -> None:
    run = run_of(examples)
    fit_examples(run, context=6, policy="truncate")
    assert examples_of(run) == examples


@given(examples=EXAMPLES, sides=st.lists(st.booleans(), min_size=9, max_size=9))
def test_both_sides_of_a_split_keep_their_flags(examples: list[Example], sides: list[bool]) -> None:
    held_out = np.array([*sides[: len(examples)], False], dtype=np.bool_)
    train, val = split_documents(run_of(examples), held_out)
    assert examples_of(train) == [e for e, side in zip(examples, sides, strict=False) if not side]
    assert examples_of(val) == [e for e, side in zip(examples, sides, strict=False) if side]


def arranged(examples: list[Example], placement: Placement) -> list[Example]:
    pairs = [pair for example in examples for pair in [*example, (DELIMITER, False)]]
    ids = np.array([token for token, _ in pairs], dtype=np.uint32)
    run = arrange(
        EncodedBlock(ids=ids, ends=np.flatnonzero(ids == DELIMITER)),
        placement=placement,
        end_of_text=END_OF_TEXT,
        width=np.dtype(np.uint16),
        continues=False,
        learnt=np.array([flag for _, flag in pairs], dtype=np.bool_),
    )
    return examples_of(run)


@given(examples=st.lists(EXAMPLES.filter(bool).map(lambda e: [(1, False), *e[0]]), max_size=6))
def test_end_of_text_is_learnt_behind_what_is_and_never_in_front(examples: list[Example]) -> None:
    assert arranged(examples, "none") == examples
    assert arranged(examples, "end") == [[*e, (END_OF_TEXT, e[-1][1])] for e in examples]
    assert arranged(examples, "start") == [[(END_OF_TEXT, False), *e] for e in examples]
