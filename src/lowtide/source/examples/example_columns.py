"""Examples out of Arrow columns: which columns are needed, how many bytes each row has, rows as Python values.

Columns are taken apart by their buffers level by level (lists, structs, strings), because Arrow's own way
makes several objects for every value. Bytes that are not UTF-8 stay bytes, for the policy to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lowtide.errors import DataError, UsageError
from lowtide.source.columns import (
    as_binary,
    as_numbers,
    checked,
    find_type,
    is_list,
    is_text,
    list_borders,
    plain_list,
    text_lengths,
)
from lowtide.source.examples.settings import COLUMNS, ExampleReading
from lowtide.source.examples.turns import Turn
from lowtide.source.utf8 import is_utf8

_FIXED_BYTES = 8
"""The size that a value counts for if it is not text."""


def needed_columns(schema: pa.Schema, reading: ExampleReading, path: str) -> list[str]:
    """The columns to read, by name in the file; a `UsageError` if one is not there or of another type."""
    wanted = ("messages",) if reading.kind == "chat" else COLUMNS[reading.kind]
    columns = []
    for name in wanted:
        column = reading.column(name)
        kind = find_type(schema, column)
        if kind is None and name == "input" and name not in reading.columns:
            continue
        _check_kind(kind, name, column, path, schema, reading)
        columns.append(column)
    return columns


def leaf_paths(paths: Sequence[str], columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Which of a Parquet file's columns hold the named ones, or of their messages only some keys."""
    chosen: list[str] = []
    for column in columns:
        inside = [path for path in paths if path == column or path.startswith(column + ".")]
        by_key = {
            key: [path for path in inside if key in path.removeprefix(column).split(".")]
            for key in keys
        }
        if by_key and all(by_key.values()):
            inside = [path for path in inside if any(path in found for found in by_key.values())]
        chosen += inside
    return chosen


def row_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    """The approximate bytes of each row as text; an entry of a dictionary is counted in full for each row."""
    values = plain_list(values)
    kind = values.type
    if is_text(kind):
        return text_lengths(values)
    if pa.types.is_dictionary(kind):
        return row_bytes(values.dictionary)[as_numbers(values.indices.cast(pa.int64()))]
    if is_list(kind):
        ends = np.concatenate(([0], np.cumsum(row_bytes(values.flatten()) + _FIXED_BYTES)))
        borders = list_borders(values)
        return ends[borders[1:]] - ends[borders[:-1]]
    if pa.types.is_struct(kind):
        return sum(
            (row_bytes(child) for child in values.flatten()), np.zeros(len(values), dtype=np.int64)
        )
    return np.full(len(values), _FIXED_BYTES, dtype=np.int64)


def rows_of(columns: Mapping[str, pa.Array]) -> Iterator[dict[str, object]]:
    """The rows of several columns, as objects."""
    names = list(columns)
    values = [to_python(column) for column in columns.values()]
    for row in zip(*values, strict=True):
        yield dict(zip(names, row, strict=True))


def to_python(values: pa.Array) -> list[object]:
    """The rows as lists, dicts, strings and numbers; text that is not UTF-8 stays bytes."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        entries = to_python(values.dictionary)
        return [None if i is None else entries[i] for i in values.indices.to_pylist()]
    if is_text(kind):
        return _texts(as_binary(values).to_pylist())
    if pa.types.is_map(kind):
        return [_pairs(row) for row in to_python(plain_list(values))]
    if is_list(kind):
        items = to_python(values.flatten())
        rows: list[object] = [
            items[start:end] for start, end in pairwise(list_borders(values).tolist())
        ]
    elif pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [to_python(child) for child in values.flatten()]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    else:
        return list(_without_nanoseconds(values).to_pylist())
    if values.null_count:
        valid = values.is_valid().to_pylist()
        rows = [row if there else None for row, there in zip(rows, valid, strict=True)]
    return rows


def _without_nanoseconds(values: pa.Array) -> pa.Array:
    """Times in microseconds, which is what Python's have; a `DataError` where that would drop digits."""
    kind, types = values.type, pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        coarse = pa.timestamp("us", tz=kind.tz)
    elif types.is_duration(kind) and kind.unit == "ns":
        coarse = pa.duration("us")
    elif types.is_time64(kind) and kind.unit == "ns":
        coarse = pa.time64("us")
    else:
        return values
    try:
        return values.cast(coarse)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"a value of type {kind} has nanoseconds, and a template takes microseconds at most",
            remedy=f"write the file again with these values as {coarse}, or as text",
        ) from error


def fast_turns(messages: pa.Array, reading: ExampleReading) -> list[list[Turn]] | None:
    """The turns of each row of a list of structs, or None where a row needs a closer look."""
    if not is_list(messages.type) or messages.null_count:
        return None
    flat = messages.flatten()
    if not pa.types.is_struct(flat.type) or flat.null_count:
        return None
    children = dict(zip((field.name for field in flat.type), flat.flatten(), strict=True))
    roles = to_python(children[reading.column("role")])
    contents = to_python(children[reading.column("content")])
    borders = list_borders(messages)
    is_plain = all(type(text) is str for text in roles) and all(type(t) is str for t in contents)
    if not is_plain or (np.diff(borders) == 0).any():
        return None
    turns: list[Turn] = list(map(Turn, roles, contents))  # type: ignore[arg-type]
    return [turns[start:end] for start, end in pairwise(borders.tolist())]


def check_damage(values: pa.Array) -> None:
    """Refuse offsets that lie outside: a mapped file may hold anything. Raises an error of Arrow's."""
    values.validate(full=False)
    values = plain_list(values)
    kind = values.type
    if is_text(kind):
        checked(values)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            check_damage(values.field(number))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = as_numbers(values.offsets)
        if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > len(values.values):
            raise pa.ArrowInvalid("a list lies outside its column")
        check_damage(values.values)
    else:
        values.validate(full=True)


def _check_kind(
    kind: pa.DataType | None,
    name: str,
    column: str,
    path: str,
    schema: pa.Schema,
    reading: ExampleReading,
) -> None:
    remedy = f"pass `--column {name}=NAME`, or another `--examples` (chat, instruction, completion)"
    if kind is None:
        raise UsageError(
            f"{path} has no column {column!r}; its columns are: {', '.join(schema.names) or 'none'}",
            remedy=remedy,
        )
    if name != "messages":
        if not is_text(kind):
            raise UsageError(f"{path}: column {column!r} holds {kind}, not text", remedy=remedy)
        return
    message = kind.value_type if is_list(kind) else kind
    keys = [reading.column("role"), reading.column("content")]
    there = [field.name for field in message] if pa.types.is_struct(message) else []
    if not there:
        raise UsageError(f"{path}: column {column!r} holds {kind}, not messages", remedy=remedy)
    for key in keys:
        if key not in there:
            raise UsageError(
                f"{path}: the messages in {column!r} have no {key!r}; they have: {', '.join(there)}",
                remedy="pass `--column messages=NAME,role=NAME,content=NAME` with the names in the file",
            )


def _pairs(entries: object) -> object:
    """The entries of a map as pairs, which is how Arrow shows them."""
    return [tuple(entry.values()) for entry in entries] if isinstance(entries, list) else entries


def _texts(values: Sequence[bytes | None]) -> list[object]:
    try:
        return [None if value is None else value.decode() for value in values]
    except UnicodeDecodeError:
        return [
            value if value is None or not is_utf8(value) else value.decode() for value in values
        ]
