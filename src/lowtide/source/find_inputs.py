"""From what was asked for to the list of files to read, in an order that never changes.

Arguments keep their order; what a folder or a glob brings is sorted by path. A file's name says its kind:

    .jsonl .ndjson               JSON, one object a line          may end in .gz or .zst
    .parquet .pq                 Parquet
    .arrow .feather              Arrow, stream or file
    everything else, and `-`     text                             may end in .gz or .zst

A file that is named, or matched by a glob, is always taken. A folder is searched through all its subfolders
(links to folders are not followed) and gives its data files: rows in the formats above, and `.txt`,
`.text`. Only if it holds no rows does it also give its other plain text: any file without a NUL byte in its
first 8 KiB. So a folder of source code is read whole, and the README beside a data set is not. Hidden
files, lock files, half-written ones and folders that lowtide wrote are left out.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from lowtide.errors import UsageError
from lowtide.units import KIB

STDIN = Path("-")
Compression = Literal["", "gz", "zst"]

_LEFT_OUT_SUFFIXES = frozenset({".lock", ".tmp", ".part", ".partial", ".crdownload", ".incomplete"})
_PACKED_SUFFIXES = frozenset({".zip", ".tar", ".tgz", ".bz2", ".xz", ".7z", ".lz4", ".rar"})
_TEXT_SUFFIXES = frozenset({".txt", ".text"})
_COMPRESSIONS: dict[str, Compression] = {".gz": "gz", ".zst": "zst", ".zstd": "zst"}
_SNIFFED_BYTES = 8 * KIB


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
class InputFile:
    """One file to read."""

    path: Path
    """`Path("-")` is standard input."""
    kind: InputKind
    compression: Compression = ""
    size_bytes: int
    """As stored; 0 for standard input. Bytes that are appended later are not read."""

    @property
    def is_stdin(self) -> bool:
        """Standard input is read once: it cannot be resumed, nor looked at twice."""
        return self.path == STDIN


def find_inputs(arguments: Sequence[str], *, leave_out: Path | None = None) -> list[InputFile]:
    """The files behind paths, folders and globs, but for those in the folder `leave_out`.

    Missing, unreadable or named twice: `UsageError`.
    """
    if not arguments:
        raise UsageError("no input was named", remedy="name a file, a folder, a glob, or `-`")
    found: list[InputFile] = []
    first_seen: dict[Path, str] = {}
    for argument in arguments:
        for path in _expand(argument):
            identity = path if path == STDIN else path.resolve()
            if leave_out is not None and identity.is_relative_to(leave_out.resolve()):
                continue
            if identity in first_seen:
                raise UsageError(
                    f"{path} is named twice: by {first_seen[identity]!r} and by {argument!r}",
                    remedy="name each input once; the same text twice would be learned twice",
                )
            first_seen[identity] = argument
            found.append(_describe(path))
    if not found:
        raise UsageError("all inputs lie in the output folder", remedy="pass another `--out`")
    return found


def _expand(argument: str) -> Iterable[Path]:
    """The paths one argument stands for."""
    path = Path(argument)
    if path == STDIN and argument != str(STDIN):
        path = path.absolute()  # `./-` is a file of that name
    if path == STDIN or path.is_file():
        return [path]
    if path.is_dir():
        return _search_folder(path)
    if path.exists():
        raise UsageError(
            f"{path} is neither a file nor a folder",
            remedy=f"pipe it in: `lowtide tokenize - < {path}`",
        )
    if glob.has_magic(argument):
        return _match(argument)
    raise UsageError(
        f"{path} does not exist", remedy="check the path; quote a glob that holds `**`"
    )


def _match(pattern: str) -> list[Path]:
    matches = (Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207 - any root
    files = sorted((path for path in matches if path.is_file()), key=_sort_key)
    if not files:
        raise UsageError(
            f"{pattern!r} matches no file",
            remedy="check the pattern; `folder/**/*.txt` also looks in subfolders",
        )
    return files


def _search_folder(folder: Path) -> list[Path]:
    paths = sorted(_walk(folder), key=_sort_key)
    taken = [path for path in paths if is_row_file(path) or is_text_file(path)]
    if not any(map(is_row_file, taken)):
        taken = [path for path in paths if is_text_file(path) or _looks_like_text(path)]
    if not taken:
        raise UsageError(
            f"{folder} holds no text, JSONL, parquet or arrow file",
            remedy="name the files themselves, or a glob such as `folder/*.dat`",
        )
    return taken


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [name for name in folders if not _is_left_out_folder(Path(root, name))]
        for name in names:
            path = Path(root, name)
            if not is_left_out(path) and path.is_file():
                yield path


def _is_left_out_folder(path: Path) -> bool:
    """Hidden, or a dataset that lowtide wrote or is writing: `tokenize . --out tokens` must not eat it."""
    if path.name.startswith("."):
        return True
    return (path / "lowtide.json").is_file() or (path / ".lowtide").is_dir()


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


def _looks_like_text(path: Path) -> bool:
    if path.suffix.lower() in _PACKED_SUFFIXES or _plain_suffix(path) in _PACKED_SUFFIXES:
        return False
    if path.suffix.lower() in _COMPRESSIONS:
        return True
    try:
        with path.open("rb") as file:
            return b"\0" not in file.read(_SNIFFED_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error


def _describe(path: Path) -> InputFile:
    if path == STDIN:
        return InputFile(path=path, kind=InputKind.TEXT, size_bytes=0)
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    compression = _COMPRESSIONS.get(path.suffix.lower(), "")
    kind = _KINDS.get(_plain_suffix(path), InputKind.TEXT)
    if compression and kind in (InputKind.PARQUET, InputKind.ARROW):
        raise UsageError(
            f"{path} is a compressed {kind} file, which cannot be read in parts",
            remedy=f"decompress it first; {kind} files are compressed inside",
        )
    return InputFile(path=path, kind=kind, compression=compression, size_bytes=size_bytes)


def _refuse_unreadable(error: OSError) -> None:
    raise _unreadable(Path(str(error.filename)), error) from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be read: {error.strerror or error}",
        remedy="make it readable for this user, or leave it out",
    )
