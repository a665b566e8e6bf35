"""What Arrow and Parquet files take in memory is known before Arrow reads them, and it is what Arrow takes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError
from lowtide.source import read_parquet
from lowtide.source.arrow_messages import allocated_bytes, read_messages
from lowtide.source.find_inputs import find_inputs
from lowtide.source.parquet_pages import (
    expanded_lengths,
    read_packed,
    value_lengths,
    walk_pages,
)
from lowtide.source.rows import text_lengths
from lowtide.source.sample import sample_inputs
from lowtide.source.stream import measure_extent, read_blocks
from lowtide.source.thrift import DamagedParquetError, ThriftReader
from lowtide.units import KIB, MIB
from tests.column_files import (
    ARROW_CODECS,
    ARROW_FORMS,
    PAGE_VERSIONS,
    PARQUET_CODECS,
    PARQUET_ENCODINGS,
    TEXT_TYPES,
    ArrowForm,
    alias_metadata,
    footer_of_chunks,
    hide_schema_in_parquet,
    large_metadata,
    lie_about_unpacked,
    varint,
    wrap_footer,
    write_arrow,
    write_parquet,
    zigzag,
)
from tests.source.readings import MARK, START, assert_laws, joined, read, reading, write_rows

ROWS = ["one", "two words", "", "one", "long " * 20_000, "two words and more"]
NEAR_DUPLICATES = [f"{'the same words ' * 2000}{number}" for number in range(2000)]


def table_of(rows: list[str], kind: pa.DataType) -> pa.Table:
    other = pa.array([[{"a": number, "b": "beside"}] for number in range(len(rows))])
    text = pa.array(rows, pa.string()).cast(kind)
    return pa.table({"other": other, "text": text, "last": ["x" * 500] * len(rows)})


@pytest.mark.parametrize("codec", ARROW_CODECS)
@pytest.mark.parametrize("form", ARROW_FORMS)
@pytest.mark.parametrize("kind", TEXT_TYPES)
def test_every_form_of_arrow_is_read(
    tmp_path: Path, kind: str, form: ArrowForm, codec: str | None
) -> None:
    table = table_of(ROWS, TEXT_TYPES[kind])
    path = write_arrow(tmp_path / "a.arrow", table, form=form, codec=codec, batch_rows=2)
    assert assert_laws([path], reading()).text == joined(ROWS, MARK)
    assert measure_extent(find_inputs([str(path)])[0]) == len(ROWS)


@pytest.mark.parametrize("codec", ARROW_CODECS)
@pytest.mark.parametrize("form", ARROW_FORMS)
@pytest.mark.parametrize("kind", TEXT_TYPES)
def test_arrow_allocates_what_was_computed(
    tmp_path: Path, kind: str, form: ArrowForm, codec: str | None
) -> None:
    """Nothing for stored buffers, also in the file format; the unpacked lengths of compressed ones."""
    table = table_of(ROWS * 20, TEXT_TYPES[kind])
    path = write_arrow(tmp_path / "a.arrow", table, form=form, codec=codec)
    data = path.read_bytes()
    sizes = [
        allocated_bytes(message, table.schema, [1], is_native=True)
        for message in read_messages(memoryview(data))
        if message.is_records
    ]
    _, records = _read_batches(path, form, [1])
    rounding = 64 * 8  # each buffer is rounded up
    assert sum(sizes) <= records <= sum(sizes) + rounding
    assert codec is not None or not records


def _read_batches(path: Path, form: ArrowForm, fields: list[int]) -> tuple[int, int]:
    """Rows, and what Arrow holds for these fields of a file's batches, its dictionaries apart."""
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    with pa.memory_map(str(path)) as source:
        source.seek(8 if form == "file" else 0)  # behind the magic lies a stream
        reader = pa.ipc.open_stream(source, options=options)
        pool = pa.default_memory_pool()
        before = pool.bytes_allocated()
        batches = list(reader)
        held = pool.bytes_allocated() - before
        for batch in batches:
            for column in batch.columns:
                if pa.types.is_dictionary(column.type) and held:
                    held -= sum(-(-b.size // 64) * 64 for b in column.dictionary.buffers() if b)
        return sum(map(len, batches)), held


def test_a_mapped_batch_is_not_copied(tmp_path: Path) -> None:
    rows = ["words and more words " * 100] * 10_000
    path = write_arrow(tmp_path / "a.feather", table_of(rows, pa.string()))
    assert path.stat().st_size > 20 * MIB
    settings = reading(document_limit_bytes=MIB, block_bytes=256 * KIB)
    start = pa.total_allocated_bytes()
    peak = 0
    for _ in read_blocks(find_inputs([str(path)]), settings, start=START):
        peak = max(peak, pa.total_allocated_bytes() - start)
    assert peak < 2 * MIB


@pytest.mark.parametrize("form", ARROW_FORMS)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_batch_is_refused_before_it_is_unpacked(
    tmp_path: Path, form: ArrowForm, codec: str
) -> None:
    rows = ["words and more words " * 100] * 10_000
    path = write_arrow(tmp_path / "a.arrow", table_of(rows, pa.string()), form=form, codec=codec)
    assert_refused_unread(path)
    assert len(b"".join(read(path, document_limit_bytes=16 * MIB))) > 20 * MIB


@pytest.mark.parametrize("form", ARROW_FORMS)
@pytest.mark.parametrize("claimed", [2**62, 2**40, 100 * MIB, -2])
def test_a_buffer_that_lies_about_its_length_is_refused(
    tmp_path: Path, form: ArrowForm, claimed: int
) -> None:
    value = "some words " * 9091
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": [value]}), form=form, codec="zstd")
    path.write_bytes(lie_about_unpacked(path.read_bytes(), len(value), claimed))
    assert_refused_unread(path)


@pytest.mark.parametrize("form", ARROW_FORMS)
def test_metadata_that_is_one_entry_many_times_is_refused(tmp_path: Path, form: ArrowForm) -> None:
    """20 KB of entries and one of 20 KB: 100 MB once each entry is the long one."""
    table = pa.table({"text": ["a"]}).replace_schema_metadata(large_metadata(20_000, 4999))
    path = write_arrow(tmp_path / "a.arrow", table, form=form)
    assert read(path, document_limit_bytes=4 * MIB) == [b"a" + MARK]
    path.write_bytes(alias_metadata(path.read_bytes(), 4999))
    assert_refused_unread(path)


def test_an_arrow_schema_inside_a_parquet_file_is_measured_too(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string())], metadata=large_metadata(20_000, 4999))
    message = schema.serialize().to_pybytes()
    path = hide_schema_in_parquet(tmp_path / "a.parquet", message)
    assert read(path, document_limit_bytes=4 * MIB) == [b"some text" + MARK]
    hide_schema_in_parquet(path, alias_metadata(message, 4999))
    assert_refused_unread(path)


