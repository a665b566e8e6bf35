"""Arrow columns: which of a schema holds the text, and its values by their buffers alone.

Arrow's own conversions (`to_numpy`, `pa.array`, `pa.scalar`, a number handed to a compute function) import
pandas where it is installed: 45 MiB and half a second, for nothing that is needed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowtide.errors import UsageError
from lowtide.source.examples.settings import suggest_examples


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


def is_list(kind: pa.DataType) -> bool:
    """Whether values of the type are lists, of any length or of a fixed one."""
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def check_column(schema: pa.Schema, column: str, path: str) -> None:
    """Refuse a column that does not exist or does not hold text."""
    leaves = list(_leaves(schema, ""))
    kinds = dict(leaves)
    if [name for name, _ in leaves].count(column) > 1:
        raise UsageError(
            f"{path} has several columns called {column!r}",
            remedy="rename them, so that `--column` can name one",
        )
    candidates = ", ".join(name for name, kind in leaves if is_text(kind))
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
    name, *inner = _steps(batch.schema, column)
    values = batch.column(name)
    for name in inner:
        values = values.flatten()[values.type.get_field_index(name)]
    return values


def find_type(schema: pa.Schema, column: str) -> pa.DataType | None:
    """The type of a column by name or dotted path into structs; None if there is no such column."""
    found = None
    for name in _steps(schema, column):
        found = (schema if found is None else found).field(name).type
    return found


def top_level_name(schema: pa.Schema, column: str) -> str:
    """The column of the schema that holds a dotted path."""
    return _steps(schema, column)[0]


def _steps(fields: pa.Schema | pa.DataType, path: str) -> list[str]:
    """The fields that a dotted path leads through, if it leads to one. A field's name may hold dots itself."""
    for field in fields:
        if path == field.name:
            return [path]
        if path.startswith(field.name + ".") and pa.types.is_struct(field.type):
            inner = _steps(field.type, path.removeprefix(field.name + "."))
            if inner:
                return [field.name, *inner]
    return []


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


