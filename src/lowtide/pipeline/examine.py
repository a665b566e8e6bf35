"""The stories of `inspect` and `verify`: what a dataset holds, and the proof that it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lowtide.dataset.find_tokens import open_dataset, refuse_what_is_no_dataset, tokenizer_record
from lowtide.errors import DataError, LowtideError, UsageError
from lowtide.pipeline.examine_examples import compare_examples, compared_reading, fenced_reference
from lowtide.pipeline.prepare import choose_delimiter
from lowtide.pipeline.settings import TokenizeSettings, settings_of_manifest
from lowtide.shards.describe import DatasetFacts, Sample, describe_dataset, sample_documents
from lowtide.shards.layout import MANIFEST_NAME, TokenArray
from lowtide.shards.manifest import DatasetManifest, read_manifest
from lowtide.shards.read import Dataset, TokenSplit
from lowtide.shards.read import open_dataset as open_at
from lowtide.shards.verify import Progress, Verification, verify_dataset
from lowtide.source.find_inputs import InputFile, find_inputs
from lowtide.source.hold_out import held_out_documents
from lowtide.source.stream import Cursor, read_blocks
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.paths import as_path
from lowtide.tokenizer.encode import first_difference
from lowtide.tokenizer.reference import Ids, make_reference
from lowtide.tokenizer.reference_apart import ReferenceApart, ReferenceMemoryError
from lowtide.tokenizer.vocabulary import Vocabulary, load_vocabulary
from lowtide.units import MIB, format_bytes

_COMPARED_TEXT_BYTES = 32 * MIB
_COMPARED_DOCUMENTS = 64
_LONGEST_ENCODED_BYTES = MIB
"""The reference takes hundreds of bytes for each byte of a document."""
_LONGEST_COMPARED_BYTES = 32 * MIB
"""A page of parquet, of which a writer makes one for some 20,000 rows, must be read as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Figures and a few samples; no samples where the tokenizer is not known."""

    facts: DatasetFacts
    samples: list[Sample]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A verification, and how many documents were decoded and found equal to their input."""

    verification: Verification
    compared_documents: int
    other_ids: int = 0
    """Documents that are stored whole, with other ids than the reference's."""
    comparison: str
    """Why no more could be compared, or empty."""


def inspect(path: str | Path, *, tokenizer: str | None = None) -> Inspection:
    """What the dataset at `path` holds. A peer's files say more with the tokenizer named."""
    dataset = open_dataset(path, tokenizer=tokenizer)
    facts = describe_dataset(dataset)
    vocabulary, note = _find_vocabulary(dataset, tokenizer)
    if vocabulary is None:
        return Inspection(facts=facts, samples=[], note=note)
    return Inspection(facts=facts, samples=sample_documents(dataset, _decoder(vocabulary)))


def verify(
    path: str | Path, *, tokenizer: str | None = None, progress: Progress | None = None
) -> Proof:
    """Read every byte and compare; where the inputs are still there, compare a sample with them."""
    folder = as_path(path)
    refuse_what_is_no_dataset(folder)
    found = verify_dataset(folder, tokenizer=tokenizer_record(tokenizer), progress=progress)
    if not found.sound or not (folder / MANIFEST_NAME).is_file():
        return Proof(verification=found, compared_documents=0, comparison="")
    compared, different, why = _compare_with_input(folder, read_manifest(folder), tokenizer)
    problems = found.problems + tuple(different)
    return Proof(
        verification=replace(found, problems=problems),
        compared_documents=compared,
        other_ids=len(different),
        comparison=why,
    )


def _find_vocabulary(dataset: Dataset, tokenizer: str | None) -> tuple[Vocabulary | None, str]:
    """The vocabulary that made the tokens, or why it cannot be had."""
    stored = dataset.manifest.settings.get("tokenizer") if dataset.manifest else None
    source = tokenizer or (str(stored) if stored else None)
    if source is None:
        return None, "pass `--tokenizer` to see documents as text"
    try:
        vocabulary = load_vocabulary(source)
    except UsageError as error:
        return None, f"the tokenizer is not at hand: {error.problem}"
    known = dataset.manifest.tokenizer.fingerprint if dataset.manifest else None
    if known not in (None, vocabulary.fingerprint):
        return None, f"the tokenizer {source} is not the one that made these tokens"
    if dataset.manifest is not None:  # `--eot-token` may have named another
        named = dataset.manifest.tokenizer.end_of_text
        vocabulary = replace(vocabulary, end_of_text=named)
    return vocabulary, ""


