"""Finding the text column in an Arrow schema, or saying which columns there are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lowtide.errors import UsageError
from lowtide.source.examples.settings import suggest_examples


def text_columns(schema: pa.Schema) -> list[str]:
    """The names `--column` could take here, nested ones with dots."""
    return [name for name, kind in _leaves(schema, "") if is_text(kind)]


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are text, or bytes that may be text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
    )
    return any(check(kind) for check in checks)


def check_column(schema: pa.Schema, column: str, path: str) -> None:
    """Refuse a column that is not there or holds something else than text."""
    leaves = list(_leaves(schema, ""))
    kinds = dict(leaves)
    if [name for name, _ in leaves].count(column) > 1:
        raise UsageError(
            f"{path} has several columns called {column!r}",
            remedy="rename them, so that `--column` can name one",
        )
    candidates = ", ".join(text_columns(schema))
    remedy = "pass a file that has a column of text"
    if candidates:
        remedy = f"pass `--column` with one of: {candidates}"
    if column not in kinds:
        there = ", ".join(kinds) or "none"
        if suggested := suggest_examples({field.name: _message_keys(field) for field in schema}):
            remedy = f"`lowtide tokenize` reads such rows with `{suggested}`; for text, {remedy}"
        raise UsageError(
            f"{path} has no column {column!r}; its columns are: {there}", remedy=remedy
        )
    if not is_text(kinds[column]):
        raise UsageError(
            f"{path}: column {column!r} holds {kinds[column]}, not text", remedy=remedy
        )


def pick_column(batch: pa.RecordBatch, column: str) -> pa.Array:
    """A batch's column by name or dotted path into structs; a null struct makes null values."""
    name, rest = _first_step(batch.schema, column)
    values = batch.column(name)
    while rest:
        name, rest = _first_step(values.type, rest)
        values = values.flatten()[values.type.get_field_index(name)]
    return values


def find_type(schema: pa.Schema, column: str) -> pa.DataType | None:
    """The type of a column by name or dotted path into structs; None: there is none."""
    fields, rest = schema, column
    while True:
        try:
            name, rest = _first_step(fields, rest)
        except AssertionError:
            return None
        found = fields.field(name).type
        if not rest:
            return found
        fields = found


def top_level_name(schema: pa.Schema, column: str) -> str:
    """The column of the schema that holds a dotted path."""
    return _first_step(schema, column)[0]


def _leaves(fields: pa.Schema | pa.DataType, prefix: str) -> Iterator[tuple[str, pa.DataType]]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


def _message_keys(field: pa.Field) -> list[str]:
    """The keys of each message in a column of messages; none for another column."""
    kind = field.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    message = kind.value_type if is_list else kind
    return [key.name for key in message] if pa.types.is_struct(message) else []


def _first_step(fields: pa.Schema | pa.DataType, path: str) -> tuple[str, str]:
    """The field a path begins with, and what is left of it. A field's name may hold dots itself."""
    for field in fields:
        if path == field.name:
            return path, ""
        if path.startswith(field.name + ".") and pa.types.is_struct(field.type):
            return field.name, path.removeprefix(field.name + ".")
    raise AssertionError(f"{path} was checked before")
