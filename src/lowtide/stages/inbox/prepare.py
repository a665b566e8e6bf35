"""What is known of an inbox before its first file: how files are read, by which tokenizer, in what memory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from lowtide.memory.budget import Budget
from lowtide.settings import TokenizeSettings
from lowtide.stages.inbox.settings import (
    InboxSettings,
    naming_the_line,
    settings_for_model,
)
from lowtide.stages.run_source import RunSource, inbox_source
from lowtide.stages.settings import runs_jinja
from lowtide.stages.spend import smallest_budget
from lowtide.storage.sealed_json import JsonObject
from lowtide.tokenizer.vocabulary import Vocabulary, load_vocabulary
from lowtide.units import GIB

_SHARE = 4
"""The part of a run's budget that tokenizing gets, while the model keeps the rest."""
_MOST_BYTES = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedInbox:
    """A folder that files appear in, and all that decides what becomes of them."""

    folder: Path
    settings: InboxSettings
    tokenize: TokenizeSettings
    source: RunSource
    vocabulary_size: int
    fingerprint: str
    """Of the tokenizer's content."""
    least_bytes: int
    """The smallest budget that tokenizing a file works with."""

    def share_of(self, budget: Budget) -> str:
        """What the process that tokenizes may take, as its `--memory`."""
        return f"{self.share_bytes(budget)}B"

    def share_bytes(self, budget: Budget) -> int:
        """The same as a number."""
        return max(self.least_bytes, min(budget.total_bytes // _SHARE, _MOST_BYTES))


def prepare_inbox(folder: Path, settings: InboxSettings, *, context: int) -> PreparedInbox:
    """For a model with windows of `context` tokens. A template or tokenizer that cannot be loaded is a
    UsageError now, and not the fault of every file later."""
    folder = folder.absolute()
    named = settings_for_model(settings, folder, context=context)
    with naming_the_line(folder):
        vocabulary = load_vocabulary(named.tokenizer)
        if named.examples is not None:
            named = _with_template(named, vocabulary)
    return PreparedInbox(
        folder=folder,
        settings=settings,
        tokenize=named,
        source=inbox_source(
            _record(settings, named, vocabulary),
            tokenizer=named.tokenizer,
            fingerprint=vocabulary.fingerprint,
            chat_template=_chat_template(named, vocabulary),
        ),
        vocabulary_size=vocabulary.size,
        fingerprint=vocabulary.fingerprint,
        least_bytes=smallest_budget(
            vocabulary,
            reads_rows=True,
            examples=named.examples is not None,
            renders=runs_jinja(named),
        ),
    )


def _with_template(named: TokenizeSettings, vocabulary: Vocabulary) -> TokenizeSettings:
    from lowtide.stages.prepare_examples import read_template, record_template

    with closing(read_template(named, vocabulary).template) as template:
        return replace(record_template(named, template), template=named.template)


def _chat_template(named: TokenizeSettings, vocabulary: Vocabulary) -> str | None:
    if named.template_text is None:
        return None
    from lowtide.stages.prepare_examples import template_to_keep

    return template_to_keep(named.template_text, named.template_tokens, vocabulary)


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
