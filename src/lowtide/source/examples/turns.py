"""A row as turns of a conversation, or why it is not one.

    chat           messages of role and content
    instruction    user: the instruction, a blank line and the input; assistant: the output
    completion     user: the prompt; assistant: the completion

Roles are system, user, assistant, tool; ShareGPT's `human` and `gpt` are read as user and assistant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from lowtide.source.examples.settings import COLUMNS, ExampleReading

ROLE_NAMES = {"human": "user", "gpt": "assistant"}
"""Roles that are read as others."""

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    bytes: "bytes",
    type(None): "null",
}


class BadExampleError(Exception):
    """Why a row is not an example; the policy for bad text decides what follows."""


class NoSuchKeyError(BadExampleError):
    """A row lacks the column."""

    def __init__(self, name: str, keys: list[str]) -> None:
        super().__init__(f"has no key {name!r}")
        self.name = name
        self.keys = keys


class Turn(msgspec.Struct, gc=False):
    """Who speaks, and what. `message` holds all keys of the row's message, if the template wants them."""

    role: str
    content: str
    message: dict[str, object] | None = None


def line_decoder(reading: ExampleReading) -> Callable[[bytes], list[Turn]]:
    """A fast decoder of a good JSON line into turns. Any line it fails on is left to `turns_of`."""
    if reading.kind == "chat":
        return _chat_decoder(reading)
    names = COLUMNS[reading.kind]
    fields = [(name, str) for name in names if name != "input"]
    row = msgspec.defstruct(
        "Row",
        [*fields, ("input", str | None, None)] if "input" in names else fields,
        rename={name: reading.column(name) for name in names},
        gc=False,
    )
    decode = msgspec.json.Decoder(row).decode

    def turns(line: bytes) -> list[Turn]:
        found = decode(line)
        if reading.kind == "completion":
            return _pair(found.prompt, found.completion)  # type: ignore[attr-defined]
        return _pair(_ask(found.instruction, found.input), found.output)  # type: ignore[attr-defined]

    return turns


def turns_of(row: Mapping[str, object], reading: ExampleReading) -> list[Turn]:
    """The turns of a row, examined step by step; `BadExampleError` says what is wrong with it."""
    if reading.kind == "chat":
        name = reading.column("messages")
        return _turns_of_messages(_column(row, name), reading)
    if reading.kind == "completion":
        return _pair(_text(row, reading, "prompt"), _text(row, reading, "completion"))
    more = row.get(reading.column("input"))
    if more is not None:
        more = _text(row, reading, "input")
    return _pair(_ask(_text(row, reading, "instruction"), more), _text(row, reading, "output"))


def _turns_of_messages(messages: object, reading: ExampleReading) -> list[Turn]:
    """The turns of a value of the messages column."""
    name = reading.column("messages")
    if isinstance(messages, dict):
        messages = _rows_of_columns(messages)
    if not isinstance(messages, list):
        raise BadExampleError(f"the value of {name!r} is {name_kind(messages)}, not an array")
    if not messages:
        raise BadExampleError(f"{name!r} is empty")
    role_key, content_key = reading.column("role"), reading.column("content")
    turns = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise BadExampleError(f"message {number} is {name_kind(message)}, not an object")
        role = _message_text(message, role_key, number)
        content = _message_text(message, content_key, number)
        role = ROLE_NAMES.get(role, role)
        kept = {**message, "role": role, "content": content} if reading.whole_messages else None
        turns.append(Turn(role, content, kept))
    return turns


def name_kind(value: object) -> str:
    """The kind of a value, in the words of JSON."""
    return _JSON_NAMES.get(type(value), "not text")


def gather(value: object, found: list[object]) -> None:
    """Append to `found` every key inside a value, and every value that holds no others."""
    if isinstance(value, dict):
        found += value
        for item in value.values():
            if type(item) is str:  # as most are, and a call for each would take twice the time
                found.append(item)
            else:
                gather(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            gather(item, found)
    else:
        found.append(value)


def rebuilt(value: object, change: Callable[[object], object]) -> object:
    """The value with all that `gather` finds in it changed."""
    if isinstance(value, dict):
        return {change(key): rebuilt(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(rebuilt(item, change) for item in value)
    return [rebuilt(item, change) for item in value] if isinstance(value, list) else change(value)


def _chat_decoder(reading: ExampleReading) -> Callable[[bytes], list[Turn]]:
    whole = reading.whole_messages
    name = reading.column("messages")
    message = msgspec.defstruct(
        "Message",
        [("role", str), ("content", str)],
        rename={each: reading.column(each) for each in ("role", "content")},
        gc=False,
    )
    kind = object if whole else list[message]  # type: ignore[valid-type]
    row = msgspec.defstruct("Row", [("messages", kind)], rename={"messages": name}, gc=False)
    decode = msgspec.json.Decoder(row).decode

    def turns(line: bytes) -> list[Turn]:
        messages: list[Turn] = decode(line).messages  # type: ignore[attr-defined]
        if whole:
            return _turns_of_messages(messages, reading)
        if not messages:
            raise BadExampleError(f"{name!r} is empty")
        return messages

    return turns


def _ask(instruction: str, more: str | None) -> str:
    return f"{instruction}\n\n{more}" if more else instruction


def _pair(asked: str, answered: str) -> list[Turn]:
    return [Turn("user", asked), Turn("assistant", answered)]


def _column(row: Mapping[str, object], name: str) -> object:
    if name not in row:
        raise NoSuchKeyError(name, list(row))
    return row[name]


def _text(row: Mapping[str, object], reading: ExampleReading, column: str) -> str:
    name = reading.column(column)
    value = _column(row, name)
    if not isinstance(value, str):
        raise BadExampleError(f"the value of {name!r} is {name_kind(value)}, not a string")
    return value


def _message_text(message: Mapping[str, object], key: str, number: int) -> str:
    if key not in message:
        raise BadExampleError(f"message {number} has no {key!r}")
    value = message[key]
    if not isinstance(value, str):
        raise BadExampleError(
            f"the {key!r} of message {number} is {name_kind(value)}, not a string"
        )
    return value


def _rows_of_columns(columns: Mapping[str, object]) -> object:
    """A struct of lists (as `datasets` stores a Sequence of objects) as a list of structs."""
    lists = {name: values for name, values in columns.items() if isinstance(values, list)}
    lengths = {len(values) for values in lists.values()}
    if not lists or len(lengths) > 1:
        return columns
    return [{name: values[i] for name, values in lists.items()} for i in range(lengths.pop())]
