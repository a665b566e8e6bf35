"""What a run and the process that tokenizes for it say to each other. No torch here: the child has none."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.settings import TokenizeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the child is told."""

    path: str
    out: str
    settings: TokenizeSettings
    """With the text of the template that the run began with."""
    fingerprint: str
    """Of the tokenizer that the run began with."""
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What it came to; an error by its kind, or nothing."""

    kind: str = ""
    problem: str = ""
    remedy: str = ""
    ends_run: bool = False
    """It is not the file's fault: the next file would fare no better."""