def text_lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each row, 0 for a null. The values of a dictionary or of views are not written out."""
    if pa.types.is_dictionary(values.type):
        return _lengths_of_entries(values.dictionary, values.indices)
    if _has_views(values.type):
        return _view_lengths(values)
    return as_numbers(pc.binary_length(as_binary(values)))


def _lengths_of_entries(entries: pa.Array, indices: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of the entries that are asked for; a dictionary may have far more of them."""
    if _has_views(entries.type):
        stored = [None, pa.py_buffer(text_lengths(entries))]
        lengths = pa.Array.from_buffers(pa.int64(), len(entries), stored)
        return as_numbers(lengths.take(indices))
    is_wide = pa.types.is_large_string(entries.type) or pa.types.is_large_binary(entries.type)
    kind = pa.int64() if is_wide else pa.int32()
    nulls, ends, _ = entries.buffers()
    if not len(entries):
        ends = pa.py_buffer(bytes(16))  # a column of no rows may have no offsets

    def taken(buffer: pa.Buffer) -> npt.NDArray[np.int64]:
        places = pa.Array.from_buffers(kind, len(entries), [nulls, buffer], offset=entries.offset)
        return as_numbers(places.take(indices))

    return taken(ends.slice(kind.bit_width // 8)) - taken(ends)


def _has_views(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _view_lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """A view is 16 bytes of which the first four are its length; the text itself may lie anywhere."""
    if not len(values):
        return np.empty(0, dtype=np.int64)
    views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, 4)
    lengths = views[values.offset : values.offset + len(values), 0].astype(np.int64)
    lengths[~valid_rows(values)] = 0
    return lengths


def as_binary(values: pa.Array) -> pa.Array:
    """A column of text as plain bytes: whether they are UTF-8 is checked later, by the policy."""
    if pa.types.is_dictionary(values.type):
        values = as_binary(values.dictionary).take(values.indices)
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return values
    wide = pa.types.is_large_string(values.type)
    return values.cast(pa.large_binary() if wide else pa.binary())


def plain_list(values: pa.Array) -> pa.Array:
    """A map as the list of structs that it is; any other column unchanged."""
    kind = values.type
    return values.cast(pa.list_(kind.field(0).type)) if pa.types.is_map(kind) else values


def list_borders(values: pa.Array) -> npt.NDArray[np.int64]:
    """Where each row's items begin in the flattened column, and where the last ends."""
    lengths = as_numbers(pc.list_value_length(values))
    return np.concatenate(([0], np.cumsum(lengths)))


def as_numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    """An int32 or int64 column as numbers, 0 where it is null."""
    if not len(values):
        return np.empty(0, dtype=np.int64)
    kind = np.int64 if pa.types.is_int64(values.type) else np.int32
    part = slice(values.offset, values.offset + len(values))
    numbers = np.frombuffer(values.buffers()[1], dtype=kind)[part].astype(np.int64)
    numbers[~valid_rows(values)] = 0
    return numbers


def valid_rows(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Which rows of a column are not null. Looks at no other rows of the buffer that they lie in."""
    validity = values.buffers()[0]
    if validity is None or not values.null_count:
        return np.ones(len(values), dtype=np.bool_)
    first, stop = values.offset // 8, -(-(values.offset + len(values)) // 8)
    stored = np.frombuffer(validity, dtype=np.uint8)[first:stop]
    bits = np.unpackbits(stored, bitorder="little")[values.offset - 8 * first :]
    return bits[: len(values)].astype(np.bool_)


def keep_rows(values: pa.Array, kept: npt.NDArray[np.bool_]) -> pa.Array:
    """The rows whose flag is set; the column itself when all are."""
    if kept.all():
        return values
    bits = pa.py_buffer(np.packbits(kept, bitorder="little"))
    return values.filter(pa.Array.from_buffers(pa.bool_(), len(values), [None, bits]))


def repeat_value(value: bytes, count: int, kind: pa.DataType) -> pa.Array:
    """A binary column of one value, over and over."""
    width = np.int64 if pa.types.is_large_binary(kind) else np.int32
    ends = np.arange(count + 1, dtype=width) * len(value)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(value * count)]
    return pa.Array.from_buffers(kind, count, buffers)


def own_shape(values: pa.Array, dictionary: pa.Array | None = None) -> pa.Array:
    """The rows, with copies of all buffers that say where values lie (offsets, views, indices, null flags).

    `dictionary` is that of a dictionary column, if it was copied before.

    A mapped file may change while it is read: offsets that were checked must not become others before they
    are used, or Arrow reads outside its buffers. Text and numbers stay in the map; at worst they are wrong.
    """
    kind, count = values.type, len(values)
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        ends = _own_part(values, np.dtype(np.int32), count + 1)
        return _rebuilt(values, [pa.py_buffer(ends), values.buffers()[2]])
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, own_shape(values.storage))
    if types.is_dictionary(kind):
        indices = _own_numbers(values.indices)
        if dictionary is None:
            dictionary = own_shape(values.dictionary)
        return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered)
    if types.is_struct(kind):
        fields = [own_shape(values.field(number)) for number in range(kind.num_fields)]
        return _rebuilt(values, [], fields)
    if types.is_fixed_size_list(kind):
        start = values.offset * kind.list_size
        items = values.values.slice(start, count * kind.list_size)
        return _rebuilt(values, [], [own_shape(items)])
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = _own_part(values, np.dtype("V16"), count)
        return _rebuilt(values, [pa.py_buffer(views), *values.buffers()[2:]])
    if types.is_large_string(kind) or types.is_large_binary(kind):
        ends = _own_part(values, np.dtype(np.int64), count + 1)
        return _rebuilt(values, [pa.py_buffer(ends), values.buffers()[2]])
    if types.is_list(kind) or types.is_map(kind):
        return _own_list(values, _own_part(values, np.dtype(np.int32), count + 1))
    if types.is_large_list(kind):
        return _own_list(values, _own_part(values, np.dtype(np.int64), count + 1))
    return values


def checked(values: pa.Array) -> pa.Array:
    """The column, text as bytes, once its offsets are known to lie inside it: a file may lie about them."""
    if pa.types.is_dictionary(values.type):
        checked(values.dictionary)
        return checked_indices(values)
    values.validate(full=False)
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    elif pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    values.validate(full=True)
    return values


def checked_indices(values: pa.Array) -> pa.Array:
    """A dictionary column, once its indices are checked too; its dictionary was checked before."""
    values.validate(full=False)
    values.indices.validate(full=True)
    return values


def _own_list(values: pa.Array, ends: npt.NDArray[np.signedinteger]) -> pa.Array:
    """A list or map with these offsets, which are made to begin at 0."""
    items = values.values
    if not 0 <= ends[0] <= ends[-1] <= len(items):
        raise pa.ArrowInvalid("a list lies outside its column")
    items = items.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return _rebuilt(values, [pa.py_buffer(ends - ends[0])], [own_shape(items)])


def _own_numbers(values: pa.Array) -> pa.Array:
    kind = np.dtype(f"V{values.type.bit_width // 8}")
    return _rebuilt(values, [pa.py_buffer(_own_part(values, kind, len(values)))])


def _own_part(values: pa.Array, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """A copy of `count` numbers of the second buffer, from the array's first row on."""
    stored = values.buffers()[1]
    if stored is None or stored.size < (values.offset + count) * kind.itemsize:
        if not len(values):
            return np.zeros(count, kind)  # a column of no rows may have no offsets
        raise pa.ArrowInvalid("a buffer is shorter than its column")
    return np.frombuffer(stored, kind, count, values.offset * kind.itemsize).copy()


def _rebuilt(
    values: pa.Array, buffers: list[pa.Buffer], children: list[pa.Array] | None = None
) -> pa.Array:
    """The array out of other buffers, which begin at its first row."""
    nulls = None
    if values.buffers()[0] is not None:
        nulls = pa.py_buffer(np.packbits(valid_rows(values), bitorder="little"))
    return pa.Array.from_buffers(
        values.type, len(values), [nulls, *buffers], children=children or None
    )
