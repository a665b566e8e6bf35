"""The identity of a run: settings and inputs. A run is resumed only if none of them changed.

A stage stores its `Job` once, when a run begins, and its progress at every checkpoint; both lie in the work
folder inside the output folder until the manifest stands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from lowtide.errors import (
    ChangedInputError,
    DataError,
    StoppedError,
    UsageError,
    VerificationError,
)
from lowtide.source.blocks import LISTED_BAD_ROWS
from lowtide.source.find_inputs import InputFile
from lowtide.source.stream import BadRow, Block
from lowtide.storage.decode_json import convert_json, explain
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.sealed_json import read_sealed, write_sealed

_SHOWN_DIFFERENCES = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One input as it was when the run began."""

    name: str
    kind: str
    size_bytes: int
    modified_ns: int
    fingerprint: str


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
    """Tokens that stand for text which has no token."""
    examples: int = 0
    """Those of which there are tokens."""
    learnt_tokens: int = 0
    too_long: int = 0
    """Examples of more tokens than fit."""
    dropped: int = 0
    """Pieces of examples left out because nothing in them is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCounts:
    """What became of the examples of a block; all 0 for text."""

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


def describe_inputs(inputs: Sequence[InputFile]) -> tuple[JobInput, ...]:
    """Fingerprints of all inputs: at most 1 MiB is read of each. A stream has none."""
    return tuple(_describe_input(item) for item in inputs)


def _describe_input(item: InputFile) -> JobInput:
    name = str(item.path)
    if item.stream is not None:
        return JobInput(name=name, kind=item.kind, size_bytes=0, modified_ns=0, fingerprint="")
    return JobInput(
        name=name,
        kind=f"{item.kind}.{item.compression}" if item.compression else str(item.kind),
        size_bytes=item.size_bytes,
        modified_ns=_stat(item.path).st_mtime_ns,
        fingerprint=fingerprint_file(item.path),
    )


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as cause:
        raise DataError(
            f"{path} was there and cannot be read any more: {cause.strerror}",
            remedy="put it back as it was, and run the same command again",
        ) from cause


@contextmanager
def refuse_written_inputs(inputs: Sequence[JobInput], found: Sequence[InputFile]) -> Iterator[None]:
    """Raise ChangedInputError if an input was written to since it was `found`; checked after the run or a stop.

    A hard link, other rights and a time that was set back look alike: the fingerprint decides. `read_blocks`
    looks at every byte, at the end of a file and when a run is resumed inside it.
    """
    try:
        yield
    except StoppedError:
        _refuse_written(inputs, found)
        raise
    _refuse_written(inputs, found)


def _refuse_written(inputs: Sequence[JobInput], found: Sequence[InputFile]) -> None:
    for item, file in zip(inputs, found, strict=True):
        if file.stream is not None:
            continue
        now = _stat(file.path)
        if (now.st_size, now.st_mtime_ns) != (item.size_bytes, item.modified_ns) or (
            now.st_ctime_ns != file.changed_ns and fingerprint_file(file.path) != item.fingerprint
        ):
            raise ChangedInputError(
                f"{item.name} was written to while it was read",
                remedy="let whatever writes it finish, then pass `--restart`",
            )


def disown_changed(inputs: Sequence[JobInput], found: Sequence[InputFile]) -> tuple[JobInput, ...]:
    """The inputs; those touched since they were `found` get a fingerprint that no file has.

    A run that met a ChangedInputError is stored with them: its tokens are of two versions, and nobody may
    resume it because size, time and samples happen to be the old ones.
    """
    return tuple(
        item
        if file.stream is not None or _stat(file.path).st_ctime_ns == file.changed_ns
        else replace(item, fingerprint="changed while it was read")
        for item, file in zip(inputs, found, strict=True)
    )


def list_setting_changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Each difference as a line: `--val was 0.01, is 0.02`. A setting that is left out is none."""
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


def list_input_changes(before: Sequence[JobInput], now: Sequence[JobInput]) -> list[str]:
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


def _changed(before: JobInput, now: JobInput) -> str:
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
