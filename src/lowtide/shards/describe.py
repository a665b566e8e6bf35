"""Facts about a dataset for people: counts, sizes, the longest documents, a few samples.

Costs one pass over the document index; tokens are read only for the samples (and, in a peer's files
without an index, to find the documents). The caller passes in a function that turns ids into text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowtide.settings import Format, Placement
from lowtide.shards.layout import SPLITS, TokenArray
from lowtide.shards.loss_mask import BitArray
from lowtide.shards.manifest import ExamplesRecord, TokenizerRecord
from lowtide.shards.read import Dataset, TokenSplit

LONGEST_SHOWN = 5
_SHOWN_TEXT_TOKENS = 64
_SHOWN_EXAMPLE_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFact:
    """Where one document lies in its split."""

    number: int
    start: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFacts:
    """One split in figures."""

    name: str
    tokens: int
    documents: int | None
    """None when nothing says where documents end."""
    files: int
    stored_bytes: int
    """Token files with their headers; without indexes and manifest."""
    shortest_document_tokens: int | None
    longest_documents: tuple[DocumentFact, ...]
    """Longest first; of equal ones, the earlier."""
    learnt_tokens: int | None = None
    """Set bits of the loss mask; None for text, where every token is a target."""

    @property
    def tokens_per_document(self) -> float | None:
        """Mean document length; None without documents."""
        return self.tokens / self.documents if self.documents else None

    @property
    def learnt_share(self) -> float | None:
        """Share of the tokens that are targets; None for text, and without tokens."""
        if self.learnt_tokens is None or not self.tokens:
            return None
        return self.learnt_tokens / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """A dataset in figures."""

    format: Format
    token_bytes: int
    eot: Placement
    tokenizer: TokenizerRecord | None
    splits: tuple[SplitFacts, ...]
    text_bytes: int | None
    """None for a peer's files: the text is not known."""
    inputs: int
    bad_rows: int
    empty_documents: int
    unknown_tokens: int
    examples: ExamplesRecord | None = None
    """None for text and for a peer's files."""

    @property
    def tokens(self) -> int:
        """Tokens over all splits."""
        return sum(split.tokens for split in self.splits)

    @property
    def documents(self) -> int | None:
        """Documents over all splits; None when one split does not know its own."""
        counts = [split.documents for split in self.splits if split.documents is not None]
        return sum(counts) if len(counts) == len(self.splits) else None

    @property
    def bytes_per_token(self) -> float | None:
        """Mean bytes of text per token; None when the text is not known."""
        return self.text_bytes / self.tokens if self.text_bytes and self.tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The beginning of a document, as text."""

    split: str
    document: DocumentFact
    text: str
    shown_tokens: int
    learnt: tuple[tuple[int, int], ...] | None = None
    """Ranges of the shown tokens that are targets, as [start, end); None for text."""
    learnt_text: tuple[tuple[int, int], ...] | None = None
    """The ranges of `learnt`, counted in characters of `text`."""


def describe_dataset(dataset: Dataset, *, longest: int = LONGEST_SHOWN) -> DatasetFacts:
    """All figures; holds `longest` documents per split besides one piece of the index."""
    manifest, files = dataset.manifest, dataset.files
    return DatasetFacts(
        format=dataset.format,
        token_bytes=files[0].dtype.itemsize if files else 2,
        eot=dataset.eot,
        tokenizer=dataset.tokenizer,
        splits=tuple(_describe_split(dataset, split, longest) for split in dataset.splits.values()),
        text_bytes=manifest.text_bytes if manifest else None,
        inputs=len(manifest.inputs) if manifest else 0,
        bad_rows=manifest.bad_rows if manifest else 0,
        empty_documents=manifest.empty_documents if manifest else 0,
        unknown_tokens=manifest.unknown_tokens if manifest else 0,
        examples=manifest.examples if manifest else None,
    )


def sample_documents(
    dataset: Dataset,
    decode: Callable[[TokenArray], str],
    *,
    count: int = 3,
    longest_tokens: int | None = None,
) -> list[Sample]:
    """The beginnings of `count` documents, spread evenly over the largest split.

    Each is cut to a readable length; examples are cut later, because their targets come last.
    """
    split = max(dataset.splits.values(), key=lambda one: one.tokens)
    documents = split.document_count
    if not documents:
        return []
    if longest_tokens is None:
        longest_tokens = _SHOWN_EXAMPLE_TOKENS if split.loss_mask else _SHOWN_TEXT_TOKENS
    numbers = sorted({documents * k // count for k in range(count)})
    return [_sample(split, number, decode, longest_tokens) for number in numbers]


def _sample(
    split: TokenSplit, number: int, decode: Callable[[TokenArray], str], longest_tokens: int
) -> Sample:
    start, end = split.document(number)
    stop = min(end, start + longest_tokens)
    ids = split.read(start, stop)
    text = decode(ids)
    learnt = _ranges(split.loss_mask.read(start, stop)) if split.loss_mask else None
    return Sample(
        split=split.name,
        document=DocumentFact(number=number, start=start, tokens=end - start),
        text=text,
        shown_tokens=stop - start,
        learnt=learnt,
        learnt_text=None if learnt is None else _in_characters(learnt, ids, text, decode),
    )


def _ranges(flags: BitArray) -> tuple[tuple[int, int], ...]:
    """`0 1 1 0 1` is `(1, 3), (4, 5)`."""
    borders = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return tuple((int(a), int(b)) for a, b in borders.reshape(-1, 2))


def _in_characters(
    ranges: tuple[tuple[int, int], ...],
    ids: TokenArray,
    text: str,
    decode: Callable[[TokenArray], str],
) -> tuple[tuple[int, int], ...]:
    """Where ranges of tokens lie in their text. A border inside a character moves before it."""

    def place(tokens: int) -> int:
        before = decode(ids[:tokens])
        same = (
            at for at, (one, other) in enumerate(zip(before, text, strict=False)) if one != other
        )
        return next(same, min(len(before), len(text)))

    return tuple((place(a), place(b)) for a, b in ranges)


def _describe_split(dataset: Dataset, split: TokenSplit, longest: int) -> SplitFacts:
    shortest, longest_documents = _extremes(split, longest)
    loss_mask = None
    if dataset.manifest and split.name in SPLITS:
        loss_mask = dataset.manifest.splits[split.name].learnt
    return SplitFacts(
        name=split.name,
        tokens=split.tokens,
        documents=split.document_count,
        files=len(split.files),
        stored_bytes=sum(file.file_bytes for file in split.files),
        shortest_document_tokens=shortest,
        longest_documents=longest_documents,
        learnt_tokens=loss_mask.tokens if loss_mask else None,
    )


def _extremes(split: TokenSplit, longest: int) -> tuple[int | None, tuple[DocumentFact, ...]]:
    """The shortest length, and the longest documents, from one pass over the ends."""
    if split.documents is None:
        return None, ()
    best: list[DocumentFact] = []
    shortest: int | None = None
    done = before = 0
    for ends in split.document_ends():
        lengths = np.diff(ends, prepend=before)
        top = np.argsort(-lengths, kind="stable")[:longest]
        best += [
            DocumentFact(
                number=done + int(at), start=int(ends[at] - lengths[at]), tokens=int(lengths[at])
            )
            for at in top
        ]
        best = sorted(best, key=lambda one: (-one.tokens, one.number))[:longest]
        smallest = int(lengths.min())
        shortest = smallest if shortest is None else min(shortest, smallest)
        done += len(ends)
        before = int(ends[-1])
    return shortest, tuple(best)
