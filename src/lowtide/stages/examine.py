"""`inspect` and `verify`: what a dataset holds, and the proof that it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.dataset.find_tokens import open_dataset, refuse_what_is_no_dataset, tokenizer_record
from lowtide.errors import UsageError
from lowtide.shards.describe import DatasetFacts, Sample, describe_dataset, sample_documents
from lowtide.shards.layout import MANIFEST_NAME, TokenArray
from lowtide.shards.read import Dataset
from lowtide.shards.read import open_dataset as open_at
from lowtide.shards.verify import Progress, Verification, verify_dataset
from lowtide.stages.compare_with_input import InputComparison, compare_with_input
from lowtide.storage.paths import as_path
from lowtide.tokenizer.reference import make_reference
from lowtide.tokenizer.vocabulary import Vocabulary, load_vocabulary
from lowtide.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Figures and a few samples; no samples where the tokenizer is not known."""

    facts: DatasetFacts
    samples: list[Sample]
    note: str = ""

    def __repr__(self) -> str:
        facts = self.facts
        return f"<Inspection {facts.format}: {format_count(facts.tokens)} tokens, {len(self.samples)} samples>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A verification, and how many documents were encoded again and compared with their input."""

    verification: Verification
    compared_documents: int
    other_ids: int = 0
    """Documents that are stored whole, with other ids than the reference's."""
    comparison: str
    """Why no more could be compared, or empty."""

    def __repr__(self) -> str:
        found = self.verification
        result = "sound" if found.sound else f"damaged, {found.problems[0]}"
        return (
            f"<Proof {result}: {format_count(found.tokens)} tokens in {found.files} files, "
            f"{self.compared_documents} documents compared>"
        )


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
    verified = verify_dataset(folder, tokenizer=tokenizer_record(tokenizer), progress=progress)
    found = InputComparison()
    if verified.sound and (folder / MANIFEST_NAME).is_file():
        found = _compare(open_at(folder), tokenizer)
    return Proof(
        verification=replace(verified, problems=verified.problems + found.differences),
        compared_documents=found.compared,
        other_ids=len(found.differences),
        comparison=found.why_no_more,
    )


def _compare(dataset: Dataset, tokenizer: str | None) -> InputComparison:
    if dataset.manifest is not None and dataset.manifest.text_bytes is None:
        why = "these tokens came from token files, so there is no text to compare with"
        return InputComparison(why_no_more=why)
    vocabulary, why = _find_vocabulary(dataset, tokenizer)
    if vocabulary is None:
        return InputComparison(why_no_more=why)
    return compare_with_input(dataset, vocabulary)


def _find_vocabulary(dataset: Dataset, tokenizer: str | None) -> tuple[Vocabulary | None, str]:
    """The vocabulary that made the tokens, or why it is not available."""
    stored = dataset.manifest.settings.get("tokenizer") if dataset.manifest else None
    source = tokenizer or (str(stored) if stored else None)
    if source is None:
        return None, "pass `--tokenizer` to see documents as text"
    try:
        vocabulary = load_vocabulary(source)
    except UsageError as error:
        return None, f"the tokenizer is not available: {error.problem}"
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
