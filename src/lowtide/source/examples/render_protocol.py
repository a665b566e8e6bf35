"""The messages between the process that reads rows and the one that renders templates.

    to the child      a Setup, then batches: what the loss mask covers, and the messages of each example
    from the child    for each of these a list of answers

Each is a frame (`child.py`). Answers are msgpack of fixed types: nothing that comes from beside a
template may become an object of its choice. Batches are JSON, for rows hold numbers of any size; what a row of
Arrow holds besides (dates, decimals, bytes) is tagged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from lowtide.settings import Learn, SpecialInText
from lowtide.units import KIB, MIB

Messages: TypeAlias = list[dict[str, object]]
Batch: TypeAlias = tuple[Learn, list[Messages]]

ANSWERED_BYTES = 256 * KIB
"""The longest answer to a batch, whose rest is asked for again: all answers are held at once."""
ANSWERED_SECONDS = 0.25
"""The longest time before an answer, for the same reason: a stop is noticed only between batches."""
TOKEN_NAMES = frozenset(
    {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
)
"""The names that transformers gives to special tokens, in every tokenizer."""
_TAG = "\0kind"
_MICROSECOND = timedelta(microseconds=1)
_READ: dict[str, Callable[[str], object]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda text: int(text) * _MICROSECOND,
    "Decimal": Decimal,
    "bytes": base64.b64decode,
    "UUID": UUID,
}


class RenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the rendering of one example."""

    memory_bytes: int = 160 * MIB
    """Memory that the child may add to what it starts with (about 12 MiB), the compiled template included."""
    example_bytes: int = 4 * MIB
    """The longest text of an example."""
    cpu_seconds: float = 5.0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to the child."""

    name: str
    source: str
    special_tokens: dict[str, int]
    special_in_text: SpecialInText
    variables: dict[str, str]
    """The special tokens that the template knows by name, such as `bos_token`."""
    add_generation_prompt: bool
    """Whether the text ends with the beginning of an answer."""
    limits: RenderLimits


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """The answer to a Setup."""

    used: list[str]
    """The names of special tokens that the template asks for."""


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """The text of an example, in parts of which some are in the loss mask."""

    parts: list[bytes]
    learnt: list[int]


class BadExample(msgspec.Struct, frozen=True, tag="bad"):
    """The row is at fault."""

    reason: str


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The template is at fault."""

    what: str
    remedy: str


class TooLarge(msgspec.Struct, frozen=True, tag="large"):
    """The text of the example is longer than allowed."""

    size_bytes: int


class NoMemory(msgspec.Struct, frozen=True, tag="memory"):
    """An allocation was refused."""


Answer: TypeAlias = Compiled | Rendered | BadExample | Fault | TooLarge | NoMemory
encode_setup = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
encode_answers = msgspec.msgpack.Encoder().encode
decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode


def encode_batch(batch: Batch) -> bytes:
    """Rows as JSON. `datetime(2026, 1, 2)` goes as `{"\\0kind": "datetime", "text": "2026-01-02T00:00:00"}`."""
    learn, examples = batch
    return json.dumps((learn, _tag_collections(examples)), default=_tag).encode()


def decode_batch(data: bytes) -> Batch:
    """The rows that `encode_batch` encoded."""
    learn, examples = json.loads(data, object_hook=_untag)
    return learn, examples


def _tag_collections(value: object) -> object:
    """Tuples, of which JSON would make lists, and dicts that look like a tag of ours.

    The entries of a map are tuples, and a template may print them.
    """
    if isinstance(value, dict):
        inner = {key: _tag_collections(one) for key, one in value.items()}
        return {_TAG: "dict", "items": list(inner.items())} if _TAG in inner else inner
    if isinstance(value, list):
        return [_tag_collections(one) for one in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [_tag_collections(one) for one in value]}
    return value


def _tag(value: object) -> dict[str, str]:
    """A value that JSON has no form for; of a kind that is not known here, its text."""
    kind = type(value).__name__
    if kind not in _READ:
        return {_TAG: "", "text": str(value)}
    if isinstance(value, datetime | date | time):
        text = value.isoformat()
    elif isinstance(value, timedelta):
        text = str(value // _MICROSECOND)
    elif isinstance(value, bytes):
        text = base64.b64encode(value).decode()
    else:
        text = str(value)
    return {_TAG: kind, "text": text}


def _untag(found: dict[str, Any]) -> object:
    if _TAG not in found:
        return found
    kind: str = found[_TAG]
    if "items" in found:
        return (tuple if kind == "tuple" else dict)(found["items"])
    return _READ.get(kind, str)(found["text"])