@pytest.mark.parametrize(
    "footer",
    [
        footer_of_chunks(1, claimed=900_000),
        footer_of_chunks(1, claimed=2**31 - 1),
        footer_of_chunks(50_000),
        footer_of_chunks(1, columns=20_000),
    ],
    ids=["claims 900,000 chunks", "claims 2^31 chunks", "50,000 chunks", "20,000 columns"],
)
def test_a_small_footer_that_stands_for_much_is_refused(tmp_path: Path, footer: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(wrap_footer(footer))
    assert_refused_unread(path)


def assert_refused_unread(path: Path) -> None:
    """A `DataError` with a remedy, and Arrow has allocated next to nothing."""
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(DataError) as caught:
        read(path, document_limit_bytes=4 * MIB)
    assert caught.value.remedy
    assert pa.default_memory_pool().bytes_allocated() - before < MIB


TEXTS = st.lists(st.text(alphabet="ab ", max_size=40) | st.none(), min_size=1, max_size=300)


@given(
    rows=TEXTS,
    codec=st.sampled_from(PARQUET_CODECS),
    version=st.sampled_from(PAGE_VERSIONS),
    shared=st.integers(0, 5000),
)
def test_expanded_lengths_are_those_of_the_values(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[str | None],
    codec: str,
    version: str,
    shared: int,
) -> None:
    rows = [None if row is None else "x" * shared + row for row in rows]
    path = tmp_path_factory.mktemp("delta") / "a.parquet"
    write_parquet(path, rows, encoding="DELTA_BYTE_ARRAY", codec=codec, page_version=version)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = chunk.data_page_offset
    found: list[int] = []
    with path.open("rb") as stored:
        for page in walk_pages(stored, start, start + chunk.total_compressed_size):
            assert page.is_expanded
            found += expanded_lengths(stored, page, chunk.compression, level_kinds=1).tolist()
    assert found == [len(row) for row in rows if row is not None]


@given(data=st.binary(max_size=60))
def test_packed_lengths_that_are_none_are_an_error(data: bytes) -> None:
    try:
        lengths = value_lengths(memoryview(data), 1000)
    except DamagedParquetError:
        return
    assert len(lengths) <= 1000
    assert (lengths >= 0).all()


def test_a_count_of_packed_lengths_costs_nothing_until_it_is_checked() -> None:
    """Ten bytes that stand for 2^40 lengths."""
    packed = varint(2**40) + varint(1) + varint(2**40) + zigzag(0) + zigzag(0) + b"\x00"
    with pytest.raises(DamagedParquetError):
        value_lengths(memoryview(packed), 1000)


@pytest.mark.parametrize("version", PAGE_VERSIONS)
@pytest.mark.parametrize("encoding", PARQUET_ENCODINGS)
@pytest.mark.parametrize("codec", PARQUET_CODECS)
def test_every_form_of_parquet_is_read(
    tmp_path: Path, codec: str, encoding: str, version: str
) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", ROWS, encoding=encoding, codec=codec, page_version=version
    )
    assert b"".join(read(path)) == joined(ROWS, MARK)
    assert measure_extent(find_inputs([str(path)])[0]) == len(ROWS)


