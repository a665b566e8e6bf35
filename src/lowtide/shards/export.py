"""The same tokens in another format, without tokenizing again: what can be done, and the pieces to write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowtide.errors import UsageError, VerificationError
from lowtide.settings import Format, Placement
from lowtide.shards.layout import SPLITS, EndArray, TokenArray
from lowtide.shards.read import Dataset, TokenSplit
from lowtide.units import MIB

COPY_BYTES = 24 * MIB
"""Memory for verifying and copying, beside the writers: a piece of 8 MiB, what a scan for documents makes
of it, and the flags of examples."""
_HABIT: dict[Format, Placement] = {"nanogpt": "end", "llmc": "start", "megatron": "end"}
"""Where a format's readers expect end-of-text; `.npy` readers take both."""


def choose_placement(dataset: Dataset, to: Format, wanted: Placement | None) -> Placement:
    """Where end-of-text will stand. It can be moved, but neither added nor removed."""
    if any(split.loss_mask for split in dataset.splits.values()):
        if wanted not in (None, dataset.eot):  # every token would get its neighbour's bit
            raise UsageError(
                f"{dataset.path} holds examples with a loss mask: end-of-text stands at {dataset.eot!r} "
                f"and cannot be put at {wanted!r} by a copy",
                remedy=f"leave `--eot` out, or tokenize again with `--eot {wanted}`",
            )
        return dataset.eot
    if wanted is None:
        movable = dataset.eot != "none" and _end_of_text(dataset) is not None
        return _HABIT.get(to, dataset.eot) if movable else dataset.eot
    if wanted != dataset.eot and "none" in (wanted, dataset.eot):
        raise UsageError(
            f"end-of-text stands at {dataset.eot!r} and cannot be put at {wanted!r} by a copy",
            remedy=f"tokenize again with `--eot {wanted}`",
        )
    return wanted


def check_splits(dataset: Dataset, to: Format) -> None:
    """Refuse splits that cannot be written in this format."""
    for name, split in dataset.splits.items():
        if name not in SPLITS:
            raise UsageError(
                f"{dataset.path} has a split that is neither train nor val: {name}",
                remedy="export one file at a time, or name the files after train and val",
            )
        if split.documents is None and to == "megatron" and split.tokens:
            raise UsageError(
                f"Megatron needs to know where the documents of split {name} end",
                remedy="name a tokenizer that has an end-of-text token with `--tokenizer`",
            )


def check_end_of_text(dataset: Dataset, eot: Placement) -> None:
    """VerificationError if end-of-text is to be moved and does not stand where it should."""
    end_of_text = _end_of_text(dataset)
    if dataset.eot == eot or end_of_text is None:
        return
    for split in dataset.splits.values():
        at = split.tokens - 1 if dataset.eot == "end" else 0
        if split.tokens and int(split.read(at, at + 1)[0]) != end_of_text:
            raise VerificationError(
                f"end-of-text does not stand at the {dataset.eot} of split {split.name}",
                remedy=f"keep it where it is with `--eot {dataset.eot}`",
            )


def _end_of_text(dataset: Dataset) -> int | None:
    return dataset.tokenizer.end_of_text if dataset.tokenizer else None


def pieces_to_copy(
    dataset: Dataset, split: TokenSplit, eot: Placement, *, tokens: int, documents: int
) -> Iterator[tuple[TokenArray, EndArray]]:
    """What comes after the first `tokens` and `documents`, in pieces with the document ends in each.

    End-of-text is moved to `eot`:

        a b E | c E      behind each document, as nanoGPT has it
        E a b | E c      in front, as llm.c has it: the same stream, one place later
    """
    end_of_text = _end_of_text(dataset)
    if dataset.eot == eot or end_of_text is None or not split.tokens:
        stream = split.stream(tokens)
    else:
        move = _eot_in_front if eot == "start" else _eot_behind
        stream = move(split, tokens, end_of_text)
    ends = iter(()) if split.documents is None else split.document_ends(documents)
    return _with_ends(stream, ends, tokens)


def _eot_in_front(split: TokenSplit, start: int, end_of_text: int) -> Iterator[TokenArray]:
    """Turn documents `a b E | c E` into `E a b | E c`: the stream one place later, from `start` on."""
    if start == 0:
        yield np.array([end_of_text], dtype="<u4")
    yield from split.stream(max(0, start - 1), split.tokens - 1)


def _eot_behind(split: TokenSplit, start: int, end_of_text: int) -> Iterator[TokenArray]:
    """Turn documents `E a b | E c` into `a b E | c E`: the stream one place earlier."""
    if start < split.tokens:
        yield from split.stream(start + 1)
        yield np.array([end_of_text], dtype="<u4")


def _with_ends(
    tokens: Iterator[TokenArray], more_ends: Iterator[EndArray], start: int
) -> Iterator[tuple[TokenArray, EndArray]]:
    """Pieces of tokens, each with the document ends that lie in it, counted from its start.

    Where documents are short, pieces end with a piece of ends, so that only one of those is held.
    """
    none = np.empty(0, dtype=np.int64)
    ends = next(more_ends, none)
    for piece in tokens:
        stop = start + len(piece)
        while len(ends) and (until := int(ends[-1])) <= stop:
            yield piece[: until - start], ends - start
            piece, start = piece[until - start :], until
            ends = next(more_ends, none)
        if start < stop:
            here = int(np.searchsorted(ends, stop, side="right"))
            yield piece, ends[:here] - start
            ends, start = ends[here:], stop
    while len(ends):  # documents without a token, behind the last one
        yield np.empty(0, dtype="<u4"), ends - start
        ends = next(more_ends, none)
