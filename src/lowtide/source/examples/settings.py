"""What is asked of examples: their kind, their columns, the template, and which part is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from lowtide.source.examples.templates import Template

ExampleKind: TypeAlias = Literal["chat", "instruction", "completion"]
Learn: TypeAlias = Literal["assistant", "all", "completion"]
"""Every turn of the assistant, everything, or the assistant's last turn alone."""
TooLong: TypeAlias = Literal["split", "truncate", "skip"]

BUILT_IN = ("chatml", "plain")
"""Templates that are known by name; any other is a Jinja file."""
COLUMNS: dict[ExampleKind, tuple[str, ...]] = {
    "chat": ("messages", "role", "content"),
    "instruction": ("instruction", "input", "output"),
    "completion": ("prompt", "completion"),
}
"""What each kind's columns are called unless told otherwise; role and content are keys of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleReading:
    """How rows become examples. All of it changes the output and none of it the memory."""

    kind: ExampleKind
    template: Template
    learn: Learn = "assistant"
    columns: Mapping[str, str] = field(default_factory=dict)
    """The names of COLUMNS that are called otherwise here."""

    def column(self, name: str) -> str:
        """What one of COLUMNS is called in the input."""
        return self.columns.get(name, name)
