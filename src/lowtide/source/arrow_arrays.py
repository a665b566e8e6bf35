"""Between Arrow and numpy by their buffers alone.

Arrow's own ways (`to_numpy`, `pa.array`, `pa.scalar`, a number handed to a compute function) import pandas
where it is installed: 45 MiB and half a second, for nothing that is needed here.
"""

from __future__ import annotations

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
