"""What a run is trained on: a dataset, or an inbox. A resumed run must find it unchanged."""

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
    tokenizer: str | None = None
    """Where it can be loaded from; None where nothing names it."""
    fingerprint: str | None = None
    eot_token: str | None = None
    """The special token that `--eot-token` named when the tokens were made; None: the one with a usual name."""
    chat_template: str | None = None
    """The template that made text of examples, as `chat_template.jinja` holds it; None for text."""


def dataset_source(data: TokenDataset) -> RunSource:
    """A run over one dataset."""
    record, manifest = data.tokenizer, data.manifest
    stream: JsonObject = dict(data.identity())
    if record is None:
        return RunSource(stream=stream)
    settings = {} if manifest is None else manifest.settings
    eot_token, tokens = settings.get("eot_token"), settings.get("template_tokens")
    template = None
    if manifest is not None and manifest.examples is not None:
        template = template_to_keep(
            manifest.examples.template_text, tokens if isinstance(tokens, str) else None, record
        )
    return RunSource(
        stream=stream,
        tokenizer=data.settings.tokenizer or str(settings.get("tokenizer") or record.name),
        fingerprint=record.fingerprint,
        eot_token=eot_token if isinstance(eot_token, str) else None,
        chat_template=template,
    )


def inbox_stream(record: JsonObject) -> JsonObject:
    """The stream of a run over an inbox; `record` says how its files are read."""
    return {_INBOX: record}


def is_of_inbox(stream: JsonObject) -> bool:
    """Whether a run with this stream is trained on the files of an inbox."""
    return _INBOX in stream


def stream_differences(before: JsonObject, now: JsonObject) -> list[str]:
    """What differs between what a run was trained on and what it is to be trained on, in words."""
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