@pytest.mark.parametrize("version", PAGE_VERSIONS)
def test_near_duplicates_are_expanded_a_few_at_a_time(tmp_path: Path, version: str) -> None:
    """60 MB out of a few kilobytes."""
    path = write_parquet(
        tmp_path / "a.parquet",
        NEAR_DUPLICATES,
        encoding="DELTA_BYTE_ARRAY",
        codec="zstd",
        page_version=version,
    )
    assert path.stat().st_size < 100 * KIB
    settings = reading(document_limit_bytes=MIB, block_bytes=256 * KIB)
    start = pa.total_allocated_bytes()
    count = peak = 0
    for block in read_blocks(find_inputs([str(path)]), settings, start=START):
        count += block.document_count
        peak = max(peak, pa.total_allocated_bytes() - start)
    assert count == len(NEAR_DUPLICATES)
    assert peak < 4 * MIB


def test_a_value_that_is_too_long_once_expanded_is_refused(tmp_path: Path) -> None:
    value = "x" * (5 * MIB)
    path = write_parquet(
        tmp_path / "a.parquet", [value] * 20, encoding="DELTA_BYTE_ARRAY", codec="none"
    )
    with pytest.raises(DataError) as caught:
        read(path, document_limit_bytes=4 * MIB)
    assert "--memory" in caught.value.remedy
    assert len(b"".join(read(path, document_limit_bytes=6 * MIB))) > 100 * MIB


def test_a_sample_stays_small_though_the_file_is_smaller_still(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", NEAR_DUPLICATES, encoding="DELTA_BYTE_ARRAY", codec="zstd"
    )
    settings = reading(document_limit_bytes=MIB, block_bytes=128 * KIB)
    samples = sample_inputs(find_inputs([str(path)]), settings, count=16)
    assert MIB < sum(sample.text_bytes for sample in samples) < 5 * MIB


@given(
    rows=st.lists(st.text(max_size=30) | st.none(), max_size=40),
    start=st.integers(0, 20),
    kind=st.sampled_from(sorted(TEXT_TYPES)),
)
def test_lengths_are_those_of_the_rows(rows: list[str | None], start: int, kind: str) -> None:
    values = pa.array(rows, pa.string()).cast(TEXT_TYPES[kind]).slice(start)
    wanted = [0 if row is None else len(row.encode()) for row in rows[start:]]
    assert text_lengths(values).tolist() == wanted


def dictionary_of(
    indices: list[int | None], entries: list[str | None], kind: pa.DataType
) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(entries, kind))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
@pytest.mark.parametrize("codec", ARROW_CODECS)
def test_rows_are_those_of_the_dictionary_before_them(
    tmp_path: Path, codec: str | None, kind: pa.DataType
) -> None:
    """Batches of more rows than are read at a time, with a new dictionary or with the one before."""
    expected, path = [], tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression=codec)
    schema = pa.schema([("text", pa.dictionary(pa.int32(), kind))])
    with pa.ipc.new_stream(path, schema, options=options) as writer:
        for number in (0, 0, 1, 2, 2, 0):
            entries = [f"entry {number}.{place}" for place in range(5)]
            indices = [row % 5 if row % 7 else None for row in range(70_000)]
            column = dictionary_of(indices, [None, *entries[1:]], kind)
            writer.write_batch(pa.record_batch([column], schema=schema))
            expected += [entries[index] for index in indices if index]
    found = b"".join(read(path, bad_text="skip")).split(reading().delimiter)
    assert found == [*(text.encode() for text in expected), b""]


