"""The inputs of a run as they were when it began: a run goes on only over the same ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import ChangedInputError, DataError, StoppedError, UsageError
from lowtide.source.find_inputs import InputFile
from lowtide.storage.fingerprint import fingerprint_file

_SHOWN_DIFFERENCES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One input as it was when the run began."""

    name: str
    kind: str
    size_bytes: int
    modified_ns: int
    fingerprint: str


def describe_inputs(inputs: Sequence[InputFile]) -> tuple[JobInput, ...]:
    """Fingerprints of all inputs: at most 1 MiB is read of each. Standard input has none."""
    return tuple(_describe_input(item) for item in inputs)


def _describe_input(item: InputFile) -> JobInput:
    if item.is_stdin:
        return JobInput(name="-", kind=item.kind, size_bytes=0, modified_ns=0, fingerprint="")
    return JobInput(
        name=str(item.path),
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
    looks at every byte, at the end of a file and when a run goes on inside it.
    """
    try:
        yield
    except StoppedError:
        _refuse_written(inputs, found)
        raise
    _refuse_written(inputs, found)


def _refuse_written(inputs: Sequence[JobInput], found: Sequence[InputFile]) -> None:
    for item, file in zip(inputs, found, strict=True):
        if file.is_stdin:
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
    """The inputs with nothing to know those again by that were touched since they were `found`.

    A run that met a ChangedInputError is stored with them: its tokens are of two versions, and nobody may go
    on from there because size, time and samples happen to be the old ones.
    """
    return tuple(
        item
        if file.is_stdin or _stat(file.path).st_ctime_ns == file.changed_ns
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


def _changed(before: JobInput, now: JobInput) -> str:
    if before.size_bytes != now.size_bytes:
        return f"{now.name} has changed (size {now.size_bytes}, was {before.size_bytes})"
    if before.fingerprint != now.fingerprint:
        return f"{now.name} has changed (other content)"
    return f"{now.name} was written to since"
