"""What a Python caller hands over: paths, or rows, which are read as JSON lines are.

    "a.jsonl"    ["a.txt", Path("b.txt")]        paths
    (text for text in texts)                     texts: each is one document
    [{"text": "…"}, …]    a datasets.Dataset     rows: each is a line of JSONL

Rows are asked for one by one, in the thread that called, when there is room for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from lowtide.errors import DataError, UsageError
from lowtide.source.find_inputs import InputFile, InputKind, Stream
from lowtide.storage.paths import as_path

Inputs: TypeAlias = str | Path | Iterable[str | Path] | Iterable[str | Mapping[str, object]]

_ITERABLE = Path("<iterable>")
_encode = json.JSONEncoder(ensure_ascii=False).encode


def take_inputs(inputs: Inputs, *, column: str | None) -> list[str | InputFile]:
    """The paths, or an iterable of rows as one input, of which only `column` is needed (None: all of it).

    A list or a tuple of `str` holds paths; any other iterable of `str` holds texts.
    """
    if isinstance(inputs, str | os.PathLike):
        return [os.fspath(inputs)] if as_path(inputs) else []
    if isinstance(inputs, list | tuple):
        names = [os.fspath(item) for item in inputs if isinstance(item, str | os.PathLike)]
        if len(names) == len(inputs):
            return [name for name in names if as_path(name)]
        if names:
            raise UsageError(
                f"the inputs are rows and paths, such as {names[0]!r}",
                remedy="pass the paths alone, or every text as a row: `{'text': ...}`",
            )
    if isinstance(inputs, Mapping):
        raise UsageError(
            f"the inputs are a {type(inputs).__name__} of {', '.join(map(str, inputs))}",
            remedy="pass one of its values, such as `datasets['train']`; a single row goes into a list",
        )
    if not isinstance(inputs, Iterable):
        raise UsageError(
            f"the inputs are of type {type(inputs).__name__}",
            remedy="pass a path, a list of paths, or an iterable of texts or dicts",
        )
    stream = Stream(
        name="the iterable",
        read=_reader(_json_lines(inputs, column)),
        restart="restart=True",
        unit="row",
    )
    return [
        InputFile(path=_ITERABLE, kind=InputKind.JSONL, size_bytes=0, stated=True, stream=stream)
    ]


def _reader(lines: Iterator[bytes]) -> Callable[[int], bytes]:
    """Reads lines as a file is read. Holds no more than was asked for, and the rest of a line."""
    held = bytearray()

    def read(size: int) -> bytes:
        while len(held) < size and (line := next(lines, b"")):
            held.extend(line)
        data = bytes(held[:size])
        del held[:size]
        return data

    return read


def _json_lines(rows: Iterable[object], column: str | None) -> Iterator[bytes]:
    for number, row in enumerate(rows, start=1):
        if number == 1 and isinstance(row, str) and _is_file(row):
            raise UsageError(
                f"{_ITERABLE}, row 1 is the name of a file, {row[:60]!r}, and would be taken for a text",
                remedy="pass the names of files as a list: `list(names)`",
            )
        if isinstance(row, str) and column is not None:
            kept: object = {column: row}
        elif isinstance(row, Mapping) and column is not None and column in row:
            kept = {column: row[column]}
        elif isinstance(row, Mapping):
            kept = dict(row)
        else:
            raise DataError(
                f"{_ITERABLE}, row {number} is of type {type(row).__name__}",
                remedy="give texts, or dicts such as `{'text': ...}`; examples are dicts, and paths go "
                "into a list",
            )
        yield _json_line(kept, number)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        return False


def _json_line(row: object, number: int) -> bytes:
    try:
        text = _encode(row)
    except (TypeError, ValueError, RecursionError) as cause:
        raise DataError(
            f"{_ITERABLE}, row {number} cannot be written as JSON: {cause}",
            remedy="give rows of text, numbers, lists and dicts, without the columns that are not needed",
        ) from cause
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate: escaped, the reader meets it as in any file
        return json.dumps(row).encode() + b"\n"
