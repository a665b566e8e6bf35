"""Damaged and hostile input: a named error with a remedy, or a counted policy. Never a runaway."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

from lowtide.errors import DataError, UsageError
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import Cursor, read_blocks
from lowtide.source.utf8 import bad_places, is_utf8, replace_bad
from tests.cutting_jobs import cut_while_reading
from tests.source.readings import (
    MARK,
    START,
    assert_laws,
    joined,
    read,
    read_all,
    reading,
    write_rows,
    write_text,
)

BYTES = st.lists(
    st.sampled_from([b"a", "é".encode(), "中".encode(), "😀".encode(), "\ufffd".encode()])
    | st.binary(max_size=3),
    max_size=12,
).map(b"".join)


@given(data=BYTES, times=st.sampled_from([1, 3000]))
def test_utf8_is_judged_as_python_judges_it(data: bytes, times: int) -> None:
    data *= times
    fixed, count = replace_bad(data)
    assert fixed == data.decode("utf-8", "replace").encode()
    assert is_utf8(data) == (count == 0)
    assert len(bad_places(data)) == min(count, 100)


@pytest.mark.parametrize("separator", ["file", "<|x|>", "line", "blank-line"])
def test_bad_text_stops_and_names_file_and_offset(tmp_path: Path, separator: str) -> None:
    path = write_text(tmp_path / "a.txt", b"good\n\n<|x|>ab\xffcd")
    with pytest.raises(DataError, match=r"a\.txt.*0xff.*at byte 13") as caught:
        read(path, separator=separator)
    assert "--bad-text" in caught.value.remedy


def test_utf16_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(write_text(tmp_path / "a.txt", "hello".encode("utf-16")))
    assert "UTF-16" in caught.value.remedy


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("separator", ["<|x|>", "line", "blank-line"])
def test_bad_documents_are_skipped_whole(tmp_path: Path, separator: str, suffix: str) -> None:
    """Long ones too, although their damage lies far behind their first block."""
    between = {"<|x|>": b"<|x|>", "line": b"\n", "blank-line": b"\n\n"}[separator]
    long = b"many words " * 20_000
    documents = [b"one", b"two \xff", long, long + b"\xc3(" + long, b"three", long + b"\xe4\xb8"]
    path = write_text(tmp_path / f"a.txt{suffix}", between.join(documents))
    contents = assert_laws([path], reading(separator=separator, bad_text="skip"))
    kept = [document.decode() for document in (documents[0], documents[2], documents[4])]
    assert contents.text == joined(kept, reading(separator=separator).delimiter)
    assert contents.bad_count == 3
    before = sum(len(document) + len(between) for document in documents[:3])
    assert [row.position for row in contents.bad][:2] == [
        len(documents[0] + between) + 4,
        before + len(long),
    ]


@pytest.mark.parametrize("separator", ["file", "<|x|>"])
def test_bad_bytes_are_replaced_as_python_replaces_them(tmp_path: Path, separator: str) -> None:
    data = (b"word \xff\xfe \xe4\xb8 and \xed\xa0\x80 so on " * 9000) + b"end\xe4"
    path = write_text(tmp_path / "a.txt", data)
    contents = assert_laws([path], reading(separator=separator, bad_text="replace", delimiter=MARK))
    assert contents.text == data.decode("utf-8", "replace").encode() + MARK
    assert contents.bad_count == 6 * 9000 + 1
    assert contents.bad[0].position == 5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": null}', "null"),
        (b'{"text": 7}', "a number"),
        (b'{"text": ["a"]}', "an array"),
        (b'{"text": {"a": 1}}', "an object"),
        (b'{"text": true}', "a boolean"),
        (b'{"other": "a"}', "no key 'text'; its keys are: other"),
        (b'{"text": "a"', "not valid JSON"),
        (b'{"text": "a"} {"text": "b"}', "not valid JSON"),
        (b'{"text":', "not valid JSON"),
        (b'["text"]', "not a JSON object"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b'{"text": "a\xffb"}', "not valid UTF-8"),
        (b'{"text": "\\ud800"}', "lone surrogate"),
        (b'{"text": "a\x01b"}', "not valid JSON"),
        (b'{"text": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_or_counted(tmp_path: Path, line: bytes, reason: str) -> None:
    good = b'{"text": "good"}\n'
    path = write_text(tmp_path / "a.jsonl", good + b"\n" + good + line + b"\n" + good)
    with pytest.raises((DataError, UsageError), match=r"a\.jsonl, line 4") as caught:
        read(path)
    assert reason in caught.value.problem
    assert "--bad-text skip" in caught.value.remedy
    contents = assert_laws([path], reading(bad_text="skip"))
    assert contents.text == (b"good" + MARK) * 3
    assert [(row.position, row.unit) for row in contents.bad] == [(4, "line")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "a\xffb"}', "a\ufffdb"),
        (b'{"text": "a\\ud800b"}', "a\ufffdb"),
        (b'{"text": "\\u0000"}', "\x00"),
        (b'{"x": NaN, "text": "a"}', "a"),
        (b'{"x": "\\ud800", "text": "a"}', "a"),
        (b'{"text": "a", "text": "b"}', "b"),
        (b' {"text": "a"}\r', "a"),
    ],
)
def test_what_can_be_mended_is(tmp_path: Path, line: bytes, text: str) -> None:
    path = write_text(tmp_path / "a.jsonl", line + b'\n{"text": "next"}')
    contents = assert_laws([path], reading(bad_text="replace"))
    assert contents.text == joined([text, "next"], MARK)
    assert contents.bad_count == text.count("\ufffd")


def test_a_long_line_that_was_mended_is_counted_once(tmp_path: Path) -> None:
    """Also when reading goes on in its middle."""
    long = b"many words " * 20_000
    path = write_text(tmp_path / "a.jsonl", b'{"text": "\xff' + long + b'"}\n{"text": "next"}\n')
    contents = assert_laws([path], reading(bad_text="replace"), resumes=20)
    assert contents.text == joined(["\ufffd" + long.decode(), "next"], MARK)
    assert [(row.position, row.unit) for row in contents.bad] == [(1, "line")]


def test_a_first_line_without_the_key_lists_the_keys_under_any_policy(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.jsonl", '{"id": 1, "body": "x"}\n')
    with pytest.raises(UsageError, match="its keys are: id, body"):
        read(path, bad_text="skip")
    assert read(path, column="body") == [b"x" + MARK]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow"])
def test_null_rows_follow_the_policy(tmp_path: Path, name: str) -> None:
    path = write_rows(tmp_path / name, ["a", None, "", "b" * 90_000, None])
    with pytest.raises(DataError, match="row 2: the value of 'text' is null"):
        read(path)
    contents = assert_laws([path], reading(bad_text="skip"))
    assert contents.text == joined(["a", "b" * 90_000], MARK)
    assert [(row.position, row.unit) for row in contents.bad] == [(2, "row"), (5, "row")]
    assert contents.empty_count == 1


@pytest.mark.parametrize("policy", ["fail", "skip", "replace"])
def test_binary_columns_are_checked_for_utf8(tmp_path: Path, policy: str) -> None:
    long = b"words " * 30_000 + b"\xff"
    table = pa.table({"text": pa.array([b"a", b"\xffb", long, b"c"], pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    if policy == "fail":
        with pytest.raises(DataError, match=r"row 2.*not valid UTF-8"):
            read(tmp_path / "a.parquet")
        return
    contents = assert_laws([tmp_path / "a.parquet"], reading(bad_text=policy))
    kept = (
        ["a", "c"] if policy == "skip" else ["a", "\ufffdb", long.decode("utf-8", "replace"), "c"]
    )
    assert contents.text == joined(kept, MARK)
    assert contents.bad_count == 2


TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(),
         pa.dictionary(pa.int32(), pa.string())]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_type_of_text_column_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    rows = ["one", "two", "one", "", "long " * 20_000]
    table = pa.table({"text": pa.array(rows, pa.string()).cast(kind)})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert assert_laws([path], reading()).text == joined(rows, MARK)
    if not pa.types.is_string_view(kind):
        pq.write_table(table, tmp_path / "a.parquet")
        assert assert_laws([tmp_path / "a.parquet"], reading()).text == joined(rows, MARK)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_are_found_by_dotted_path_or_listed(tmp_path: Path, name: str) -> None:
    body = pa.array([{"text": "a", "n": 1}, None, {"text": "b", "n": 2}])
    table = pa.table({"body": body, "d.ot": ["x", "y", "z"], "id": [1, 2, 3]})
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    assert b"".join(read(path, column="body.text", bad_text="skip")) == joined(["a", "b"], MARK)
    assert b"".join(read(path, column="d.ot")) == joined(["x", "y", "z"], MARK)
    with pytest.raises(
        UsageError, match=r"no column 'text'; its columns are: body\.text, body\.n, d\.ot, id"
    ) as one:
        read(path)
    assert one.value.remedy.endswith("body.text, d.ot")
    with pytest.raises(UsageError, match="'id' holds int64, not text"):
        read(path, column="id")


@pytest.mark.parametrize(
    "suffix", [".txt.gz", ".txt.zst", ".jsonl.gz", ".parquet", ".arrow", "file.arrow"]
)
def test_a_truncated_file_is_an_error_wherever_it_was_cut(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole{suffix}"
    rows = [f"row {index} {index**5:x}" for index in range(3000)]
    if "txt" in suffix:
        write_text(whole, "\n".join(rows))
    else:
        write_rows(whole, rows, group_rows=1000)
    data = whole.read_bytes()
    for share in (0.02, 0.5, 0.9, 0.999):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError) as caught:
            read(broken)
        assert caught.value.remedy


def test_a_stream_whose_writer_was_not_closed_is_read_as_arrow_reads_it(tmp_path: Path) -> None:
    """Whole up to the end of a message; a cut inside one stays an error."""
    rows = [f"row {index}" for index in range(9)]
    path, cut = write_rows(tmp_path / "a.arrow", rows), tmp_path / "cut.arrow"
    data = path.read_bytes()
    taken: set[int] = set()
    for size in range(1, len(data)):
        cut.write_bytes(data[:size])
        try:
            found: object = joined(
                pa.ipc.open_stream(data[:size]).read_all()["text"].to_pylist(), MARK
            )
        except (pa.ArrowInvalid, OSError):
            found = DataError
        if found is DataError:
            with pytest.raises(DataError):
                read(cut)
        else:
            assert b"".join(read(cut)) == found
            taken.add(size)
    assert len(taken) == 4  # behind the schema, and behind each of three batches


@pytest.mark.parametrize("name", ["a.arrow", "file.arrow"])
def test_negative_lengths_of_an_arrow_file_are_refused(tmp_path: Path, name: str) -> None:
    """A batch of -9 rows would be stepped over, with all its text."""
    rows = ["word"] * 4321
    data = write_rows(tmp_path / name, rows, group_rows=len(rows)).read_bytes()
    lengths = {"rows": 4321, "offsets": 4 * 4322, "numbers": 8 * 4321, "text": 4 * 4321}
    places = [
        place
        for length in lengths.values()
        for place in range(0, len(data) - 8, 8)
        if data[place : place + 8] == struct.pack("<q", length)
    ]
    assert len(places) >= 6  # of the batch, of two columns, of three buffers
    for place in places:
        (tmp_path / name).write_bytes(data[:place] + struct.pack("<q", -9) + data[place + 8 :])
        with pytest.raises(DataError):
            read(tmp_path / name)


@pytest.mark.filterwarnings("ignore:Feather V1:DeprecationWarning")
@pytest.mark.parametrize("name", ["a.feather", "a.arrow", "a"])
def test_feather_of_version_1_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    path, table = tmp_path / name, pa.table({"text": ["one", "two"]})
    feather.write_feather(table, path, version=1)
    with pytest.raises(DataError) as caught:
        find_inputs([str(path)])
    assert "version=2" in caught.value.remedy
    feather.write_feather(feather.read_table(path), tmp_path / "new.feather", version=2)
    assert b"".join(read(tmp_path / "new.feather")) == joined(["one", "two"], MARK)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.parquet", "a.arrow"])
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is plain text, and quite a lot of it" * 100)
    with pytest.raises(DataError):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.arrow", "a.txt.gz", "a.jsonl.zst"])
def test_an_empty_file_holds_no_documents(tmp_path: Path, name: str) -> None:
    path = write_text(tmp_path / name, b"")
    assert b"".join(read(path)) == b""


def test_an_empty_parquet_file_is_no_parquet_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read(write_text(tmp_path / "a.parquet", b""))


def test_a_flipped_byte_in_parquet_is_an_error_or_changes_text_only(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", [f"text number {index}" for index in range(50)])
    data = path.read_bytes()
    for place in range(0, len(data), 31):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            read(path, bad_text="replace")
        except (DataError, UsageError) as error:
            assert error.remedy  # noqa: PT017 - either outcome is right; only a crash is wrong


@pytest.mark.parametrize("lie", [(0, 4, 2**30), (0, 2**30, 8), (0, -5, 8), (8, 4, 0)], ids=str)
def test_arrow_offsets_that_point_elsewhere(tmp_path: Path, lie: tuple[int, ...]) -> None:
    path = write_rows(tmp_path / "a.arrow", ["aaaa", "bbbb"])
    data = path.read_bytes()
    offsets = struct.pack("<3i", 0, 4, 8)
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, struct.pack("<3i", *lie)))
    with pytest.raises(DataError, match="damaged"):
        read(path)


def test_a_footer_that_lies_about_its_size(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "a.parquet", ["a", "b"]).read_bytes()
    for claimed in (0, 1, 2**31 - 1, 2**32 - 1):
        path = tmp_path / "liar.parquet"
        path.write_bytes(data[:-8] + struct.pack("<I", claimed) + b"PAR1")
        with pytest.raises(DataError):
            read(path)


def test_a_file_that_shrinks_or_vanishes_is_an_error(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "some words " * 1000)
    inputs = find_inputs([str(path)])
    path.write_bytes(b"short")
    with pytest.raises(DataError, match="shorter"):
        read_all(inputs, reading())
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        read_all(inputs, reading())


def test_bytes_appended_later_are_not_read(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", "first")
    inputs = find_inputs([str(path)])
    path.write_bytes(b"first and second")
    assert [block.text for block in read_all(inputs, reading())] == [b"first" + MARK]


STDIN_SCRIPT = """
import sys
from dataclasses import replace
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import Cursor, read_blocks
from tests.source.readings import reading
settings = reading(separator="<|x|>", block_bytes=64)
for block in read_blocks(find_inputs(["-"]), settings, start=Cursor(file=0, position=0)):
    sys.stdout.buffer.write(block.text)
