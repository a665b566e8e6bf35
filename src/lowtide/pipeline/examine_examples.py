"""Examples against their input: the first rows again, through the template and the reference encoder.

All from the front, none left out: of an example that was split or dropped, only counting from the first
tells where the next one lies. What is learnt is found here by the plain rule, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.memory.limits import machine_limit
from lowtide.memory.meter import private_bytes
from lowtide.pipeline.prepare import choose_cut_rule, choose_delimiter
from lowtide.pipeline.prepare_examples import PreparedExamples, prepare_examples
from lowtide.pipeline.settings import TokenizeSettings
from lowtide.shards.layout import Placement, TokenArray
from lowtide.shards.learnt import BitArray
from lowtide.shards.read import Dataset
from lowtide.source.blocks import Block, ReadSettings, Spans
from lowtide.source.examples.settings import ExampleReading
from lowtide.source.find_inputs import InputFile
from lowtide.source.hold_out import held_out_documents
from lowtide.source.stream import Cursor, read_blocks
from lowtide.tokenizer.learnt_tokens import Lengths
from lowtide.tokenizer.reference import SpecialInText
from lowtide.tokenizer.reference_apart import APART_BYTES, ReferenceApart
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import MIB

_COMPARED_EXAMPLES = 1000
_COMPARED_TEXT_BYTES = 8 * MIB
_LONGEST_COMPARED_BYTES = 4 * MIB
_BESIDE_BYTES = 32 * MIB
"""What this process may still grow by while the reference works: a block, its documents and their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPiece:
    """An example, or a part of one that was too long, as it should lie in its split."""

    split: str
    ids: TokenArray
    learnt: BitArray


def compare_examples(
    dataset: Dataset, inputs: list[InputFile], settings: TokenizeSettings, vocabulary: Vocabulary
) -> tuple[int, list[str], str]:
    """How many pieces of examples were compared, what differed, and why no more were."""
    delimiter = choose_delimiter(inputs, settings, vocabulary)
    try:
        examples = _same_template(settings, vocabulary, inputs, delimiter)
    except LowtideError as error:
        return 0, [], error.problem
    numbers = dict.fromkeys(dataset.splits, 0)
    compared, different, why = 0, [], ""
    try:
        with fenced_reference(vocabulary, "text", examples.encode.marks) as reference:
            for piece in _expected(inputs, examples, vocabulary, delimiter, reference):
                number = numbers[piece.split]
                problem = _difference(dataset, piece, number)
                compared += 1
                if problem:  # what follows in this split would be compared with the wrong example
                    different.append(problem)
                    break
                numbers[piece.split] += 1
    except DataError as error:
        why = f"no further than this: {error.problem}"
    finally:
        examples.reading.template.close()
    return compared, different, why or ("" if compared else "the input holds no example")


