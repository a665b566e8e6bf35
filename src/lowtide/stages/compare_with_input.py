"""Compare a dataset with the input it was made from: its first documents again, through the reference encoder.

Of text, a few documents from each block at the front of the input are compared. Of examples, all rows from
the front go through the template: an example may be split or dropped, so the place of each follows only from
those before it. Their targets are found by the plain rule, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.memory.limits import machine_limit
from lowtide.memory.meter import private_bytes
from lowtide.settings import Placement, TokenizeSettings
from lowtide.shards.layout import TokenArray
from lowtide.shards.loss_mask import BitArray
from lowtide.shards.manifest import DatasetManifest
from lowtide.shards.read import Dataset, TokenSplit
from lowtide.source.blocks import Block, ReadSettings, Spans
from lowtide.source.examples.settings import ExampleReading
from lowtide.source.find_inputs import InputFile, find_inputs
from lowtide.source.hold_out import held_out_documents
from lowtide.source.stream import Cursor, read_blocks
from lowtide.stages.prepare import choose_cut_rule, choose_delimiter
from lowtide.stages.prepare_examples import PreparedExamples, prepare_examples
from lowtide.stages.settings import settings_of_manifest
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.tokenizer.encode import first_difference
from lowtide.tokenizer.learnt_tokens import Lengths
from lowtide.tokenizer.reference_apart import APART_BYTES, ReferenceApart, ReferenceMemoryError
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import MIB, format_bytes

_COMPARED_TEXT_BYTES = 32 * MIB
_COMPARED_DOCUMENTS = 64
_LONGEST_ENCODED_BYTES = MIB
"""A longer document is not encoded again: the reference takes hundreds of bytes for each of its bytes."""
_LONGEST_COMPARED_BYTES = 32 * MIB
"""The longest row or page that is read: writers of parquet put some 20,000 rows into a page."""
_COMPARED_EXAMPLES = 1000
_COMPARED_EXAMPLE_BYTES = 8 * MIB
_LONGEST_EXAMPLE_BYTES = 4 * MIB
_BESIDE_BYTES = 32 * MIB
"""Growth of this process while the reference works: a block, its documents and their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputComparison:
    """Documents, or pieces of examples, compared with the input."""

    compared: int = 0
    differences: tuple[str, ...] = ()
    why_no_more: str = ""
    """Why no more could be compared, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The input of a dataset, and how it was read."""

    inputs: list[InputFile]
    settings: TokenizeSettings
    vocabulary: Vocabulary
    delimiter: bytes

    def blocks(
        self, longest_bytes: int, examples: ExampleReading | None = None
    ) -> Iterator[tuple[Block, list[bytes], BitArray]]:
        """Blocks from the front, each with its finished documents and whether they are held out."""
        settings, delimiter = self.settings, self.delimiter
        read = ReadSettings(
            column=settings.text_column,
            separator=settings.separator,
            bad_text=settings.bad_text,
            delimiter=delimiter,
            block_bytes=MIB,
            document_limit_bytes=longest_bytes,
            cut_rule=choose_cut_rule(self.vocabulary, settings),
            examples=examples,
        )
        for block in read_blocks(self.inputs, read, start=Cursor(file=0, position=0)):
            held_out = held_out_documents(
                block.text, delimiter=delimiter, fraction=settings.held_out_share
            )
            yield block, block.text.split(delimiter)[:-1], held_out


def compare_with_input(dataset: Dataset, vocabulary: Vocabulary) -> InputComparison:
    """Compare a dataset of ours with the inputs that its manifest names, if they are unchanged."""
    assert dataset.manifest is not None, "a peer's files name no input"
    settings = settings_of_manifest(dataset.manifest)
    if settings.split_rule == "tail":
        why = "documents are compared with their input for the hash split only"
        return InputComparison(why_no_more=why)
    try:
        inputs = _unchanged_inputs(dataset.manifest, settings)
        source = _Source(
            inputs=inputs,
            settings=settings,
            vocabulary=vocabulary,
            delimiter=choose_delimiter(inputs, settings, vocabulary),
        )
        examples = _same_template(source) if settings.examples is not None else None
    except LowtideError as error:
        return InputComparison(why_no_more=error.problem)
    if examples is None:
        return _compare_documents(dataset, source)
    try:
        return _compare_examples(dataset, replace(source, settings=examples.settings), examples)
    finally:
        examples.reading.template.close()


