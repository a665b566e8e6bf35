"""From arguments to the list of files to read, in an order that never changes.

Arguments keep their order; what a folder or a glob brings is sorted by path. A file's name says its kind:

    .jsonl .ndjson               JSON, one object a line          may end in .gz or .zst
    .parquet .pq                 Parquet
    .arrow .feather              Arrow, stream or file
    everything else, and `-`     text                             may end in .gz or .zst

A format that the user states overrides the name. What is not text by its first bytes is refused
(`recognise`).

A file that is named, or matched by a glob, is always taken or refused. A folder is searched through all its
subfolders (links to folders are not followed) and gives its data files: rows in the formats above, and
`.txt`, `.text`. Only if it holds no rows does it also give its other plain text: any file without a NUL byte
in its first 8 KiB that would not be refused if it were named. So a folder of source code is read whole, and
the README beside a data set is not. With a stated format it gives the files that are named so, and all
others that begin like one. Hidden files, lock files, half-written ones and folders that lowtide wrote are
left out. Whatever is left out is counted, and some of it named.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Literal

from lowtide.errors import UsageError
from lowtide.settings import InputFormat
from lowtide.source.recognise import (
    FEATHER_1,
    FEATHER_1_MAGIC,
    begins_like_rows,
    read_start,
    recognise,
    refuse_foreign,
)
from lowtide.units import printable

STDIN = Path("-")
Compression = Literal["", "gz", "zst"]

_LEFT_OUT_SUFFIXES = frozenset({".lock", ".tmp", ".part", ".partial", ".crdownload", ".incomplete"})
_PACKED_SUFFIXES = frozenset({".zip", ".tar", ".tgz", ".bz2", ".xz", ".7z", ".lz4", ".rar"})
_TEXT_SUFFIXES = frozenset({".txt", ".text"})
_COMPRESSIONS: dict[str, Compression] = {".gz": "gz", ".zst": "zst", ".zstd": "zst"}
_HIDDEN = "hidden"
_NO_FILES = "no files (broken links, pipes)"
_NAMED_SKIPPED = 3
"""The most skipped files that are named for each reason."""


class InputKind(StrEnum):
    """How the documents lie in a file."""

    TEXT = "text"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


_KINDS = {
    ".jsonl": InputKind.JSONL,
    ".ndjson": InputKind.JSONL,
    ".parquet": InputKind.PARQUET,
    ".pq": InputKind.PARQUET,
    ".arrow": InputKind.ARROW,
    ".feather": InputKind.ARROW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An input that is read once, from front to back: it cannot be resumed, nor looked at twice."""

    name: str
    """In words: `standard input`."""
    read: Callable[[int], bytes]
    """Up to so many bytes; none at the end."""
    restart: str = "--restart"
    """What to pass to begin again."""
    unit: Literal["line", "row"] = "line"
    """What a line of JSON is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file to read."""

    path: Path
    """`Path("-")` is standard input, `Path("<iterable>")` an iterable of Python."""
    kind: InputKind
    compression: Compression = ""
    size_bytes: int
    """Stored size; 0 for a stream. Bytes that are appended later are not read."""
    stated: bool = False
    """Whether the user named the format; otherwise the file's name says it."""
    changed_ns: int = 0
    """Time of its last change of any sort, which no program can set back."""
    stream: Stream | None = None
    """What is read in place of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Files that are not read for one reason."""

    reason: str
    count: int
    first: tuple[str, ...]
    """Paths of the first ones; for a hidden folder, the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInputs:
    """The files that are read, and those that are not."""

    files: list[InputFile]
    skipped: tuple[Skipped, ...] = ()


def find_inputs(
    arguments: Sequence[str | InputFile],
    *,
    leave_out: Path | None = None,
    input_format: InputFormat | None = None,
) -> list[InputFile]:
    """The files that `survey_inputs` finds, without those it skips."""
    return survey_inputs(arguments, leave_out=leave_out, input_format=input_format).files


def survey_inputs(
    arguments: Sequence[str | InputFile],
    *,
    leave_out: Path | None = None,
    input_format: InputFormat | None = None,
) -> FoundInputs:
    """The files behind paths, folders and globs, but for those in the folder `leave_out`.

    A missing or unreadable file is a `UsageError`; one that is not text by its first bytes, a `DataError`.
    A file that several names lead to is read once. What is an `InputFile` already stays as it is.
    """
    if not arguments:
        raise UsageError("no input was named", remedy="name a file, a folder, a glob, or `-`")
    search = _Search(
        stated=None if input_format is None else InputKind(input_format),
        leave_out=None if leave_out is None else leave_out.resolve(),
    )
    found: list[InputFile] = []
    seen: set[Path] = set()
    for argument in arguments:
        if isinstance(argument, InputFile):
            found.append(argument)
            if search.stated not in (None, argument.kind):
                raise UsageError(
                    f"rows of Python are not read as {search.stated}",
                    remedy="leave `input_format` out",
                )
            continue
        for path in search.expand(argument):
            identity = path if path == STDIN else path.resolve()
            if search.is_in_output(identity):
                continue
            if identity in seen:
                search.skipped.add(path, "read under another name")
                continue
            seen.add(identity)
            found.append(_describe(path, search.stated))
    if not found:
        raise UsageError("all inputs lie in the output folder", remedy="pass another `--out`")
    return FoundInputs(files=found, skipped=search.skipped.by_reason())


class _SkippedFiles:
    """Files that are left out: counted by reason, and some of them named."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[str]] = {}

    def add(self, path: Path, reason: str, *, count: int = 1) -> None:
        """Count a file, or a folder of `count` files."""
        if not count:
            return
        self._counts[reason] = self._counts.get(reason, 0) + count
        names = self._first.setdefault(reason, [])
        names.append(printable(str(path)))  # a name may not be UTF-8
        names.sort()
        del names[_NAMED_SKIPPED:]

    def by_reason(self) -> tuple[Skipped, ...]:
        """The most frequent reason first."""
        order = sorted(self._counts, key=lambda reason: (-self._counts[reason], reason))
        return tuple(
            Skipped(reason=reason, count=self._counts[reason], first=tuple(self._first[reason]))
            for reason in order
        )


