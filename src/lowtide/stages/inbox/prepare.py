"""What is known of an inbox before its first file: how files are read, by which tokenizer, in what memory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from lowtide.memory.budget import Budget
from lowtide.settings import TokenizeSettings
from lowtide.stages.inbox.settings import InboxSettings, naming_the_line, settings_for_model
from lowtide.stages.run_source import RunSource, inbox_stream
from lowtide.stages.settings import runs_jinja
from lowtide.stages.spend import smallest_budget
from lowtide.storage.sealed_json import JsonObject
from lowtide.tokenizer.vocabulary import Vocabulary, load_vocabulary
from lowtide.units import GIB

_SHARE = 4
"""The part of a run's budget that tokenizing gets, while the model keeps the rest."""
_MOST_BYTES = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """A folder that files appear in, and all that decides what becomes of them."""

    folder: Path
    marker: str | None
    tokenize: TokenizeSettings
    source: RunSource
    fingerprint: str
    """Of the tokenizer's content."""
    vocabulary_size: int
    least_bytes: int
    """The smallest budget that tokenizing a file works with."""

    def share_of(self, budget: Budget) -> str:
        """What the process that tokenizes may take, as its `--memory`."""
        return f"{max(self.least_bytes, min(budget.total_bytes // _SHARE, _MOST_BYTES))}B"


def prepare_inbox(folder: Path, settings: InboxSettings, *, context: int) -> Inbox:
    """For a model with windows of `context` tokens. A template or tokenizer that cannot be loaded is a
    UsageError now, and not the fault of every file later."""
    folder = folder.absolute()
    named = settings_for_model(settings, folder, context=context)
    chat_template = None
    with naming_the_line(folder):
        vocabulary = load_vocabulary(named.tokenizer)
        if named.examples is not None:
            named, chat_template = _with_template(named, vocabulary)
    return Inbox(
        folder=folder,
        marker=settings.marker,
        tokenize=named,
        source=RunSource(
            stream=inbox_stream(_record(settings, named, vocabulary)),
            tokenizer=named.tokenizer,
            fingerprint=vocabulary.fingerprint,
            chat_template=chat_template,
        ),
        fingerprint=vocabulary.fingerprint,
        vocabulary_size=vocabulary.size,
        least_bytes=smallest_budget(
            vocabulary,
            reads_rows=True,
            examples=named.examples is not None,
            renders=runs_jinja(named),
        ),
    )


def _with_template(
    named: TokenizeSettings, vocabulary: Vocabulary
) -> tuple[TokenizeSettings, str | None]:
    """The settings with the template's text in them, and the template that a run keeps."""
    from lowtide.stages.prepare_examples import read_template, record_template, template_to_keep

    with closing(read_template(named, vocabulary).template) as template:
        named = replace(record_template(named, template), template=named.template)
    if named.template_text is None:
        return named, None
    return named, template_to_keep(named.template_text, named.template_tokens, vocabulary)


def _record(settings: InboxSettings, named: TokenizeSettings, vocabulary: Vocabulary) -> JsonObject:
    """What a run may not change on its way. Where files lie, and how they are marked, it may."""
    record = settings.as_record()
    record |= {"learn": named.learn, "too_long": named.too_long, "context": named.context}
    record["tokenizer_content"] = vocabulary.fingerprint
    if named.template_text is not None:
        record["template_text"] = xxhash.xxh3_128_hexdigest(named.template_text.encode())
    if named.template_tokens is not None:
        record["template_tokens"] = named.template_tokens
    return record
