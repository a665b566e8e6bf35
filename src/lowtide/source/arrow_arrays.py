"""Between Arrow and numpy by their buffers alone.

Arrow's own ways (`to_numpy`, `pa.array`, `pa.scalar`, a number handed to a compute function) import pandas
where it is installed: 45 MiB and half a second, for nothing that is needed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


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
    """The same rows, with all that says where values lie (offsets, views, indices, null flags) copied.

    `dictionary` is the one of a dictionary column, if that has a copy of its own already.

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