"""


def test_standard_input_is_read_as_text() -> None:
    text = b"one<|x|>two<|x|>" + b"long words " * 20_000
    done = subprocess.run(
        [sys.executable, "-c", STDIN_SCRIPT], input=text, capture_output=True, check=True
    )
    assert done.stdout == text + b"<|x|>"


def test_standard_input_is_not_resumed() -> None:
    with pytest.raises(UsageError, match="standard input"):
        list(read_blocks(find_inputs(["-"]), reading(), start=Cursor(file=0, position=5)))
    with pytest.raises(UsageError, match="standard input"):
        list(read_blocks(find_inputs(["-"]), reading(tail=Cursor(file=0, position=5)), start=START))


def test_many_bad_rows_are_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a" if index == 0 else None}) for index in range(1001)]
    path = write_text(tmp_path / "a.jsonl", "\n".join(lines))
    blocks = read_all(find_inputs([str(path)]), reading(bad_text="skip"))
    assert sum(block.bad_count for block in blocks) == 1000
    assert [row.position for row in blocks[0].bad] == list(range(2, 102))


def test_an_empty_separator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty separator"):
        list(
            read_blocks(
                find_inputs([str(write_text(tmp_path / "a.txt", "x"))]),
                replace(reading(), separator=""),
                start=START,
            )
        )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there")
@pytest.mark.parametrize("left_bytes", [10, 5000, 400_001])
def test_an_arrow_file_cut_while_it_is_read_is_an_error_and_never_a_signal(
    tmp_path: Path, left_bytes: int
) -> None:
    done = cut_while_reading("arrow", tmp_path, left_bytes)
    assert len(done) == 6
    assert set(done.values()) == {"DataError"}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_column_that_is_there_twice_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(UsageError, match="several columns called 'text'"):
        list(read_blocks(find_inputs([str(path)]), reading(), start=Cursor(file=0, position=0)))
