"""What a tokenized file holds, as numbers in the ledger and as a sentence."""

from __future__ import annotations

from dataclasses import replace

from lowtide.pipeline.inbox.ledger import Entry
from lowtide.shards.manifest import DatasetManifest
from lowtide.units import format_count


def with_counts(entry: Entry, manifest: DatasetManifest) -> Entry:
    """The entry with what became of the file's rows."""
    train, examples = manifest.splits["train"], manifest.examples
    return replace(
        entry,
        examples=examples.examples if examples else manifest.documents,
        learnt_tokens=train.learnt.tokens if train.learnt else train.tokens,
        bad_rows=manifest.bad_rows,
        too_long=examples.too_long_count if examples else 0,
        dropped=examples.dropped_count if examples else 0,
    )


def in_words(entry: Entry) -> str:
    """One line about the file; what was lost of it only where something was."""
    lost = [
        f"{what}: {count:,}"
        for count, what in (
            (entry.bad_rows, "bad rows"),
            (entry.too_long, "examples that were too long"),
            (entry.dropped, "pieces with nothing to learn"),
        )
        if count
    ]
    found = (
        f"{entry.name}: {entry.examples:,} examples, {format_count(entry.learnt_tokens)} tokens to learn, "
        f"{entry.windows:,} windows, {entry.steps:,} steps"
    )
    return f"{found}; {', '.join(lost)}" if lost else found
