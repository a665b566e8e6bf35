"""Everything that is decided before the first block is read: inputs, tokenizer, budget, layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.memory.budget import Budget
from lowtide.memory.meter import child_pids
from lowtide.settings import TokenizeSettings
from lowtide.shards.layout import ShardLayout
from lowtide.source.examples.render_protocol import RenderLimits
from lowtide.source.find_inputs import InputFile, InputKind, survey_inputs
from lowtide.source.safe_cuts import CutRule
from lowtide.source.separators import default_delimiter, refuse_misspelt
from lowtide.source.stream import ReadSettings, find_tail
from lowtide.stages.encode_blocks import Recipe
from lowtide.stages.prepare_examples import describe_spelled_out, prepare_examples
from lowtide.stages.read_inputs import InputPlan
from lowtide.stages.settings import (
    check_settings,
    choose_held_out,
    is_one_document,
    resolve_examples,
    runs_jinja,
)
from lowtide.stages.spend import Allowances, find_budget, foreign_bytes, spend
from lowtide.tokenizer.encode import EncodeSettings
from lowtide.tokenizer.hugging_face import overlap
from lowtide.tokenizer.vocabulary import (
    Vocabulary,
    load_vocabulary,
    name_end_of_text,
    offer_end_of_text,
)
from lowtide.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(InputPlan):
    """The plan of `tokenize`."""

    settings: TokenizeSettings
    vocabulary: Vocabulary
    allowances: Allowances
    layout: ShardLayout
    recipe: Recipe

    def notes(self) -> Iterator[str]:
        """What was chosen, and what a person may not expect of it."""
        workers = f"{self.allowances.workers} worker{'s' if self.allowances.workers > 1 else ''}"
        blocks = f"blocks of {format_bytes(self.allowances.block_bytes)}"
        yield f"budget {self.budget.in_words}; {workers}, {blocks}"
        yield from InputPlan.notes(self)
        if is_one_document(self.settings, self.inputs):
            yield f"one document: {describe_held_out(self)}"
        if spelled := describe_spelled_out(self.settings, self.vocabulary):
            yield spelled

    def close(self) -> None:
        """End the process of a Jinja template."""
        if self.read.examples is not None:
            self.read.examples.template.close()


def prepare(
    inputs: Sequence[str | InputFile],
    settings: TokenizeSettings,
    *,
    out: Path | None = None,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
) -> Prepared:
    """Find, load and decide; refuse what cannot work. Reads footers, sizes and first bytes, no text.

    What lies in the folder `out` is not an input, even if a glob matches it. The caller closes what it gets.
    """
    foreign_pids = frozenset(child_pids(os.getpid()))
    check_settings(settings)
    settings = resolve_examples(settings)
    budget = find_budget(memory)
    vocabulary = load_vocabulary(settings.tokenizer)
    if settings.eot_token is not None:
        vocabulary = name_end_of_text(vocabulary, settings.eot_token)
    end_of_text = _end_of_text(vocabulary, settings)
    layout = ShardLayout(
        format=settings.format,
        vocabulary_size=vocabulary.size,
        shard_tokens=settings.shard_tokens,
    )
    surveyed = survey_inputs(inputs, leave_out=out, input_format=settings.input_format)
    found = surveyed.files
    settings = choose_held_out(settings, found)
    allowances = _choose_allowances(budget, vocabulary, found, settings, workers)
    delimiter = choose_delimiter(found, settings, vocabulary)
    limits = RenderLimits(
        memory_bytes=allowances.render_bytes, example_bytes=allowances.row_limit_bytes
    )
    share, by_hash = settings.held_out_share, settings.split_rule == "hash"
    tail = find_tail(found, share) if share > 0 and not by_hash else None
    examples = prepare_examples(settings, vocabulary, found, delimiter, limits)
    # a Jinja template has a process from here on: nothing below may fail
    if examples:
        encode = examples.encode
    else:
        encode = EncodeSettings(
            vocabulary=vocabulary,
            delimiter=delimiter,
            special_in_text=settings.special_in_text,
        )
    return Prepared(
        settings=examples.settings if examples else settings,
        inputs=found,
        skipped=surveyed.skipped,
        vocabulary=vocabulary,
        budget=budget,
        allowances=allowances,
        layout=layout,
        foreign_bytes=foreign_bytes(),
        foreign_pids=foreign_pids,
        recipe=Recipe(
            encode=encode,
            placement=settings.placement,
            end_of_text=end_of_text,
            width=layout.dtype,
            val_fraction=share if by_hash else 0.0,
            examples=examples.recipe if examples else None,
        ),
        read=ReadSettings(
            column=settings.text_column,
            separator=settings.separator,
            bad_text=settings.bad_text,
            delimiter=encode.delimiter,
            block_bytes=allowances.block_bytes,
            document_limit_bytes=allowances.row_limit_bytes,
            cut_rule=choose_cut_rule(encode.vocabulary, settings),
            tail=tail,
            examples=examples.reading if examples else None,
        ),
    )


def describe_held_out(prepared: Prepared) -> str:
    """What is held out for validation, and how to change that."""
    settings = prepared.settings
    share = f"{100 * settings.held_out_share:.3g} %"
    one = is_one_document(settings, prepared.inputs)
    if settings.held_out_share and settings.split_rule == "tail":
        return f"the last {share} is held out for validation; `--val` takes another share"
    if settings.held_out_share and one:
        return "a hash of its text decides whether all of it is held out for validation"
    if settings.held_out_share:
        return f"{share} of the documents are held out for validation, by a hash of their text"
    if not one:
        return "nothing is held out for validation, as asked for"
    if prepared.stream is not None:
        return "nothing is held out for validation; of a file its last part can be"
    split = "--split tail " if prepared.inputs[0].compression else ""
    return f"nothing is held out for validation; `{split}--val 0.1` holds out its last tenth"


def on_reference(prepared: Prepared, why: str) -> Prepared:
    """The plan with the reference instead of the fast encoder. Safe cuts stay the same."""
    vocabulary = replace(prepared.vocabulary, why_reference=why)
    allowances = _choose_allowances(
        prepared.budget,
        vocabulary,
        prepared.inputs,
        prepared.settings,
        prepared.allowances.workers,
    )
    encode = replace(prepared.recipe.encode, vocabulary=vocabulary)
    return replace(prepared, allowances=allowances, recipe=replace(prepared.recipe, encode=encode))


def _choose_allowances(
    budget: Budget,
    vocabulary: Vocabulary,
    inputs: list[InputFile],
    settings: TokenizeSettings,
    workers: int | None,
) -> Allowances:
    return spend(
        budget,
        vocabulary,
        workers=choose_workers(workers),
        reads_rows=any(item.kind is not InputKind.TEXT for item in inputs),
        examples=settings.examples is not None,
        renders=runs_jinja(settings),
    )


def choose_workers(wanted: int | None) -> int:
    """The number of threads: as wanted, but at most four for each core; by default one for each core."""
    if wanted is not None and (not isinstance(wanted, int) or wanted < 1):
        raise UsageError(
            f"--workers {wanted!r} is not a number of threads", remedy="pass 1 or more"
        )
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores if wanted is None else min(wanted, cores * 4)


def choose_delimiter(
    inputs: Sequence[InputFile], settings: TokenizeSettings, vocabulary: Vocabulary
) -> bytes:
    """What stands between documents in a block: the separator of the text, or a private mark.

    The mark is used for rows, and where a token that is searched for in the text could share bytes with the
    separator.
    """
    sought = set(vocabulary.added_tokens)
    if settings.special_in_text == "token":
        sought |= set(vocabulary.special_tokens)
    return delimiter_beside(sought, inputs, settings.separator)


def delimiter_beside(sought: Set[str], inputs: Sequence[InputFile], separator: str) -> bytes:
    """A delimiter that shares no bytes with any token that is searched for in the text."""
    refuse_misspelt(separator)
    only_text = all(item.kind is InputKind.TEXT for item in inputs)
    delimiter = default_delimiter(separator if only_text else "file")
    text = delimiter.decode()
    shared = any(overlap(text, token) or overlap(token, text) for token in sought if token != text)
    return default_delimiter("file") if shared else delimiter


def choose_cut_rule(vocabulary: Vocabulary, settings: TokenizeSettings) -> CutRule:
    """Where text may be cut without changing a token, for this tokenizer."""
    whole = vocabulary.added_tokens
    if settings.special_in_text != "text":
        whole += tuple(vocabulary.special_tokens)
    return CutRule(
        pattern=vocabulary.pattern or "none", unsplittable=tuple(token.encode() for token in whole)
    )


def _end_of_text(vocabulary: Vocabulary, settings: TokenizeSettings) -> int:
    if settings.placement == "none":
        return 0
    if vocabulary.end_of_text is None:
        raise UsageError(
            f"the tokenizer {vocabulary.name} has no end-of-text token"
            + (" under a usual name" if vocabulary.special_tokens else ""),
            remedy=(
                f"name it with {offer_end_of_text(vocabulary)}, or pass `--eot none` to run documents together"
                if vocabulary.special_tokens
                else "pass `--eot none` to run documents together, or use a tokenizer with a special "
                "token such as <|endoftext|>"
            ),
        )
    return vocabulary.end_of_text