@pytest.mark.parametrize("form", ARROW_FORMS)
def test_a_dictionary_with_more_offsets_than_fit_is_refused_where_it_is_read(
    tmp_path: Path, form: ArrowForm
) -> None:
    ends = np.zeros(3_000_001, dtype=np.int32)
    ends[-1] = 10
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"some words")]
    entries = pa.Array.from_buffers(pa.string(), 3_000_000, buffers)
    column = pa.DictionaryArray.from_arrays(pa.array([2_999_999], pa.int32()), entries)
    table = pa.table({"text": column, "other": ["more words"]})
    path = write_arrow(tmp_path / "a.arrow", table, form=form)
    with pytest.raises(DataError) as caught:
        read(path, document_limit_bytes=4 * MIB)
    assert "--memory" in caught.value.remedy
    delimiter = reading().delimiter
    assert read(path, document_limit_bytes=5 * MIB) == [b"some words" + delimiter]
    assert read(path, document_limit_bytes=MIB, column="other") == [b"more words" + delimiter]


def test_lengths_of_rows_take_no_memory_for_entries_that_they_do_not_name() -> None:
    entries = pa.Array.from_buffers(
        pa.string(), MIB, [None, pa.py_buffer(bytes(4 * MIB + 4)), pa.py_buffer(b"")]
    )
    values = pa.DictionaryArray.from_arrays(pa.array([0, MIB - 1], pa.int32()), entries)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        assert text_lengths(values).tolist() == [0, 0]
        assert tracemalloc.get_traced_memory()[1] < MIB
        assert pa.total_allocated_bytes() - before < MIB
    finally:
        tracemalloc.stop()


def test_lengths_of_views_do_not_write_them_out() -> None:
    """A million views of one text of 1 MB, as a file may hold them."""
    text = b"x" * MIB
    view = np.array([len(text), 0, 0, 0], dtype=np.int32).tobytes()
    buffers = [None, pa.py_buffer(view * 10_000), pa.py_buffer(text)]
    values = pa.Array.from_buffers(pa.string_view(), 10_000, buffers)
    before = pa.default_memory_pool().max_memory()
    assert text_lengths(values).sum() == 10_000 * MIB
    assert pa.default_memory_pool().max_memory() - before < MIB


def test_wide_packed_numbers_take_little_memory() -> None:
    """A miniblock may hold all numbers of a page, each of 64 bits, and a bit of it takes bytes to unpack."""
    count = 32 * 4096
    numbers = np.random.default_rng(1).integers(0, 1 << 62, count, dtype=np.int64)
    head = _leb(count) + _leb(1) + _leb(count + 1) + _leb(0) + _leb(0) + bytes([64])
    tracemalloc.start()
    found, end = read_packed(memoryview(head + numbers.tobytes()), count + 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found[1:], np.cumsum(numbers))
    assert end == len(head) + numbers.nbytes
    assert peak < 8 * numbers.nbytes


def _leb(number: int) -> bytes:
    """A varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_miniblocks_of_a_size_that_the_format_does_not_have_are_refused() -> None:
    with pytest.raises(DamagedParquetError):
        read_packed(memoryview(_leb(30) + _leb(1) + _leb(31) + _leb(0) + bytes(40)), 31)


def test_a_footer_is_walked_once_for_each_version_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    walked = read_parquet._measure_footer.cache_info
    for rows in (["one"], ["two", "three"]):
        write_rows(path, rows)
        before = walked().misses
        for _ in range(3):
            assert b"".join(read(path)) == joined(rows, MARK)
        assert walked().misses == before + 1


@pytest.mark.parametrize(
    ("number", "stored"), [(0, b"\0"), (300, b"\xac\x02"), (2**64 - 1, b"\xff" * 9 + b"\1")]
)
def test_numbers_of_seven_bits_a_byte(number: int, stored: bytes) -> None:
    reader = ThriftReader(b"x" + stored + b"y", 1)
    assert (reader.varint(), reader.place) == (number, 1 + len(stored))
    with pytest.raises(IndexError):
        ThriftReader(stored[:-1]).varint()
    with pytest.raises(DamagedParquetError):
        ThriftReader(b"\x80" * 11).varint()
    assert [ThriftReader(bytes([value])).zigzag() for value in range(4)] == [0, -1, 1, -2]
