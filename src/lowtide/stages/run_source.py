"""What a run learns from: a dataset, or an inbox. A resumed run must find it unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.stages.prepare_examples import template_to_keep
from lowtide.storage.sealed_json import JsonObject

LEDGER_NAME, HELD_OUT_NAME = "inbox.jsonl", "held-out"
"""What an inbox leaves in the folder of a run."""
OWN_NAMES = (LEDGER_NAME, HELD_OUT_NAME)
_INBOX = "inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSource:
    """Its identity, and the tokenizer that made the tokens."""

    stream: JsonObject
    """`TokenDataset.identity`, or how an inbox's files are read."""
    tokenizer: str | None
    """Where it can be loaded from; None where nothing names it."""
    fingerprint: str | None
    eot_token: str | None = None
    """The special token that `--eot-token` named when the tokens were made; None: the one with a usual name."""
    chat_template: str | None = None
    """The template that made text of examples, as `chat_template.jinja` holds it; None for text."""


def dataset_source(data: TokenDataset) -> RunSource:
    """A run over one dataset."""
    record, manifest = data.tokenizer, data.manifest
    stream: JsonObject = dict(data.identity())
    if record is None:
        return RunSource(stream=stream, tokenizer=None, fingerprint=None)
    made_by = manifest.settings.get("tokenizer") if manifest is not None else None
    found = data.settings.tokenizer or str(made_by or record.name)
    eot_token = manifest.settings.get("eot_token") if manifest is not None else None
    template = None
    if manifest is not None and manifest.examples is not None:
        tokens = manifest.settings.get("template_tokens")
        template = template_to_keep(
            manifest.examples.template_text, tokens if isinstance(tokens, str) else None, record
        )
    return RunSource(
        stream=stream,
        tokenizer=found,
        fingerprint=record.fingerprint,
        eot_token=eot_token if isinstance(eot_token, str) else None,
        chat_template=template,
    )


def inbox_source(
    record: JsonObject, *, tokenizer: str, fingerprint: str, chat_template: str | None
) -> RunSource:
    """A run over the files of an inbox; `record` says how they are read."""
    return RunSource(
        stream={_INBOX: record},
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        chat_template=chat_template,
    )


def is_of_inbox(stream: JsonObject) -> bool:
    """Whether a run with this stream learns from the files of an inbox."""
    return _INBOX in stream


def stream_differences(before: JsonObject, now: JsonObject) -> list[str]:
    """What differs between what a run learnt from and what it is to learn from, in words."""
    if before == now:
        return []
    old, new = before.get(_INBOX), now.get(_INBOX)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ["the training data is another"]
    return [
        f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