def _unchanged_inputs(manifest: DatasetManifest, settings: TokenizeSettings) -> list[InputFile]:
    names = [item.name for item in manifest.inputs]
    if any(not item.fingerprint for item in manifest.inputs):
        raise UsageError(
            f"the input {', '.join(names)} was read once",
            remedy="keep the input to compare with it",
        )
    for item in manifest.inputs:
        path = Path(item.name)
        if not path.is_file() and not path.is_absolute():
            raise UsageError(
                f"{item.name} was not found from this folder; run `lowtide verify` where `tokenize` ran",
                remedy="change to that folder, or put the input back",
            )
        if not path.is_file() or fingerprint_file(path) != item.fingerprint:
            raise UsageError(f"the input {item.name} is gone or changed", remedy="put it back")
    return find_inputs(names, input_format=settings.input_format)


@contextmanager
def _fenced_reference(
    source: _Source, marks: Mapping[str, int] | None = None
) -> Iterator[ReferenceApart]:
    """The reference in a child process. With this process, it leaves a quarter of the memory free.

    Where less than that is free, it takes half of what is.
    """
    limit = machine_limit()
    share_bytes = max(limit.spare_bytes, limit.total_bytes // 2)
    allowance_bytes = share_bytes - private_bytes() - _BESIDE_BYTES - APART_BYTES
    special_in_text = "text" if source.settings.examples else source.settings.special_in_text
    reference = ReferenceApart(
        source.vocabulary, special_in_text, marks, allowance_bytes=max(allowance_bytes, MIB)
    )
    try:
        yield reference
    finally:
        reference.close()


# Documents of text


def _compare_documents(dataset: Dataset, source: _Source) -> InputComparison:
    compared, different, why = 0, [], ""
    try:
        with _fenced_reference(source) as reference:
            for name, number, text in _documents_of_input(source):
                if len(text) > _LONGEST_ENCODED_BYTES:
                    longest = format_bytes(_LONGEST_ENCODED_BYTES)
                    why = f"documents beyond {longest} are not encoded again"
                    continue
                try:
                    expected = reference.encode(text)
                except ReferenceMemoryError as error:
                    why = f"a document is not compared: {error.problem}"
                    continue
                stored = _stored_tokens(dataset.splits[name], number, dataset.eot)
                if not np.array_equal(stored, expected):
                    at = first_difference(stored, expected)
                    different.append(
                        f"document {number + 1} of {name}: its ids are not those that the reference encoder "
                        f"gives for the input, from token {at} on"
                    )
                compared += 1
    except DataError as error:
        why = f"no further than this: {error.problem}"
    why = why or ("" if compared else "no document lies in one piece")
    return InputComparison(compared=compared, differences=tuple(different), why_no_more=why)


def _documents_of_input(source: _Source) -> Iterator[tuple[str, int, bytes]]:
    """Some documents from the front of the input: (split, number in the split, text)."""
    numbers = {"train": 0, "val": 0}
    text_bytes = given = 0
    inside = False
    for block, pieces, held_out in source.blocks(_LONGEST_COMPARED_BYTES):
        for at, (piece, val) in enumerate(zip(pieces, held_out, strict=False)):
            name = "val" if val else "train"
            whole = at > 0 or not inside
            if whole and at * 8 // len(pieces) != (at - 1) * 8 // len(pieces):
                yield name, numbers[name], piece
                given += 1
            numbers[name] += 1
        inside = block.after.within > 0
        text_bytes += block.text_bytes
        if inside or text_bytes > _COMPARED_TEXT_BYTES or given > _COMPARED_DOCUMENTS:
            return  # the split of a document cut across blocks is not known here


def _stored_tokens(split: TokenSplit, number: int, eot: Placement) -> TokenArray:
    """A document's tokens without its end-of-text."""
    start, end = split.document(number)
    return split.read(start + (eot == "start"), end - (eot == "end"))


# Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpectedPiece:
    """An example, or a part of one that was too long, as it should lie in its split."""

    split: str
    ids: TokenArray
    learnt: BitArray


def _same_template(source: _Source) -> PreparedExamples:
    """How the examples were read; UsageError if the template was changed since."""
    examples = prepare_examples(source.settings, source.vocabulary, source.inputs, source.delimiter)
    assert examples is not None, "only examples come here"
    now, before = examples.settings, source.settings
    if (now.template_text, now.template_tokens) != (before.template_text, before.template_tokens):
        examples.reading.template.close()
        raise UsageError(
            f"the template {before.template} has changed since", remedy="put the old one back"
        )
    return examples


def _compare_examples(
    dataset: Dataset, source: _Source, examples: PreparedExamples
) -> InputComparison:
    numbers = dict.fromkeys(dataset.splits, 0)
    compared, different, why = 0, [], ""
    try:
        with _fenced_reference(source, examples.encode.marks) as reference:
            for piece in _expected_pieces(source, examples, reference):
                problem = _difference(dataset, piece, numbers[piece.split])
                compared += 1
                if problem:  # what follows in this split would be compared with the wrong example
                    different.append(problem)
                    break
                numbers[piece.split] += 1
    except DataError as error:
        why = f"no further than this: {error.problem}"
    why = why or ("" if compared else "the input holds no example")
    return InputComparison(compared=compared, differences=tuple(different), why_no_more=why)


def _difference(dataset: Dataset, piece: _ExpectedPiece, number: int) -> str:
    """How the stored piece differs from the expected one; empty if it does not."""
    split = dataset.splits[piece.split]
    name = f"example {number + 1} of {piece.split}"
    if split.loss_mask is None or number >= (split.document_count or 0):
        return f"{name} is missing: the input has more"
    start, end = split.document(number)
    if not np.array_equal(split.read(start, end), piece.ids):
        return f"{name} is not the input's"
    if not np.array_equal(split.loss_mask.read(start, end), piece.learnt):
        return f"{split.loss_mask.path.name}: the loss mask of {name} is not the template's"
    return ""


def _expected_pieces(
    source: _Source, examples: PreparedExamples, reference: ReferenceApart
) -> Iterator[_ExpectedPiece]:
    """The first examples as they should have been stored, each split and dropped by the plain rules."""
    given = text_bytes = 0
    for block, texts, held_out in source.blocks(_LONGEST_EXAMPLE_BYTES, examples.reading):
        spans = _spans_of(block, texts, source.delimiter)
        for text, span, val in zip(texts, spans, held_out, strict=False):
            ids = reference.encode(text)
            learnt = _tokens_in_spans(ids, span, examples.recipe.lengths)
            ids, learnt = _with_end_of_text(ids, learnt, source)
            for at, stop in _fitting(len(ids), examples):
                bits = np.append([False], learnt[at + 1 : stop])  # nothing precedes the first
                if bits.any():
                    name = "val" if val else "train"
                    yield _ExpectedPiece(split=name, ids=ids[at:stop], learnt=bits)
            given += 1
            text_bytes += len(text)
            if given >= _COMPARED_EXAMPLES or text_bytes >= _COMPARED_EXAMPLE_BYTES:
                return


def _spans_of(block: Block, texts: list[bytes], delimiter: bytes) -> Iterator[Spans]:
    """Which bytes of each example are targets."""
    at = 0
    for text in texts:
        inside = (block.learnt[:, 0] >= at) & (block.learnt[:, 1] <= at + len(text))
        yield block.learnt[inside] - at
        at += len(text) + len(delimiter)


def _tokens_in_spans(ids: TokenArray, spans: Spans, lengths: Lengths | None) -> BitArray:
    """A token is a target if it shares a byte with a span; without lengths, every one is."""
    if lengths is None:
        return np.ones(len(ids), dtype=np.bool_)
    ends = np.cumsum(lengths[ids], dtype=np.int64)
    starts = ends - lengths[ids]
    learnt = np.zeros(len(ids), dtype=np.bool_)
    for begin, end in spans:
        learnt |= (starts < end) & (ends > begin)
    return learnt


def _with_end_of_text(
    ids: TokenArray, learnt: BitArray, source: _Source
) -> tuple[TokenArray, BitArray]:
    """Add end-of-text: after an example it is a target if the token before it is; in front, never."""
    placement = source.settings.placement
    if placement == "none":
        return ids, learnt
    mark = np.array([source.vocabulary.end_of_text], dtype=ids.dtype)
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