@contextmanager
def fenced_reference(
    vocabulary: Vocabulary, special_in_text: SpecialInText, marks: Mapping[str, int] | None = None
) -> Iterator[ReferenceApart]:
    """The reference in a child that leaves a quarter of the memory free, less what this process holds.

    With little memory free that would leave it nothing: then it takes half of what is free.
    """
    limit = machine_limit()
    share_bytes = max(limit.spare_bytes, limit.total_bytes // 2)
    allowance_bytes = share_bytes - private_bytes() - _BESIDE_BYTES - APART_BYTES
    reference = ReferenceApart(
        vocabulary, special_in_text, marks, allowance_bytes=max(allowance_bytes, MIB)
    )
    try:
        yield reference
    finally:
        reference.close()


def _same_template(
    settings: TokenizeSettings, vocabulary: Vocabulary, inputs: list[InputFile], delimiter: bytes
) -> PreparedExamples:
    examples = prepare_examples(settings, vocabulary, inputs, delimiter)
    assert examples is not None, "only examples come here"
    found = examples.settings
    if (found.template_text, found.template_tokens) != (
        settings.template_text,
        settings.template_tokens,
    ):
        raise UsageError(
            f"the template {settings.template} has changed since", remedy="put the old one back"
        )
    return examples


def _difference(dataset: Dataset, piece: ExpectedPiece, number: int) -> str:
    """What is wrong with the stored piece; empty when nothing is."""
    split = dataset.splits[piece.split]
    name = f"example {number + 1} of {piece.split}"
    if split.learnt is None or number >= (split.document_count or 0):
        return f"{name} is missing: the input has more"
    start, end = split.document(number)
    if not np.array_equal(split.read(start, end), piece.ids):
        return f"{name} is not the input's"
    if not np.array_equal(split.learnt.read(start, end), piece.learnt):
        return f"{split.learnt.path.name}: the learnt bits of {name} are not the template's"
    return ""


def _expected(
    inputs: list[InputFile],
    examples: PreparedExamples,
    vocabulary: Vocabulary,
    delimiter: bytes,
    reference: ReferenceApart,
) -> Iterator[ExpectedPiece]:
    """The first examples as they should have been stored, each split and dropped by the plain rules."""
    settings = examples.settings
    given = text_bytes = 0
    read = compared_reading(settings, vocabulary, delimiter, examples.reading)
    for block in read_blocks(inputs, read, start=Cursor(file=0, position=0)):
        held_out = held_out_documents(
            block.text, delimiter=delimiter, fraction=settings.held_out_share
        )
        for (text, spans), val in zip(_examples_of(block, delimiter), held_out, strict=False):
            ids = reference.encode(text)
            learnt = _learnt_tokens(ids, spans, examples.recipe.lengths)
            ids, learnt = _with_end_of_text(ids, learnt, settings.placement, vocabulary)
            for at, stop in _fitting(len(ids), examples):
                bits = np.append([False], learnt[at + 1 : stop])  # nothing precedes the first
                if bits.any():
                    name = "val" if val else "train"
                    yield ExpectedPiece(split=name, ids=ids[at:stop], learnt=bits)
            given += 1
            text_bytes += len(text)
            if given >= _COMPARED_EXAMPLES or text_bytes >= _COMPARED_TEXT_BYTES:
                return


def compared_reading(
    settings: TokenizeSettings,
    vocabulary: Vocabulary,
    delimiter: bytes,
    examples: ExampleReading | None = None,
    *,
    longest_bytes: int = _LONGEST_COMPARED_BYTES,
) -> ReadSettings:
    """The input as it was read, in blocks and up to lengths that a look at its front needs."""
    return ReadSettings(
        column=settings.text_column,
        separator=settings.separator,
        bad_text=settings.bad_text,
        delimiter=delimiter,
        block_bytes=MIB,
        document_limit_bytes=longest_bytes,
        cut_rule=choose_cut_rule(vocabulary, settings),
        examples=examples,
    )


def _examples_of(block: Block, delimiter: bytes) -> Iterator[tuple[bytes, Spans]]:
    """Each example's text, and which bytes of it are learnt."""
    at = 0
    for text in block.text.split(delimiter)[:-1]:
        inside = (block.learnt[:, 0] >= at) & (block.learnt[:, 1] <= at + len(text))
        yield text, block.learnt[inside] - at
        at += len(text) + len(delimiter)


def _learnt_tokens(ids: TokenArray, spans: Spans, lengths: Lengths | None) -> BitArray:
    """A token is learnt if it shares a byte with a span; without lengths, every one is."""
    if lengths is None:
        return np.ones(len(ids), dtype=np.bool_)
    ends = np.cumsum(lengths[ids], dtype=np.int64)
    starts = ends - lengths[ids]
    learnt = np.zeros(len(ids), dtype=np.bool_)
    for begin, end in spans:
        learnt |= (starts < end) & (ends > begin)
    return learnt


def _with_end_of_text(
    ids: TokenArray, learnt: BitArray, placement: Placement, vocabulary: Vocabulary
) -> tuple[TokenArray, BitArray]:
    """Behind an example it is learnt if what it ends is; in front, never."""
    if placement == "none":
        return ids, learnt
    mark = np.array([vocabulary.end_of_text], dtype=ids.dtype)
    if placement == "end":
        return np.concatenate([ids, mark]), np.append(learnt, learnt[-1:])
    return np.concatenate([mark, ids]), np.append([False], learnt)


def _fitting(tokens: int, examples: PreparedExamples) -> list[tuple[int, int]]:
    """The parts of an example that are kept, each from the last token of the one before."""
    context, too_long = examples.recipe.context, examples.recipe.too_long
    if tokens > context and too_long == "skip":
        return []
    if too_long == "truncate":
        return [(0, min(tokens, context))]
    return [(at, min(tokens, at + context)) for at in range(0, max(1, tokens - 1), context - 1)]