def _decoder(vocabulary: Vocabulary) -> Callable[[TokenArray], str]:
    reference = make_reference(vocabulary, "token")
    return lambda ids: reference.decode(ids.tolist()).decode(errors="replace")


def _compare_with_input(
    folder: Path, manifest: DatasetManifest, tokenizer: str | None
) -> tuple[int, list[str], str]:
    """How many documents were compared, what differed, and why no more were."""
    dataset = open_at(folder)
    vocabulary, why = _find_vocabulary(dataset, tokenizer)
    if vocabulary is None:
        return 0, [], why
    settings = settings_of_manifest(manifest)
    if settings.split_rule == "tail":
        return 0, [], "documents are compared with their input for the hash split only"
    try:
        inputs = _unchanged_inputs(manifest, settings)
    except LowtideError as error:
        return 0, [], error.problem
    if settings.examples is not None:
        return compare_examples(dataset, inputs, settings, vocabulary)
    compared, different, why = 0, [], ""
    try:
        with fenced_reference(vocabulary, settings.special_in_text) as reference:
            for name, number, text in _documents_of_input(inputs, settings, vocabulary):
                stored = _tokens_of(dataset.splits[name], number, manifest)
                expected = _encode_again(reference, text)
                if isinstance(expected, str):
                    why = expected
                    continue
                if not np.array_equal(stored, expected):
                    at = first_difference(stored, expected)
                    different.append(
                        f"document {number + 1} of {name}: its ids are not those that the reference encoder "
                        f"gives for the input, from token {at} on"
                    )
                compared += 1
    except DataError as error:
        why = f"no further than this: {error.problem}"
    return compared, different, why or ("" if compared else "no document lies in one piece")


def _encode_again(reference: ReferenceApart, text: bytes) -> Ids | str:
    """The ids that a document must have, or why they are not made."""
    if len(text) > _LONGEST_ENCODED_BYTES:
        return f"documents beyond {format_bytes(_LONGEST_ENCODED_BYTES)} are not encoded again"
    try:
        return reference.encode(text)
    except ReferenceMemoryError as error:
        return f"a document is not compared: {error.problem}"


def _unchanged_inputs(manifest: DatasetManifest, settings: TokenizeSettings) -> list[InputFile]:
    names = [item.name for item in manifest.inputs]
    if "-" in names:
        raise UsageError("the input was standard input", remedy="keep the input to compare with it")
    for item in manifest.inputs:
        if not Path(item.name).is_file() or fingerprint_file(Path(item.name)) != item.fingerprint:
            raise UsageError(f"the input {item.name} is gone or changed", remedy="put it back")
    return find_inputs(names, input_format=settings.input_format)


def _documents_of_input(
    inputs: list[InputFile], settings: TokenizeSettings, vocabulary: Vocabulary
) -> Iterator[tuple[str, int, bytes]]:
    """Some documents from the front of the input: (split, number in the split, text)."""
    delimiter = choose_delimiter(inputs, settings, vocabulary)
    read = compared_reading(settings, vocabulary, delimiter, longest_bytes=_LONGEST_COMPARED_BYTES)
    numbers = {"train": 0, "val": 0}
    text_bytes = given = 0
    inside = False
    for block in read_blocks(inputs, read, start=Cursor(file=0, position=0)):
        pieces = block.text.split(delimiter)[:-1]
        sides = held_out_documents(
            block.text, delimiter=delimiter, fraction=settings.held_out_share
        )
        for at, (piece, held_out) in enumerate(zip(pieces, sides, strict=False)):
            name = "val" if held_out else "train"
            whole = at > 0 or not inside
            if whole and at * 8 // len(pieces) != (at - 1) * 8 // len(pieces):
                yield name, numbers[name], piece
                given += 1
            numbers[name] += 1
        inside = block.after.within > 0
        text_bytes += block.text_bytes
        if inside or text_bytes > _COMPARED_TEXT_BYTES or given > _COMPARED_DOCUMENTS:
            return  # of a document cut across blocks, the side is no longer at hand here


def _tokens_of(split: TokenSplit, number: int, manifest: DatasetManifest) -> TokenArray:
    """A document's tokens without its end-of-text."""
    start, end = split.document(number)
    if manifest.eot == "end":
        end -= 1
    if manifest.eot == "start":
        start += 1
    return split.read(start, end)
