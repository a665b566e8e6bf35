"""How examples are read: their kind, their columns, the template, and which part is in the loss mask."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowtide.settings import ExampleKind, Learn

if TYPE_CHECKING:
    from lowtide.source.examples.templates import Template


BUILT_IN = ("chatml", "plain")
"""Templates that are known by name; any other is a Jinja file."""
COLUMNS: dict[ExampleKind, tuple[str, ...]] = {
    "chat": ("messages", "role", "content"),
    "instruction": ("instruction", "input", "output"),
    "completion": ("prompt", "completion"),
}
"""The default names of each kind's columns; role and content are keys of a message."""


def suggest_examples(columns: Mapping[str, Collection[str]]) -> str | None:
    """The flags that read rows with these columns as examples; None for rows that look like text.

    `columns` has the keys of its messages with each column, or nothing. ShareGPT's rows give
    `--examples chat --column messages=conversations,role=from,content=value`.
    """
    for name in ("messages", "conversations"):
        keys = columns.get(name, ())
        renamed = [] if name == "messages" else [f"messages={name}"]
        if "from" in keys and "value" in keys:
            renamed += ["role=from", "content=value"]
        elif "role" not in keys or "content" not in keys:
            continue
        return " ".join(["--examples chat", *(["--column", ",".join(renamed)] if renamed else [])])
    if "instruction" in columns and "output" in columns:
        return "--examples instruction"
    if "prompt" in columns and "completion" in columns:
        return "--examples completion"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleReading:
    """How rows become examples. These settings change the output and not the memory."""

    kind: ExampleKind
    template: Template
    learn: Learn = "assistant"
    columns: Mapping[str, str] = field(default_factory=dict)
    """The input's names for columns where they differ from COLUMNS."""

    @property
    def whole_messages(self) -> bool:
        """Whether the template wants all keys of a row's messages, or only role and content."""
        return self.template.whole_messages

    def column(self, name: str) -> str:
        """The input's name for one of COLUMNS."""
        return self.columns.get(name, name)
