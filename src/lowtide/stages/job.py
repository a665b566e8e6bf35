"""The identity of a run: settings and inputs. A run is resumed only if none of them changed.

A stage stores its `Job` once, when a run begins, and its progress at every checkpoint; both lie in the work
folder inside the output folder until the manifest stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from lowtide.errors import UsageError, VerificationError
from lowtide.source.blocks import LISTED_BAD_ROWS, BadRow, Block
from lowtide.storage.decode_json import convert_json, explain
from lowtide.storage.sealed_json import read_sealed, write_sealed

_SHOWN_DIFFERENCES = 8
_T = TypeVar("_T")


class InputFacts(Protocol):
    """What records of an input have in common."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One input as it was when the run began."""

    name: str
    kind: str
    size_bytes: int
    modified_ns: int
    fingerprint: str


def job_inputs(recorded: Iterable[InputFacts], now: Sequence[JobInput]) -> tuple[JobInput, ...]:
    """The inputs that a manifest records. It keeps no modification times: those of `now` stand in."""
    times = {item.name: item.modified_ns for item in now}
    return tuple(
        JobInput(
            name=item.name,
            kind=item.kind,
            size_bytes=item.size_bytes,
            modified_ns=times.get(item.name, 0),
            fingerprint=item.fingerprint,
        )
        for item in recorded
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What has been counted so far; stored with every checkpoint."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    bad_count: int = 0
    bad: tuple[BadRow, ...] = ()
    empty_documents: int = 0
    unknown_tokens: int = 0
    """Tokens that stand for text for which the vocabulary has none."""
    examples: int = 0
    """Examples that became tokens."""
    learnt_tokens: int = 0
    too_long: int = 0
    """Examples with more tokens than the context holds."""
    dropped: int = 0
    """Pieces of examples that were left out because no token in them is a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCounts:
    """What became of the examples in a block."""

    examples: int = 0
    learnt_tokens: int = 0
    too_long: int = 0
    dropped: int = 0


def add_block(
    counts: Counts,
    block: Block,
    *,
    tokens: int,
    unknown_tokens: int = 0,
    examples: ExampleCounts | None = None,
) -> Counts:
    """The counts after one more block; of bad rows the first hundred are listed."""
    room = LISTED_BAD_ROWS - len(counts.bad)
    examples = examples or ExampleCounts()
    return replace(
        counts,
        documents=counts.documents + block.document_count,
        tokens=counts.tokens + tokens,
        text_bytes=counts.text_bytes + block.text_bytes,
        bad_count=counts.bad_count + block.bad_count,
        bad=counts.bad + block.bad[:room] if block.bad else counts.bad,
        empty_documents=counts.empty_documents + block.empty_count,
        unknown_tokens=counts.unknown_tokens + unknown_tokens,
        examples=counts.examples + examples.examples,
        learnt_tokens=counts.learnt_tokens + examples.learnt_tokens,
        too_long=counts.too_long + examples.too_long,
        dropped=counts.dropped + examples.dropped,
    )


def store_record(path: Path, record: object) -> None:
    """Seal a job, a checkpoint or a manifest at `path`: whole or absent after a crash."""
    write_sealed(path, msgspec.to_builtins(record))


def load_record(path: Path, kind: type[_T]) -> _T:
    """The sealed record of this kind at `path`."""
    try:
        return convert_json(read_sealed(path), kind)
    except msgspec.ValidationError as cause:
        raise VerificationError(
            f"{path} does not hold what it should, or was written by another version of lowtide "
            f"({explain(cause)})",
            remedy="pass `--restart` to begin again",
        ) from cause


def list_setting_changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Each difference as a line: `--val was 0.01, is 0.02`."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"--{name.replace('_', '-')} was {_shown(before, name)}, is {_shown(now, name)}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _shown(settings: Mapping[str, object], name: str) -> str:
    value = settings.get(name)
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "nothing"
    return repr(value) if name in settings else "not given"


def list_input_changes(before: Sequence[InputFacts], now: Sequence[InputFacts]) -> list[str]:
    """Each difference as a line: `a.txt has changed (size 3, was 4)`."""
    names_before = [item.name for item in before]
    names_now = [item.name for item in now]
    known = {item.name: item for item in before}
    still = set(names_now)
    lines = [f"{name} is no longer among the inputs" for name in names_before if name not in still]
    lines += [f"{name} is a new input" for name in names_now if name not in known]
    if not lines and names_before != names_now:
        lines.append("the inputs come in another order")
    lines += [
        _changed(known[item.name], item)
        for item in now
        if item.name in known and known[item.name] != item
    ]
    return lines


def _changed(before: InputFacts, now: InputFacts) -> str:
    if before.size_bytes != now.size_bytes:
        return f"{now.name} has changed (size {now.size_bytes}, was {before.size_bytes})"
    if before.fingerprint != now.fingerprint:
        return f"{now.name} has changed (other content)"
    return f"{now.name} was written to since"


def refuse_differences(differences: Sequence[str], folder: Path) -> None:
    """A UsageError that lists what differs between the run begun in `folder` and this one, if anything."""
    if not differences:
        return
    shown = "".join(f"\n  - {line}" for line in differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    rest = f"\n  - and {more} more" if more > 0 else ""
    raise UsageError(
        f"{folder} was begun with other settings or inputs:{shown}{rest}",
        remedy="use the earlier settings and inputs to resume, pass `--restart` to begin again, "
        "or choose another `--out`",
    )
