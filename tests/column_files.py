"""Arrow and Parquet files in every form that pyarrow writes, and hostile ones, for tests and for bench/."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ArrowForm = Literal["file", "stream"]
ARROW_FORMS: tuple[ArrowForm, ...] = ("file", "stream")
ARROW_CODECS = (None, "lz4", "zstd")
TEXT_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
PARQUET_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
PARQUET_ENCODINGS = ("PLAIN", "dictionary", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
PAGE_VERSIONS = ("1.0", "2.0")


def write_arrow(
    path: Path,
    table: pa.Table,
    *,
    form: ArrowForm = "file",
    codec: str | None = None,
    batch_rows: int | None = None,
) -> Path:
    """The table in record batches of `batch_rows`, or in one."""
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=batch_rows or len(table))
    return path


def write_parquet(
    path: Path,
    texts: Sequence[str | None],
    *,
    encoding: str = "PLAIN",
    codec: str = "none",
    page_version: str = "1.0",
    kind: pa.DataType | None = None,
) -> Path:
    """One column of text in one row group."""
    is_dictionary = encoding == "dictionary"
    pq.write_table(
        pa.table({"text": pa.array(texts, kind or pa.string())}),
        path,
        compression=codec,
        use_dictionary=is_dictionary,
        column_encoding=None if is_dictionary else {"text": encoding},
        data_page_version=page_version,
        row_group_size=max(1, len(texts)),
    )
    return path


def varint(number: int) -> bytes:
    """As Thrift and Parquet write numbers."""
    stored = b""
    while number > 127:
        stored += bytes([number & 127 | 128])
        number >>= 7
    return stored + bytes([number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def wrap_footer(footer: bytes) -> bytes:
    """A Parquet file that is nothing but a footer."""
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def footer_of_chunks(
    count: int, *, claimed: int | None = None, columns: int = 1, name: bytes = b"text"
) -> bytes:
    """A footer whose one row group has `count` column chunks of three bytes, or claims more."""
    root = b"\x48\x01r\x15" + zigzag(columns) + b"\x00"
    leaves = b"\x15" + zigzag(6) + b"\x25\x00" + b"\x18" + varint(len(name)) + name + b"\x00"
    chunks = _struct_list(claimed or count) + b"\x26\x00\x00" * count
    group = b"\x19" + chunks + b"\x16" + zigzag(1) + b"\x16" + zigzag(1) + b"\x00"
    schema = _struct_list(1 + columns) + root + leaves * columns
    return (
        b"\x15\x02\x19" + schema + b"\x16" + zigzag(1) + b"\x19" + _struct_list(1) + group + b"\x00"
    )


def write_wide_lengths(path: Path, texts: Sequence[str], *, count: int) -> Path:
    """A Parquet file of the texts and empty values behind them, `count` in all, in one DELTA_BYTE_ARRAY page.

    Their lengths take 32 bits each and are all in one miniblock: no writer does that, and the format allows it.
    """
    rests = np.zeros(count, dtype=np.int64)
    rests[: len(texts)] = [len(text.encode()) for text in texts]
    lengths = _pack_wide(np.zeros_like(rests)) + _pack_wide(rests)
    unpacked = lengths + "".join(texts).encode()
    page = pa.compress(unpacked, codec="zstd", asbytes=True)
    sizes = zigzag(len(unpacked)), zigzag(len(page))
    values = zigzag(count)
    described = b"\x15" + values + b"\x15" + zigzag(7) + (b"\x15" + zigzag(3)) * 2 + b"\x00"
    header = b"\x15\x00\x15" + sizes[0] + b"\x15" + sizes[1] + b"\x2c" + described + b"\x00"
    column = b"\x15" + zigzag(6) + b"\x19\x15" + zigzag(7) + b"\x19\x18\x04text"
    column += b"\x15" + zigzag(6) + b"\x16" + values + b"\x16" + sizes[0]
    column += b"\x16" + zigzag(len(header + page)) + b"\x26" + zigzag(4) + b"\x00"
    chunk = b"\x26" + zigzag(4) + b"\x1c" + column + b"\x00"
    group = b"\x19" + _struct_list(1) + chunk + b"\x16" + sizes[0] + b"\x16" + values + b"\x00"
    root = b"\x48\x01r\x15" + zigzag(1) + b"\x00"
    leaf = b"\x15" + zigzag(6) + b"\x25\x00\x18\x04text\x00"
    footer = b"\x15\x02\x19" + _struct_list(2) + root + leaf
    footer += b"\x16" + values + b"\x19" + _struct_list(1) + group + b"\x00"
    path.write_bytes(b"PAR1" + header + page + wrap_footer(footer)[4:])
    return path


def _pack_wide(lengths: npt.NDArray[np.int64]) -> bytes:
    """DELTA_BINARY_PACKED in one miniblock of 32 bits a number."""
    steps = np.diff(lengths)
    least = int(steps.min())
    block = -(-len(steps) // 128) * 128
    head = varint(block) + varint(1) + varint(len(lengths)) + zigzag(int(lengths[0]))
    packed = np.zeros(block, dtype="<u4")
    packed[: len(steps)] = steps - least
    return head + zigzag(least) + b"\x20" + packed.tobytes()


def _struct_list(count: int) -> bytes:
    return bytes([count << 4 | 12]) if count < 15 else b"\xfc" + varint(count)


def alias_metadata(data: bytes, entry_count: int) -> bytes:
    """A file or stream whose `entry_count` entries of metadata all become the longest one.

    Finds the list of offsets by its length, which must be a number that stands nowhere else.
    """
    changed = bytearray(data)
    start = 0
    while (place := data.find(struct.pack("<I", entry_count), start)) >= 0:
        first = place + 4
        targets = [first + 4 * n + _u32(data, first + 4 * n) for n in range(entry_count)]
        if all(target < len(data) for target in targets):
            longest = max(targets, key=lambda target: _value_bytes(data, target))
            for number in range(entry_count):
                here = first + 4 * number
                if longest > here:
                    struct.pack_into("<I", changed, here, longest - here)
        start = place + 4
    return bytes(changed)


def _u32(data: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])


def _value_bytes(data: bytes, table: int) -> int:
    """The length of the second string of a flatbuffer's table; 0 where it is none."""
    try:
        vtable = table - struct.unpack_from("<i", data, table)[0]
        offset = struct.unpack_from("<H", data, vtable + 6)[0]
        place = table + offset
        return _u32(data, place + _u32(data, place))
    except struct.error:
        return 0


def large_metadata(value_bytes: int, entry_count: int) -> dict[str, str]:
    """Metadata of one long value, first in the file's order or not, and short ones."""
    return {f"key {n:07d}": "v" * (value_bytes if n == 0 else 1) for n in range(entry_count)}


def hide_schema_in_parquet(path: Path, schema_message: bytes) -> Path:
    """A Parquet file that carries an Arrow schema of one's choice."""
    table = pa.table({"text": ["some text"]})
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(schema_message).decode()})
    return path


def lie_about_unpacked(data: bytes, true_bytes: int, claimed_bytes: int) -> bytes:
    """An Arrow file with a compressed buffer that claims another length than it has."""
    assert data.count(struct.pack("<q", true_bytes)) >= 1
    return data.replace(struct.pack("<q", true_bytes), struct.pack("<q", claimed_bytes))