def describe_skipped(skipped: Sequence[Skipped]) -> str:
    """`skipped 3 files: hidden 2 (.git, …), a zip archive 1 (a.zip); …`."""
    total = sum(item.count for item in skipped)
    parts = []
    for item in skipped:
        more = ", …" if item.count > len(item.first) else ""
        parts.append(f"{item.reason} {item.count:,} ({', '.join(item.first)}{more})")
    return (
        f"skipped {total:,} file{'' if total == 1 else 's'}: {', '.join(parts)}; "
        "to have one read, name it"
    )


class _Search:
    """Finds the paths that arguments stand for, and notes what is skipped."""

    def __init__(self, *, stated: InputKind | None, leave_out: Path | None) -> None:
        self.stated = stated
        self.skipped = _SkippedFiles()
        self._leave_out = leave_out

    def is_in_output(self, path: Path) -> bool:
        """Whether a resolved path is inside the output folder, whose files are never inputs."""
        return self._leave_out is not None and path.is_relative_to(self._leave_out)

    def expand(self, argument: str) -> Iterable[Path]:
        """The paths one argument stands for."""
        path = Path(argument)
        if path == STDIN and argument != str(STDIN):
            path = path.absolute()  # `./-` is a file of that name
        if path == STDIN:
            return [path]
        if path.is_file():
            if self._leave_out is not None and path.resolve() == self._leave_out.resolve():
                raise UsageError(
                    f"{path} is an input and the output folder",
                    remedy="pass another folder as `--out`",
                )
            if self.is_in_output(path.resolve()):
                raise UsageError(
                    f"{path} lies in the output folder {self._leave_out}",
                    remedy="pass another `--out`, or move the input out of it",
                )
            return [path]
        if path.is_dir():
            return self._search_folder(path)
        if path.exists():
            raise UsageError(
                f"{path} is neither a file nor a folder",
                remedy=f"pipe it in: `lowtide tokenize - < {path}`",
            )
        if glob.has_magic(argument):
            return self._match(argument)
        raise UsageError(
            f"{path} does not exist", remedy="check the path; quote a glob that holds `**`"
        )

    def _match(self, pattern: str) -> list[Path]:
        seen = set(glob.glob(pattern, recursive=True))  # noqa: PTH207 - any root
        matches = [Path(name) for name in seen]
        files = sorted((path for path in matches if path.is_file()), key=_sort_key)
        if not files:
            raise UsageError(
                f"{pattern!r} matches no file",
                remedy="check the pattern; `folder/**/*.txt` also looks in subfolders",
            )
        hidden = set(glob.glob(pattern, recursive=True, include_hidden=True)) - seen  # noqa: PTH207
        for path in map(Path, hidden):
            if path.is_file() and not self.is_in_output(path.resolve()):
                self.skipped.add(path, _HIDDEN)
        for path in matches:
            if path.is_dir():
                if "**" not in pattern and not self.is_in_output(path.resolve()):
                    self.skipped.add(path, "folders that the glob matched")
            elif not path.is_file():
                self.skipped.add(path, _NO_FILES)
        return files

    def _search_folder(self, folder: Path) -> list[Path]:
        paths = sorted(self._walk(folder), key=_sort_key)
        taken = self._choose(paths)
        if not taken:
            skipped = self.skipped.by_reason()
            raise UsageError(
                f"{folder} holds no {self.stated or 'text, JSONL, parquet or arrow'} file"
                + (f"; {describe_skipped(skipped)}" if skipped else ""),
                remedy="name the files themselves, or a glob such as `folder/*.dat`",
            )
        return taken

    def _choose(self, paths: list[Path]) -> list[Path]:
        """The files of a folder that are read, chosen by name or else by their first bytes."""
        if self.stated is None and any(map(is_row_file, paths)):
            for path in paths:
                if not _is_named_as_data(path):
                    self.skipped.add(path, "beside rows")
            return [path for path in paths if _is_named_as_data(path)]
        taken = []
        for path in paths:
            reason = "" if self._is_named_for_it(path) else self._why_not(path)
            if reason:
                self.skipped.add(path, reason)
            else:
                taken.append(path)
        return taken

    def _is_named_for_it(self, path: Path) -> bool:
        if self.stated in (None, InputKind.TEXT):
            return is_text_file(path)
        return _KINDS.get(_plain_suffix(path)) is self.stated

    def _why_not(self, path: Path) -> str:
        """Why a file of a folder is not read; empty if it is."""
        try:
            start = read_start(path, _COMPRESSIONS.get(path.suffix.lower(), ""))
        except OSError as error:
            raise _unreadable(path, error) from error
        if self.stated not in (None, InputKind.TEXT):
            return "" if begins_like_rows(start, self.stated) else f"no {self.stated}"
        suffix = _plain_suffix(path)
        foreign = recognise(start, suffix=suffix, stated=self.stated)
        if foreign is not None:
            return foreign.what
        if suffix in _PACKED_SUFFIXES:
            return f"named {suffix}"
        return "binary data" if b"\0" in start else ""

    def _walk(self, folder: Path) -> Iterator[Path]:
        for root, folders, names in os.walk(folder, onerror=_refuse_unreadable):
            folders[:] = [name for name in folders if self._is_entered(Path(root, name))]
            for name in names:
                path = Path(root, name)
                if path.name.startswith("."):
                    self.skipped.add(path, _HIDDEN)
                elif is_left_out(path):
                    self.skipped.add(path, "half-written, locks or backups")
                elif not path.is_file():
                    self.skipped.add(path, _NO_FILES)
                else:
                    yield path

    def _is_entered(self, path: Path) -> bool:
        """Whether a folder is searched: not a hidden one, nor an output of lowtide (think of `tokenize .`)."""
        if self.is_in_output(path.resolve()):
            return False
        if path.name.startswith("."):
            self.skipped.add(path, _HIDDEN, count=_count_files(path))
            return False
        if (path / "lowtide.json").is_file() or (path / ".lowtide").is_dir():
            self.skipped.add(path, "written by lowtide")
            return False
        if path.is_symlink():
            self.skipped.add(path, "links to folders")
            return False
        return True


def _count_files(folder: Path) -> int:
    """Number of files in a folder and its subfolders; a link to a folder counts as one."""
    if folder.is_symlink():
        return 1
    return sum(len(names) for _, _, names in os.walk(folder))


def _is_named_as_data(path: Path) -> bool:
    return is_row_file(path) or is_text_file(path)


def is_left_out(path: Path) -> bool:
    """Hidden, a lock, a backup, or half-written by its name: never an input unless it is named."""
    return path.name.startswith(".") or path.name.endswith("~") or path.suffix in _LEFT_OUT_SUFFIXES


def _sort_key(path: Path) -> tuple[str, ...]:
    """Compared part by part, so that `a/z` comes before `a-b/c` on every system."""
    return path.parts


def is_row_file(path: Path) -> bool:
    """Whether its name says that it holds rows."""
    return _plain_suffix(path) in _KINDS


def is_text_file(path: Path) -> bool:
    """Whether its name says that it holds plain text."""
    return _plain_suffix(path) in _TEXT_SUFFIXES


def _plain_suffix(path: Path) -> str:
    """The suffix below a compression's: `.jsonl` of `a.jsonl.gz`."""
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path
    return name.suffix.lower()


def _describe(path: Path, stated: InputKind | None) -> InputFile:
    if path == STDIN:
        return _describe_stdin(stated)
    compression = _COMPRESSIONS.get(path.suffix.lower(), "")
    kind = stated or _KINDS.get(_plain_suffix(path), InputKind.TEXT)
    if compression and kind in (InputKind.PARQUET, InputKind.ARROW):
        raise UsageError(
            f"{path} is a compressed {kind} file, which cannot be read in parts",
            remedy=f"decompress it first; {kind} files are compressed inside",
        )
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if kind is InputKind.ARROW and file.read(len(FEATHER_1_MAGIC)) == FEATHER_1_MAGIC:
                refuse_foreign(str(path), FEATHER_1)
        if kind in (InputKind.TEXT, InputKind.JSONL):
            known = InputKind.JSONL if kind is InputKind.JSONL else stated
            start = read_start(path, compression)
            found_kind = recognise(start, suffix=_plain_suffix(path), stated=known)
            refuse_foreign(str(path), found_kind)
    except OSError as error:
        raise _unreadable(path, error) from error
    return InputFile(
        path=path,
        kind=kind,
        compression=compression,
        size_bytes=found.st_size,
        stated=stated is not None,
        changed_ns=found.st_ctime_ns,
    )


def _describe_stdin(stated: InputKind | None) -> InputFile:
    if stated in (InputKind.PARQUET, InputKind.ARROW):
        raise UsageError(
            f"standard input cannot be read as {stated}, which is not read from front to back",
            remedy=f"save it to a file that ends in `.{stated}`, and name that",
        )
    return InputFile(
        path=STDIN,
        kind=stated or InputKind.TEXT,
        size_bytes=0,
        stated=stated is not None,
        stream=Stream(name="standard input", read=partial(os.read, 0)),
    )


def _refuse_unreadable(error: OSError) -> None:
    raise _unreadable(Path(str(error.filename)), error) from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be read: {error.strerror or error}",
        remedy="make it readable for this user, or leave it out",
    )
